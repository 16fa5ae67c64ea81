"""The fields of a TOML file's tables, each checked; errors name the file, the line and the field."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from gradtide.errors import TopologyError
from gradtide.topology.formats.toml_lines import TomlLines
from gradtide.topology.wording import nearest, shown

__all__ = ["TomlFields", "TomlPlace"]

EXAMPLES = {"bandwidth": '"16 GB/s"', "latency": '"3 us"'}


@dataclass(frozen=True, slots=True)
class TomlPlace:
    """A table of the file: the third [[link]], say."""

    table: str
    index: int
    values: Mapping[str, Any]


class TomlFields:
    """Takes values out of tables, and turns what is wrong with them into errors with their place."""

    def __init__(self, origin: str, lines: TomlLines) -> None:
        self.origin, self.lines = origin, lines

    def tables(self, raw: dict[str, Any], table: str) -> list[TomlPlace]:
        found = raw.get(table, [])
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            self.fail(TomlPlace("topology", 0, raw), table, f"write one [[{table}]] table for each {table}")
        return [TomlPlace(table, index, values) for index, values in enumerate(found)]

    def known_fields(self, place: TomlPlace, fields: tuple[str, ...]) -> None:
        for field in place.values:
            if field not in fields:
                self.fail(place, field, f"there is no such field{nearest(field, fields)}")

    def text(self, place: TomlPlace, field: str, default: str | None = None) -> str:
        value = place.values.get(field, default)
        if value is None:
            self.fail(place, field, "is missing; add it")
        if not isinstance(value, str):
            self.fail(place, field, f"expected text in quotes, not {shown(value)}")
        return value

    def quantity(self, place: TomlPlace, field: str, parse: Callable[[str], float]) -> float:
        value = place.values.get(field)
        if isinstance(value, int | float):
            example = EXAMPLES["latency" if "latency" in field else "bandwidth"]
            self.fail(place, field, f"{value} has no unit; write for example {example}")
        try:
            return parse(self.text(place, field))
        except TopologyError as error:
            if str(error).startswith(f"{self.origin}, "):
                raise
            self.fail(place, field, str(error))

    def whole(self, place: TomlPlace, field: str, least: int, most: int, default: int | None = None) -> int:
        value = place.values.get(field, default)
        if value is None:
            self.fail(place, field, "is missing; add it")
        if type(value) is not int or not least <= value <= most:
            self.fail(place, field, f"{field} must be a whole number from {least} to {most:,}, not {shown(value)}")
        return value

    def factor(self, place: TomlPlace, field: str, least: float, most: float, default: float | None = None) -> float:
        value = place.values.get(field, default)
        if value is None:
            self.fail(place, field, "is missing; add it")
        if type(value) not in (int, float) or not least <= value <= most:
            self.fail(place, field, f"{field} must be a number from {least:g} to {most:g}, not {shown(value)}")
        return float(value)

    def flag(self, place: TomlPlace, field: str, default: bool) -> bool:
        value = place.values.get(field, default)
        if type(value) is not bool:
            self.fail(place, field, f"expected true or false, not {shown(value)}")
        return value

    def fail(self, place: TomlPlace, field: str, text: str) -> NoReturn:
        of = "" if place.table == "topology" else f" of {place.table} {place.index + 1}"
        line = self.lines.find(place.table, place.index, field)
        raise TopologyError(f"{self.origin}, line {line}, field {shown(field)}{of}: {text}")

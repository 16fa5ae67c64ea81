"""Frozen data as JSON and back, by its types: whatever is wrong in the text is named by its place."""

import dataclasses
import json
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from gradtide.errors import ScheduleError

__all__ = ["MAX_JSON_CHARACTERS", "from_json", "to_plain"]

MAX_JSON_CHARACTERS = 64 << 20  # anything larger was not written by us
WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Dataclasses and named tuples as dicts, tuples as lists."""
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        named = getattr(value, "_fields", None)
        parts = [to_plain(part) for part in value]
        return dict(zip(named, parts, strict=True)) if named else parts
    return value


def from_json(text: str | bytes, kind: type[T], source: str, mark: str, version: int) -> T:
    """What the text holds; the field `mark` says what it is. `source` (a file's name, say) opens every error."""
    if len(text) > MAX_JSON_CHARACTERS:
        raise ScheduleError(f"{source}: is longer than {MAX_JSON_CHARACTERS} characters; gradtide writes no such file")
    try:
        data = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ScheduleError(f"{source}: is not JSON ({str(error)[:80]})") from None
    if not isinstance(data, dict) or data.pop(mark, None) != version:
        raise ScheduleError(f"{source}: needs the field {mark}, which must be {version}, the version of this format")
    found: T = _read(data, kind, source)
    return found


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _read(data: Any, kind: Any, where: str) -> Any:
    """The data as this type, or an error that names the place."""
    if get_origin(kind) is Literal:
        if data not in get_args(kind):
            raise ScheduleError(f"{where}: is {_short(data)}, but must be one of {', '.join(get_args(kind))}")
        return data
    if get_origin(kind) is tuple:
        return _read_tuple(data, get_args(kind), where)
    if kind in WORDS:
        return _read_plain(data, kind, where)
    return _read_object(data, kind, where)


def _read_plain(data: Any, kind: type, where: str) -> Any:
    fits = isinstance(data, bool) if kind is bool else isinstance(data, (int, float) if kind is float else kind)
    if not fits or (isinstance(data, bool) and kind is not bool):
        raise ScheduleError(f"{where}: must be {WORDS[kind]}, not {_short(data)}")
    if kind in (int, float) and not abs(data) < (1 << 63):  # 1e999 is read as infinite
        raise ScheduleError(f"{where}: {_short(data)} is out of all measure")
    return float(data) if kind is float and not isinstance(data, int) else data


def _read_tuple(data: Any, kinds: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise ScheduleError(f"{where}: must be a list, not {_short(data)}")
    if kinds[-1] is Ellipsis:
        return tuple(_read(part, kinds[0], f"{where}[{at}]") for at, part in enumerate(data))
    if len(data) != len(kinds):
        raise ScheduleError(f"{where}: must have {len(kinds)} parts, not {len(data)}")
    return tuple(_read(part, kind, where) for part, kind in zip(data, kinds, strict=True))


def _read_object(data: Any, kind: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise ScheduleError(f"{where}: must be an object with fields, not {_short(data)}")
    hints, needed = _fields(kind)
    unknown = set(data) - set(hints)
    if unknown:
        raise ScheduleError(f"{where}: has an unknown field {min(unknown)[:40]}; known are {', '.join(hints)}")
    absent = needed - set(data)
    if absent:
        raise ScheduleError(f"{where}: lacks the field {min(absent)}")
    return kind(**{name: _read(part, hints[name], f"{where}: {name}") for name, part in data.items()})


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], set[str]]:
    """The types of its fields, and those that must be there."""
    if dataclasses.is_dataclass(kind):
        needed = {
            field.name
            for field in dataclasses.fields(kind)
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        }
    else:
        needed = set(kind._fields) - set(kind._field_defaults)
    return get_type_hints(kind), needed


def _short(data: Any) -> str:
    return json.dumps(data)[:40]

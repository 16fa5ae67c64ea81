"""A schedule as JSON and back; whatever is wrong in the text is named by op and field."""

import json
from collections.abc import Mapping
from typing import Any, cast, get_args

from gradtide.errors import ScheduleError
from gradtide.schedule.model import Collective, Kind, Op, Schedule

__all__ = ["MAX_JSON_BYTES", "schedule_from_json", "schedule_to_json"]

VERSION = 1
MAX_JSON_BYTES = 64 << 20  # half a million ops; anything larger was not written by us
OP_FIELDS = ("id", "src", "dst", "chunk", "kind", "deps", "channel")


def schedule_to_json(schedule: Schedule) -> str:
    """One op a line, so that a diff of two schedules reads well."""
    head = {
        "gradtide_schedule": VERSION,
        "name": schedule.name,
        "collective": schedule.collective,
        "ranks": schedule.ranks,
        "contributors": schedule.contributors,
        "weights": schedule.weights,
        "owners": schedule.owners,
    }
    ops = ",\n".join("  " + json.dumps(dict(zip(OP_FIELDS, op, strict=True))) for op in schedule.ops)
    return json.dumps(head)[:-1] + f', "ops": [\n{ops}\n]}}\n'


def schedule_from_json(text: str | bytes, source: str = "schedule") -> Schedule:
    """The schedule in the text; `source` (a file's name, say) opens every error. Not verified yet."""
    if len(text) > MAX_JSON_BYTES:
        raise ScheduleError(f"{source}: is longer than {MAX_JSON_BYTES} bytes, which no schedule is")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ScheduleError(f"{source}: is not JSON ({str(error)[:80]}); write one with --schedule") from None
    fields = _object(data, source)
    if fields.get("gradtide_schedule") != VERSION:
        raise ScheduleError(f"{source}: field gradtide_schedule must be {VERSION}, the version of this format")
    ops = _list(fields, "ops", source)
    return Schedule(
        name=_text(fields, "name", source),
        collective=cast(Collective, _choice(fields, "collective", get_args(Collective), source)),
        ranks=tuple(_texts(fields, "ranks", source)),
        contributors=_integer(fields, "contributors", source),
        weights=_integers(fields, "weights", source),
        ops=tuple(_op(op, f"{source}: op {at} of the list") for at, op in enumerate(ops)),
        owners=_integers(fields, "owners", source),
    )


def _op(data: object, who: str) -> Op:
    fields = _object(data, who)
    unknown = set(fields) - set(OP_FIELDS)
    if unknown:
        raise ScheduleError(f"{who}: has an unknown field {min(unknown)}; known are {', '.join(OP_FIELDS)}")
    return Op(
        id=_integer(fields, "id", who),
        src=_integer(fields, "src", who),
        dst=_integer(fields, "dst", who),
        chunk=_integer(fields, "chunk", who),
        kind=cast(Kind, _choice(fields, "kind", get_args(Kind), who)),
        deps=_integers(fields, "deps", who),
        channel=_integer(fields, "channel", who),
    )


def _object(data: object, who: str) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise ScheduleError(f"{who}: must be a JSON object, not {type(data).__name__}")
    return data


def _field(fields: Mapping[str, Any], name: str, kind: type, who: str) -> Any:
    value = fields.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = {int: "a whole number", str: "a text", list: "a list"}[kind]
        raise ScheduleError(f"{who}: field {name} must be {wanted}, not {json.dumps(value)[:40]}")
    return value


def _integer(fields: Mapping[str, Any], name: str, who: str) -> int:
    return cast(int, _field(fields, name, int, who))


def _text(fields: Mapping[str, Any], name: str, who: str) -> str:
    return cast(str, _field(fields, name, str, who))


def _list(fields: Mapping[str, Any], name: str, who: str) -> list[Any]:
    return cast(list[Any], _field(fields, name, list, who))


def _integers(fields: Mapping[str, Any], name: str, who: str) -> tuple[int, ...]:
    values = _list(fields, name, who)
    if not all(type(value) is int for value in values):
        raise ScheduleError(f"{who}: field {name} must hold whole numbers only")
    return tuple(values)


def _texts(fields: Mapping[str, Any], name: str, who: str) -> list[str]:
    values = _list(fields, name, who)
    if not all(isinstance(value, str) for value in values):
        raise ScheduleError(f"{who}: field {name} must hold texts only")
    return values


def _choice(fields: Mapping[str, Any], name: str, allowed: tuple[str, ...], who: str) -> str:
    value = _text(fields, name, who)
    if value not in allowed:
        raise ScheduleError(f"{who}: field {name} is {value[:40]!r}, but must be one of {', '.join(allowed)}")
    return value

"""Every struct that gradtide encodes, found by what it looks like when encoded, and values for all of its fields.

A struct is known by its tag, its encoded field names (where they are encoded) and its types, never by what Python calls
it: a class or an attribute may get another name, or move, as long as the bytes stay.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

import gradtide

__all__ = ["all_structs", "build", "encodings", "key_of", "variants"]

_NUMBERS = (2, 300, 70_000, 1 << 40, -5)  # one for each width that MessagePack has
_MANY = (inspect.VarTupleType, inspect.ListType, inspect.SetType, inspect.FrozenSetType)


def all_structs() -> dict[str, list[type[msgspec.Struct]]]:
    """The structs by key; two that can't be told apart once they are encoded share one."""
    for module in pkgutil.walk_packages(gradtide.__path__, "gradtide."):
        path = Path(module.module_finder.find_spec(module.name).origin)
        if "msgspec" in path.read_text(encoding="utf-8"):
            importlib.import_module(module.name)
    found: dict[str, list[type[msgspec.Struct]]] = {}
    for struct in _below(msgspec.Struct):
        is_ours = struct.__module__.startswith("gradtide.")
        if is_ours and (struct.__struct_fields__ or struct.__struct_config__.tag is not None):
            found.setdefault(key_of(struct), []).append(struct)
    return found


def _below(struct: type) -> Iterator[type[msgspec.Struct]]:
    for child in struct.__subclasses__():
        yield child
        yield from _below(child)


def key_of(struct: type[msgspec.Struct]) -> str:
    """Its tag, and a digest of how it looks encoded."""
    described = _describe(inspect.type_info(struct))
    tag = struct.__struct_config__.tag
    return f"{'untagged' if tag is None else tag} {sha256(described.encode()).hexdigest()[:12]}"


def _describe(kind: inspect.Type) -> str:
    match kind:
        case inspect.StructType() | inspect.DataclassType():
            is_array = isinstance(kind, inspect.StructType) and kind.array_like
            fields = [("" if is_array else f"{f.encode_name}: ") + _describe_field(f) for f in kind.fields]
            tag = f"{kind.tag_field}={kind.tag} " if isinstance(kind, inspect.StructType) else ""
            return f"<{tag}{'array' if is_array else 'map'} {', '.join(fields)}>"
        case inspect.UnionType():
            return " | ".join(sorted(map(_describe, kind.types)))
        case inspect.LiteralType():
            return " | ".join(sorted(map(repr, kind.values)))
        case inspect.DictType():
            return f"dict[{_describe(kind.key_type)}, {_describe(kind.value_type)}]"
        case inspect.TupleType():
            return f"({', '.join(map(_describe, kind.item_types))})"
        case _ if isinstance(kind, _MANY):
            return f"many[{_describe(kind.item_type)}]"
        case _:
            return type(kind).__name__.removesuffix("Type").lower()


def _describe_field(field: inspect.Field) -> str:
    return _describe(field.type) + ("" if field.required else f" = {msgspec.json.encode(_default(field)).decode()}")


def _default(field: inspect.Field) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def variants(struct: type) -> dict[str, Any]:
    """Values of it: one with the defaults, and so many with all fields set that each alternative has its turn."""
    kind = inspect.type_info(struct)
    turns = max((len(_alternatives(field.type)) for field in kind.fields), default=1)
    made = {str(turn): build(struct, turn) for turn in range(turns)}
    return made if all(field.required for field in kind.fields) else {"defaults": build(struct, 0, True), **made}


def build(struct: type, turn: int = 0, defaults: bool = False) -> Any:
    """A value whose fields are all set, none to its default; or, with `defaults`, only those that must be."""
    return _struct(inspect.type_info(struct), turn, count(), defaults)


def _struct(kind: inspect.StructType | inspect.DataclassType, turn: int, numbers: "count[int]", defaults: bool) -> Any:
    given = [field for field in kind.fields if field.required or not defaults]
    return kind.cls(**{field.name: _value(field, turn, numbers) for field in given})


def _value(field: inspect.Field, turn: int, numbers: "count[int]") -> Any:
    made = _make(field.type, turn, numbers)
    return not made if isinstance(field.type, inspect.BoolType) and made is field.default else made


def _alternatives(kind: inspect.Type) -> list[Any]:
    """What a single value can be, in an order that does not depend on how it is written."""
    if isinstance(kind, inspect.UnionType):
        return sorted((one for one in kind.types), key=lambda one: (isinstance(one, inspect.NoneType), _describe(one)))
    return sorted(kind.values) if isinstance(kind, inspect.LiteralType) else [kind]


def _make(kind: inspect.Type, turn: int, numbers: "count[int]") -> Any:
    match kind:
        case inspect.StructType() | inspect.DataclassType():
            return _struct(kind, turn, numbers, False)
        case inspect.UnionType():
            options = _alternatives(kind)
            return _make(options[turn % len(options)], turn, numbers)
        case inspect.LiteralType():
            options = _alternatives(kind)
            return options[turn % len(options)]
        case inspect.DictType():
            values = [_make(one, turn, numbers) for one in _alternatives(kind.value_type)]
            return {_make(kind.key_type, turn, numbers): value for value in values}
        case inspect.TupleType():
            return tuple(_make(one, turn, numbers) for one in kind.item_types)
        case _ if isinstance(kind, _MANY):
            values = [_make(one, turn, numbers) for one in _alternatives(kind.item_type)]
            return values if isinstance(kind, inspect.ListType) else tuple(values)
        case _:
            return _plain(kind, next(numbers))


def _plain(kind: inspect.Type, number: int) -> Any:
    match kind:
        case inspect.IntType():
            return _NUMBERS[number % len(_NUMBERS)] + number
        case inspect.FloatType():
            return number + 0.1
        case inspect.StrType():
            return f"text {number} ü"
        case inspect.BytesType():
            return bytes((number % 256, 0, 255))
        case inspect.BoolType():
            return True
        case inspect.NoneType():
            return None
        case inspect.AnyType():
            return {"a": [number, 0.5, None, True], "b": {"c": "text"}}
        case inspect.RawType():
            return msgspec.Raw(b"7")  # a whole value in JSON and in MessagePack
    raise AssertionError(f"no value is known for {kind}; give one here")


def encodings(value: msgspec.Struct) -> dict[str, str]:
    """As it goes out: the store's messages as MessagePack, and whatever else is encoded either way."""
    packed = {"msgpack": msgspec.msgpack.encode(value).hex()}
    config = value.__struct_config__
    is_message = config.array_like and config.tag is not None
    return packed if is_message else {**packed, "json": msgspec.json.encode(value).decode()}

"""Messages of every kind, well formed and then spoilt: for whoever has to bear them."""

import random
import typing
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
from golden_structs import build

from gradtide.store.wire import messages
from gradtide.store.wire.messages import (
    Beat,
    BeginCut,
    BlockImage,
    Came,
    CaughtUp,
    CollectCut,
    Configure,
    Configured,
    Created,
    Fenced,
    Init,
    Inspect,
    Join,
    Keys,
    KeySpec,
    Lagging,
    Leave,
    Part,
    Piece,
    Promise,
    Pull,
    Push,
    Pushed,
    RecordImage,
    Replicate,
    Replicated,
    Resize,
    RoundsClosed,
    Settled,
    Slot,
    Snapshot,
    Updated,
    UpdateRule,
    Version,
    encode,
    layout_name,
)
from gradtide.transport.frames import PLACE, cut, shared, whole

__all__ = ["PARTS", "every_message", "lying_bytes", "mutated_bytes", "mutated_message", "well_formed", "wire_bytes"]

PARTS = (Part(5, (Piece("w", 0, 0, 4, 16),)),)
_NAME = layout_name(PARTS)
_SPEC = KeySpec("w", (4,), "float32", UpdateRule("add"))
_INTEGERS = (-1, 0, 1, 2, 4, 5, 1023, 1024, -(1 << 31), 1 << 32, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1)
_FLOATS = (0.0, -1.0, 1e308, -1e308, float("inf"), float("nan"))
_TEXTS = ("", "w", "m", "s", "t", "\0", "../..", "s3://nowhere/at/all", "tcp::", "unix:" + "x" * 200, "ü" * 300, "-5")
_OTHERS: tuple[Any, ...] = (None, True, False, [], {}, b"", b"\xff" * 9, [[[[]]]], {"lr": -1}, ["w"] * 50)


def well_formed(folder: Path) -> list[tuple[Any, bytes]]:
    """What a process in the store of `s`, at epoch 1, may be told, with its payload: so that most of it, if spoilt in
    one place, is understood for the rest."""
    created = Created(_SPEC, 0, 4, 16, b"digest")
    steps = (created, Updated("w", 0), Came("w", 0, 1, 1), RoundsClosed("w", 0, 1), Configured("w", {"lr": 0.1}, 0))
    answer = Pushed(1, 5, Version(1, 1))
    image = BlockImage(created, 0, ((1, (1,)),), ((1, {"lr": 0.1}),), ((1, 1),), {}, (), 1)
    record = RecordImage("m", 1, 5, 1, (answer,), (2,), (3,))
    slot, one = Slot("float32", 4), Version(1, 1)
    requests: list[tuple[Any, int]] = [
        (Init(1, "m", 1, 1, _SPEC, PARTS), 16),
        (Init(1, "m", 1, 1, msgspec.structs.replace(_SPEC, delay=0), PARTS), 16),
        (Push(1, "m", 1, 2, _NAME, PARTS, (1,)), 16),
        (Push(1, "m", 1, 3, _NAME, PARTS, round=1, worker=0, weight=1.0, pull=True, decree=1), 16),
        (Pull(1, "m", 1, 4, _NAME, PARTS, (1,), 1, 0, (one,), 1), 0),
        (Configure(1, "m", 1, 6, "w", {"lr": 0.5, "betas": (0.1, 0.2)}, (5,), (1,), 1), 0),
        (Keys(1, "m", 1, 5, "w"), 0),
        (BeginCut(1, "m", 1, 7, "cut", str(folder / "cut"), 0), 0),
        (CollectCut(1, "m", 1, 8, "cut"), 0),
    ]
    members: list[tuple[Any, int]] = [
        (Join("server", "t", 0, "tcp:127.0.0.1:1", expected=1, replicas=1, token=77), 0),
        (Join("worker", "m", 0, worker=0, expected=1, token=78), 0),
        (Join("client", "c", 0, token=79), 0),
        (Beat("m", 1, 1, 1, 0, 1.0), 0),
        (Beat("s", 1, 1, 1, 0, 1.0), 0),
        (Leave("m", 1, 2), 0),
        (Leave("c", 1), 0),
        (Promise("s", 1, 1, 1, 1), 0),
        (CaughtUp("s", 1, 1, "t", (5,)), 0),
        (Lagging("s", 1, 1, "t"), 0),
        (Inspect(), 0),
        (Resize(1), 0),
    ]
    between: list[tuple[Any, int]] = [
        (Replicate(1, "t", 6, Version(), one, one, steps[:1], (slot,)), 16),
        (Replicate(1, "t", 6, one, Version(1, 2), one, steps, (slot, slot)), 32),
        (Replicate(1, "t", 6, one, Version(1, 2), one, (Settled("m", 1, 1, answer, (2,)),)), 0),
        (Replicate(1, "t", -1, Version(), Version(), Version()), 0),
        (Replicated(1, "t", 5, one, 1.0, True), 0),
        (Snapshot(1, "t", 6, one, one, (image,), (record,), (slot,)), 16),
        (Fenced(1, "t"), 0),
    ]
    known = [(message, bytes(size)) for message, size in (*requests, *members, *between)]
    there = {type(message) for message, _ in known}
    return known + [(build(kind), b"") for kind in every_message() if kind not in there]


def every_message() -> tuple[type, ...]:
    return typing.get_args(messages.Message)


def mutated_message(source: random.Random, message: Any) -> bytes:
    """Encoded, with some of its values replaced, mostly by such as have the same type; or lost, or repeated."""
    raw = msgspec.msgpack.decode(encode(message))
    for _ in range(source.choice((1, 1, 1, 2, 3))):
        spots = list(_spots(raw))
        if len(spots) < 2:
            break
        _spoil(source, *source.choice(spots[1:]))  # but its tag
    return msgspec.msgpack.encode(raw)


def _spots(node: Any) -> Iterator[tuple[Any, Any]]:
    """Each value in a message, as where it is found."""
    for at in node if isinstance(node, dict) else range(len(node)):
        yield node, at
        if isinstance(node[at], list | dict):
            yield from _spots(node[at])


def _spoil(source: random.Random, node: Any, at: Any) -> None:
    chance = source.random()
    if chance < 0.75:
        node[at] = _alike(source, node[at])
    elif chance < 0.87:
        node[at] = deepcopy(source.choice((*_OTHERS, *_INTEGERS, *_TEXTS, *_FLOATS)))
    elif isinstance(node, list) and chance < 0.92:
        del node[at:]
    elif isinstance(node, list) and chance < 0.96:
        node.append(deepcopy(node[at]))
    elif isinstance(node, list):
        node[at:at] = [deepcopy(node[at]) for _ in range(source.choice((1, 3, 30)))]


def _alike(source: random.Random, value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return source.choice((*_INTEGERS, value - 1, value + 1) if -(1 << 62) < value < 1 << 62 else _INTEGERS)
        case float():
            return source.choice(_FLOATS)
        case str():
            return source.choice(_TEXTS)
        case bytes():
            return source.randbytes(source.randrange(20))
        case list():
            return deepcopy(source.choice((value * 2, value[:1], [], value[::-1], value[:3] * 30)))
        case _:
            return deepcopy(source.choice(_OTHERS))


def wire_bytes(message: bytes, body: bytes) -> bytes:
    return b"".join(bytes(part) for _, frame in cut(message, [memoryview(body)] if body else []) for part in frame)


def lying_bytes(message: bytes, body: bytes) -> bytes:
    """It says that its payload is in memory that both share, where it is not."""
    return shared(whole(message, len(body)), PLACE.pack(4096, 8192), len(body))


def mutated_bytes(source: random.Random, seeds: list[bytes]) -> bytes:
    """One to three frames, with bits flipped, bytes lost, repeated or replaced."""
    data = bytearray(b"".join(source.choice(seeds) for _ in range(source.randrange(1, 4))))
    for _ in range(source.randrange(1, 6)):
        at = source.randrange(len(data))
        kind = source.randrange(5)
        if kind == 0:
            data[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            data[at] = source.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            del data[at : at + source.randrange(1, 9)]
        elif kind == 3:
            data[at:at] = source.randbytes(source.randrange(1, 9))
        else:
            data += data[at : at + 40]
        if not data:
            data += b"\0"
    return bytes(data)

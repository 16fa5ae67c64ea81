"""What goes through sockets and shared memory beside the structs, taken where it comes out: frames, greetings, names.

WIRES has one function for each kind. It returns bytes by name; `read_back` plays what was kept to the side that reads.
"""

import contextlib
import mmap
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any
from unittest.mock import patch

import torch
from golden_structs import build

from gradtide.collective.host.announcement import Announcement
from gradtide.collective.host.signature import TEXTS, sign
from gradtide.errors import Mismatch
from gradtide.store.wire import messages
from gradtide.store.wire.message_templates import Template
from gradtide.store.wire.placement import deal, shard_of
from gradtide.transport import rendezvous
from gradtide.transport.authenticate import Address, dial, listen
from gradtide.transport.frames import PLACE, FrameReader, credit_frame, cut, ring_frame, shared, whole
from gradtide.transport.handshake import Handshake
from gradtide.transport.keys import Credentials, Key
from gradtide.transport.lifelines import Lifelines, Word, join_lifelines
from gradtide.transport.shared_ring import make_ring, open_ring

__all__ = ["WIRES", "read_back"]

_BLOCK = 4 << 20
_LONG = bytes(range(256)) * 300  # more than one frame takes
_SECRET = Credentials((Key(bytes(range(32))),), name="s0")
_WORKER = Credentials((Key(_SECRET.keys[0].derive("worker", "w3"), "worker", "w3"),))
_WORDS = ((Word.ASK, 0, 0, ""), (Word.ANSWER, 7, 1 << 40, ""), (Word.BROKEN, -1, 8, "was über"), (Word.BYE, 9, 0, ""))


def _numbered(size: int) -> bytes:
    """Instead of random bytes."""
    return bytes(i % 256 for i in range(size))


# --- frames ---


def _frames(folder: Path) -> dict[str, bytes]:
    heads = {"short": b"".join(map(bytes, next(cut(b"message", [memoryview(b"body")]))[1]))}
    for i, (size, buffers) in enumerate(cut(b"message", [memoryview(bytes(2 * _BLOCK + 5))])):
        heads[f"open {i} of {size} bytes"] = bytes(buffers[0])
    for i, (_, buffers) in enumerate(cut(_LONG)):
        heads[f"long {i}"] = bytes(buffers[0])[:12]
    return {
        **heads,
        "whole": whole(b"message", 300),
        "credit": credit_frame(70_000),
        "window": ring_frame(),
        "shared": shared(whole(b"message", 0), PLACE.pack(64, 4160), 4096),
    }


def _read_frames(kept: dict[str, bytes]) -> None:
    heard: list[Any] = []
    room = bytearray(2 * _BLOCK + 5)

    def begin(message: memoryview) -> memoryview | None:
        heard.append(bytes(message))
        sizes = {b"message": len(room) if len(heard) > 1 else 4}
        return memoryview(room)[: sizes[bytes(message)]] if bytes(message) in sizes else None

    reader = FrameReader(begin, lambda: heard.append("filled"), heard.append, opened=lambda: heard.append("opened"))
    reader.feed(kept["short"])
    assert bytes(room[:4]) == b"body"
    for name, size in (
        ("open 0 of 4194304 bytes", _BLOCK),
        ("open 1 of 4194304 bytes", _BLOCK),
        ("open 2 of 5 bytes", 5),
    ):
        reader.feed(kept[name])
        for _ in range(-(-size // 65536)):
            reader.feed(bytes(min(size, 65536)))
    cuts = [_LONG[: (64 << 10) - 12], _LONG[(64 << 10) - 12 :]]
    for i, part in enumerate(cuts):
        reader.feed(kept[f"long {i}"] + part)
    reader.feed(kept["credit"])
    reader.feed(kept["window"])
    assert heard == [b"message", "filled", b"message", "filled", _LONG, 70_000, "opened"]


# --- memory that two processes share ---


def _ring(folder: Path) -> dict[str, bytes]:
    """Where a body lies, what is said of it, and what the reader notes when it is through."""
    made = make_ring()
    assert made is not None
    descriptor, mine = made
    with mmap.mmap(descriptor, 0) as memory:
        theirs = open_ring(descriptor)
        assert theirs is not None
        first, second = mine.put([b"the first body"], 14), mine.put([b"the ", b"second"], 10)
        back = theirs.put([b"an answer"], 9)
        assert first is not None
        assert second is not None
        assert back is not None
        found = {"size": len(memory), "first": memory.find(b"the first body"), "second": memory.find(b"the second")}
        found |= {"back": memory.find(b"an answer")}
        assert bytes(theirs.take(memoryview(first), 14)) == b"the first body"
        assert bytes(theirs.take(memoryview(second), 10)) == b"the second"
        theirs.give_back()
        assert bytes(mine.take(memoryview(back), 9)) == b"an answer"
        mine.give_back()
        counters = memory[:128]
    places = {"place of first": first, "place of second": second, "place of back": back, "counters": counters}
    return {f"at {name}": number.to_bytes(8, "big") for name, number in found.items()} | places


# --- greetings ---


_HANDSHAKES = {
    "secret": (_SECRET, _SECRET),
    "key": (_WORKER, _SECRET),
    "no secret": (Credentials(), Credentials()),
}  # of who dials, and of who listens


def _handshake(folder: Path) -> dict[str, bytes]:
    """All that both sides say, with and without a secret."""
    found = {}
    for name, (theirs, ours) in _HANDSHAKES.items():
        address = Address(path=str(folder / name.replace(" ", "-")))
        with patch.object(secrets, "token_bytes", _numbered), listen(address, Credentials()) as listener:
            dialled: Queue[Any] = Queue()
            dialler = threading.Thread(target=lambda s=theirs, a=address, q=dialled: q.put(dial(a, s, "operator")))
            dialler.start()
            found |= {f"{name}, {what}": said for what, said in _greet(listener, ours).items()}
            dialled.get(timeout=10).close()
            dialler.join()
    return found


def _greet(listener: socket.socket, credentials: Credentials) -> dict[str, bytes]:
    line, _ = listener.accept()
    with line:
        hello = line.recv(4096)
        handshake = Handshake(credentials, "server")
        answer = handshake.feed(hello)
        line.sendall(answer)
        proof = line.recv(4096)
        handshake.feed(proof)
        assert handshake.done
    return {"hello": hello, "answer": answer, "proof": proof}


def _read_handshake(kept: dict[str, bytes]) -> None:
    for name, (_, ours) in _HANDSHAKES.items():
        handshake = Handshake(ours, "server")
        with patch.object(secrets, "token_bytes", _numbered):
            assert handshake.feed(kept[f"{name}, hello"]) == kept[f"{name}, answer"]
        assert handshake.feed(kept[f"{name}, proof"] + b"rest") == b""
        assert handshake.done
        assert handshake.rest == b"rest"


class _Ear:
    def __init__(self) -> None:
        self.words: Queue[Any] = Queue()

    def heard(self, *said: Any) -> None:
        self.words.put(said)


class _Store:
    """What a launcher's store has once rank 0 is there."""

    def __init__(self, **values: str) -> None:
        self.values = values

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def wait(self, keys: list[str], timeout: object) -> None:
        assert all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        return self.values[key].encode()


def _lifelines(folder: Path) -> dict[str, bytes]:
    """How a rank says which it is, and every word that it can say."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        store = _Store(secret="the secret", **{"lifeline/0": f"{port} 127.0.0.1"})
        joined: Queue[Any] = Queue()
        joiner = threading.Thread(target=lambda: joined.put(join_lifelines(store, 1, 2, "127.0.0.1", 10)))
        joiner.start()
        line, _ = listener.accept()
        with line:
            handshake, rank = Handshake(Credentials((Key(b"the secret"),)), "rank"), b""
            while not handshake.done:
                line.sendall(handshake.feed(line.recv(4096)))
            rank = handshake.rest
            while len(rank) < 4:
                rank += line.recv(4096)
            lifelines = Lifelines(joined.get(timeout=10), _Ear())
            joiner.join()
            lifelines.start()
            found = {"rank": rank}
            for word in _WORDS:
                lifelines.say(0, *word)
                found[f"word {word[0]:d}"] = line.recv(4096)
            line.shutdown(socket.SHUT_WR)
            lifelines.close()
    return found


def _read_lifelines(kept: dict[str, bytes]) -> None:
    mine, yours = socket.socketpair()
    ear = _Ear()
    lifelines = Lifelines({3: mine}, ear)
    lifelines.start()
    with yours:
        for word in _WORDS:
            yours.sendall(kept[f"word {word[0]:d}"])
            assert ear.words.get(timeout=10) == (3, *word)
    assert ear.words.get(timeout=10)[1] == Word.GONE
    lifelines.close()


def _rendezvous(folder: Path) -> dict[str, bytes]:
    """A hello, what a leader of three hands to a member, and what it says to one who thinks they are four."""
    name = f"golden-{os.getpid()}"
    with rendezvous.listen(_place(name, 0)) as listener, _join(_place(name, 2)), listener.accept()[0] as peer:
        hello = peer.recv(4096)
    welcome = _told(name, _place(name, 2), _place(name, 1))
    refusal = _told(name, _place(name, 2, 4))[0].replace(name.encode(), b"NAME")
    return {"hello": hello, **{f"welcome {i}": word for i, word in enumerate(welcome)}, "refusal": refusal}


def _place(name: str, rank: int, size: int = 3) -> rendezvous.Seat:
    return rendezvous.Seat(name, rank, size)


def _join(place: rendezvous.Seat) -> socket.socket:
    return rendezvous.connect(place, time.monotonic() + 10, 10)


def _told(name: str, *places: rendezvous.Seat) -> list[bytes]:
    """What the first of these members hears of a leader of three."""

    def lead() -> None:
        with contextlib.suppress(Mismatch):
            peers, memory = rendezvous.join_host(_place(name, 0), 4096, 10)
            peers.close()
            memory.close()

    leader = threading.Thread(target=lead)
    leader.start()
    members = [_join(place) for place in places]
    leader.join()
    heard = []
    while (message := socket.recv_fds(members[0], 4096, 1))[0]:
        heard.append(message[0])
        for descriptor in message[1]:
            os.close(descriptor)
    for member in members:
        member.close()
    return heard


# --- names and numbers that processes compare ---


def _announcements(folder: Path) -> dict[str, bytes]:
    note = Announcement(70_000, -3, "float32[3, 4] ü").encoded()
    return {"length": len(note).to_bytes(4, "big"), "note": bytes(note.numpy()).rstrip(b"\0")}


def _read_announcements(kept: dict[str, bytes]) -> None:
    room = Announcement.room()
    assert len(room) == int.from_bytes(kept["length"], "big")
    room.zero_()[: len(kept["note"])] = torch.frombuffer(bytearray(kept["note"]), dtype=torch.uint8)
    assert Announcement.decoded(room) == Announcement(70_000, -3, "float32[3, 4] ü")


def _names(folder: Path) -> dict[str, bytes]:
    layout = messages.layout_name((build(messages.Part), build(messages.Part)))
    numbers = {
        "signature of texts": TEXTS.number,
        "signature of a call": sign("all_reduce(sum)").number,
        "signature with a tensor": sign("all_reduce(sum)", torch.float32, (3, 4)).number,
    }
    shards = {f"shard of {key!r}, {block}": shard_of(key, block) for key in ("w", "layer.ü") for block in (0, 1025)}
    whole_numbers = {name: number.to_bytes(8, "big", signed=True) for name, number in (numbers | shards).items()}
    return {"layout": layout} | whole_numbers | {f"deal of {n}": bytes(deal(n)) for n in (1, 3)}


def _templates(folder: Path) -> dict[str, bytes]:
    """Messages of the short way, whose numbers are put in afterwards."""
    push, pushed = build(messages.Push), build(messages.Pushed)
    return {
        "push": bytes(Template(push, 4096).push(5)),
        "pushed": bytes(Template(pushed, 4096).pushed(5, 6)),
    }


WIRES: dict[str, Callable[[Path], dict[str, bytes]]] = {
    "frames": _frames,
    "ring": _ring,
    "handshake": _handshake,
    "lifelines": _lifelines,
    "rendezvous": _rendezvous,
    "announcements": _announcements,
    "names": _names,
    "templates": _templates,
}

read_back: dict[str, Callable[[dict[str, bytes]], None]] = {
    "frames": _read_frames,
    "handshake": _read_handshake,
    "lifelines": _read_lifelines,
    "announcements": _read_announcements,
}

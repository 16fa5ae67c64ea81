"""The keys of a store as a client knows them: which there are, and for each set of keys where its memory lies."""

import difflib
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from gradtide.compress import text_of_tag
from gradtide.errors import UnknownKey
from gradtide.store.client.engine import Engine
from gradtide.store.client.operations import Done
from gradtide.store.client.pending import Pending, raise_if_refused
from gradtide.store.client.tensors.values import Keys, PieceMap, keys_of, make_piece_map
from gradtide.store.rules.consistency import show_consistency
from gradtide.store.rules.published import split_beside
from gradtide.store.wire.messages import KeyInfo, KeySpec, UpdateRule, Version
from gradtide.store.wire.placement import beside

__all__ = ["Catalogue", "Info"]

_PIECE_MAPS_KEPT = 256


@dataclass(frozen=True, slots=True)
class Info:
    """A key, over all the servers that hold blocks of it."""

    key: str
    shape: tuple[int, ...]
    dtype: str
    update: UpdateRule
    consistency: str
    version: Version  # the latest of its shards
    round: int  # the latest that is closed everywhere; 0 outside of rounds
    servers: tuple[str, ...]
    size_bytes: int
    compress: str = ""  # how its values are made smaller on their way


class Catalogue:
    """Asks the servers for what it does not know."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._session = engine, engine.session
        self._lock = threading.Lock()
        self.piece_maps: dict[object, PieceMap] = {}  # by (keys, rows); another dict once they are forgotten

    def piece_map(self, key: Keys, rows: slice | None) -> PieceMap:
        """Worked out once; after that one lookup."""
        names = key if isinstance(key, str) else tuple(key) if hasattr(key, "__iter__") else keys_of(key)
        name = (names, None if rows is None else (rows.start, rows.stop))
        piece_map = self.piece_maps.get(name)
        return piece_map if piece_map is not None else self._make_piece_map(name, keys_of(key), rows)

    def _make_piece_map(self, name: object, keys: tuple[str, ...], rows: slice | None) -> PieceMap:
        specs = self._session.specs
        unknown = [key for key in keys if key not in specs]
        if unknown:
            self._learn(unknown)
        with self._engine.lock:
            layout = self._session.layout(keys, rows)
            piece_map = make_piece_map(layout, [specs[key] for key in keys], rows)
        with self._lock:
            if len(self.piece_maps) >= _PIECE_MAPS_KEPT:
                self.piece_maps = {}
            self.piece_maps[name] = piece_map
        return piece_map

    def _learn(self, keys: Sequence[str]) -> None:
        """Keys that somebody else initialised."""
        prefix = keys[0] if len(keys) == 1 else ""
        found = {info.spec.key: info.spec for infos in self.listed(prefix) for info in infos}
        for key in keys:
            if key not in found:
                self._no_such_key(key)
            with self._engine.lock:
                self._session.learn(found[key])

    def forget(self, key: str) -> None:
        """A key whose `init` was refused."""
        with self._engine.lock:
            self._session.forget(key)
        with self._lock:
            self.piece_maps = {}

    def listed(self, prefix: str) -> list[tuple[KeyInfo, ...]]:
        """The keys of each server."""

        def finish(done: Done[memoryview]) -> list[tuple[KeyInfo, ...]]:
            raise_if_refused(done)
            return [listed.keys for listed in done.listed]

        pending = Pending(self._engine, lambda: "keys", finish)
        self._engine.start(pending, lambda now_s: self._session.keys(prefix, now_s))
        return pending.wait()

    def names(self, prefix: str) -> list[str]:
        """Sorted."""
        return sorted({info.spec.key for infos in self.listed(prefix) for info in infos})

    def tags(self, keys: Sequence[str], tag: str) -> dict[str, str]:
        """Of keys that are there and are compressed by the same name: how their values are encoded, which stays."""
        specs = [info.spec for infos in self.listed(keys[0] if len(keys) == 1 else "") for info in infos]
        wanted, text = set(keys), text_of_tag(tag)
        return {s.key: s.compress for s in specs if s.key in wanted and text_of_tag(s.compress) == text}

    def beside(self, keys: Collection[str]) -> dict[str, dict[str, KeySpec]]:
        """What the rules of these keys keep beside their values, by name: what it is pulled by, and what it is like."""
        found: dict[str, dict[str, KeySpec]] = {key: {} for key in keys}
        for info in (info for infos in self.listed("") for info in infos if info.spec.key in found):
            for name, slot in split_beside(info.beside)[0].items():
                shape = () if slot.scalar else info.spec.shape
                spec = KeySpec(beside(info.spec.key, name), shape, slot.dtype, UpdateRule("assign"))
                found[info.spec.key].setdefault(name, spec)
        return found

    def know(self, specs: Iterable[KeySpec]) -> None:
        """What can be pulled by these names, too."""
        with self._engine.lock:
            for spec in specs:
                self._session.learn(spec)

    def spec(self, key: str) -> KeySpec:
        self.piece_map(key, None)
        return self._session.specs[key]

    def info(self, key: str) -> Info:
        listed = [info for infos in self.listed(key) for info in infos if info.spec.key == key]
        if not listed:
            self._no_such_key(key)
        return _merge([(self._server_of(info), info) for info in listed])

    def servers(self) -> list[dict[str, object]]:
        """The servers of the table: name, address, and how many shards, keys and bytes each holds."""
        listed: dict[str, list[KeyInfo]] = {}
        for infos in self.listed(""):
            for info in infos:
                listed.setdefault(self._server_of(info), []).append(info)
        table = self._session.table
        assert table is not None
        return [
            {
                "server": server.name,
                "address": server.address,
                "shards": table.owners.count(i),
                "keys": len(listed.get(server.name, ())),
                "bytes": sum(info.size_bytes for info in listed.get(server.name, ())),
            }
            for i, server in enumerate(table.servers)
        ]

    def round_now(self) -> int:
        """The last round that any key has closed."""
        infos = [info for infos in self.listed("") for info in infos if info.spec.delay is not None]
        return max((info.round for info in infos), default=0)

    def _no_such_key(self, key: str) -> NoReturn:
        near = difflib.get_close_matches(key, self.names(""), 1)
        hint = f"did you mean {near[0]!r}?" if near else "init it first"
        raise UnknownKey(f"unknown key {key!r}; {hint}")

    def _server_of(self, info: KeyInfo) -> str:
        table = self._session.table
        assert table is not None
        return table.servers[table.owners[info.shards[0]]].name


def _merge(found: Sequence[tuple[str, KeyInfo]]) -> Info:
    """From what each server says to what the user is told."""
    spec = found[0][1].spec
    return Info(
        key=spec.key,
        shape=spec.shape,
        dtype=spec.dtype,
        update=spec.update,
        consistency=show_consistency(spec.delay),
        version=max(info.version for _, info in found),
        round=min(info.round for _, info in found),
        servers=tuple(sorted(server for server, _ in found)),
        size_bytes=sum(info.size_bytes for _, info in found),
        compress=text_of_tag(spec.compress),
    )

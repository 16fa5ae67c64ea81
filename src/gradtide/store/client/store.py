"""The store as a user sees it: connect, init, push, pull, push_pull, configure, keys, info.

A tensor that was pushed must not change until its handle is done: its memory is what is sent, and sent again.
"""

import os
import socket
import weakref
from collections.abc import Callable, Collection, Mapping
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, Literal, Self, overload

import torch
from msgspec.structs import replace
from torch import Tensor

from gradtide.calling import refuse_foreign_names
from gradtide.checkpoint.shelf import Taken
from gradtide.compress import Compress
from gradtide.errors import ConfigError, PeerTimeout
from gradtide.events import Emit, ignore
from gradtide.handle import Handle
from gradtide.store.client.catalogue import Catalogue, Info
from gradtide.store.client.checkpointing import CheckpointOptions, begin_checkpoint, shelf_of
from gradtide.store.client.engine import Engine, Start
from gradtide.store.client.fast import Lanes
from gradtide.store.client.operations import Done
from gradtide.store.client.pending import Pending, raise_if_refused
from gradtide.store.client.session import Session, SessionOptions
from gradtide.store.client.tensors.compressed import StoreCompression
from gradtide.store.client.tensors.values import (
    Destination,
    Keys,
    PieceMap,
    Values,
    destinations,
    keys_of,
    make_piece_map,
    pieces,
    shape_like,
    sources,
)
from gradtide.store.rules.codecs import check_compress, encoded_bytes, has_older, tag_of
from gradtide.store.rules.consistency import parse_consistency
from gradtide.store.rules.tensors import DTYPES, bytes_of, dtype_name
from gradtide.store.rules.updates import is_optimizer, plain_argument
from gradtide.store.wire.coordinators import parse_coordinators
from gradtide.store.wire.messages import NO_WORKER, KeySpec, Member, Source, Table, UpdateRule, Version, new_token
from gradtide.store.wire.placement import beside
from gradtide.timeouts import Timeouts, check_timeouts, default_timeouts
from gradtide.transport.keys import read_credentials

__all__ = ["Store", "connect"]

_OF_OTHERS = {
    "host port url uri": "the address is one argument: connect('tcp:host:7000'), or connect('unix:/path')",
    "rank worker_id": "it is called worker=",
    "num_workers world_size": "it is called workers=",
    "secret password token key": "name the file that has it: secret_file=",
    "timeout timeout_s": "say timeouts=gradtide.Timeouts(connect_s=5)",
    "sync mode": "it is called consistency=",
}


@refuse_foreign_names(_OF_OTHERS)
def connect(
    address: str,
    worker: int | None = None,
    *,
    secret_file: str | Path | None = None,
    insecure_network: bool = False,
    workers: int = 0,
    consistency: str = "async",
    timeouts: Timeouts | None = None,
    emit: Emit = ignore,
) -> "Store":
    """Connects to the store whose coordinator listens at `address`; several coordinators are listed with commas.

    With `worker` this process joins the rounds as that worker; `workers` says how many the first round should wait
    for. `consistency` is what keys are initialised with: "async", "bsp" or "bounded:k". `emit` is called when replicas
    are missing (`Degraded`). Over TCP it needs a `secret_file` (otherwise GRADTIDE_SECRET_FILE names it). Traffic to
    other machines is encrypted, unless `insecure_network` says that anybody on the path may read and change it.
    `timeouts` says how long to wait, in seconds. Raises ConfigError for an argument that makes no sense, PeerLost if
    nobody is at the address, PeerTimeout if no server comes in time, and AuthenticationError for a wrong secret.
    """
    where, delay = parse_coordinators(address), parse_consistency(consistency)
    check_timeouts("connect", timeouts)
    credentials = read_credentials(secret_file, insecure_network=insecure_network)
    if worker is not None and worker < 0:
        raise ConfigError(f"worker {worker} makes no sense; workers are numbered from 0")
    name = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
    patience = timeouts or default_timeouts()
    session: Session[memoryview] = Session(
        name if worker is None else f"worker-{worker}-{name}",
        0,
        NO_WORKER if worker is None else worker,
        workers,
        SessionOptions(resend_s=patience.resend_s, resend_most_s=8 * patience.resend_s),
        token=new_token(),
        encoded_bytes=encoded_bytes,
    )
    engine = Engine(session, where, credentials, patience, emit)
    try:
        engine.wait_until_ready()
    except BaseException:
        engine.close()
        raise
    return Store(engine, delay)


class Store:
    """A key-value store over many servers. Use it from any thread; close it, or use it in a `with`. A store that is
    dropped without that leaves when all its operations are done."""

    def __init__(self, engine: Engine, delay: int | None = None) -> None:
        self._engine, self._session = engine, engine.session
        self._delay = delay  # what keys are initialised with, as KeySpec has it
        self._catalogue = Catalogue(engine)
        self._compression = StoreCompression(engine)
        self._fast = Lanes(engine, self._catalogue, self._receiving)
        self.last: Done[memoryview] | None = None  # what the latest pull of any thread reported
        weakref.finalize(self, engine.let_go).atexit = False

    # --- values ---

    def init(
        self,
        key: str | Mapping[str, Tensor],
        value: Tensor | None = None,
        *,
        update: UpdateRule | None = None,
        consistency: str | None = None,
        reject_nan: bool = False,
        compress: str | Compress | None = None,
    ) -> None:
        """Creates a key, or several. The same again is fine; other values, shape, dtype or update rule are refused.

        `compress` ("int8", "topk:0.01") makes pushes to it smaller, and in rounds also what workers pull.
        """
        if not isinstance(key, str | Mapping):
            raise ConfigError(f"init: a key is a name, not {type(key).__name__}; say init('weights', tensor)")
        if not isinstance(update, UpdateRule | None):
            raise ConfigError(f"init: update={update!r} is no rule; say update=gradtide.update('sgd', lr=0.1)")
        named = {key: value} if isinstance(key, str) else dict(key)
        delay = self._delay if consistency is None else parse_consistency(consistency)
        handles, tag = [], tag_of(compress)
        there = self._catalogue.tags(list(named), tag) if has_older(tag) else {}
        for name, tensor in named.items():
            spec = replace(_spec(name, tensor, update, delay, reject_nan), compress=there.get(name, tag))
            check_compress(spec, optimizer=is_optimizer(spec.update))
            handles.append(self._init(spec, tensor))
            while len(handles) > 64:
                handles.pop(0).wait()
        for handle in handles:
            handle.wait()

    def _init(self, spec: KeySpec, value: Tensor | None) -> Handle[None]:
        assert value is not None
        kept = value.detach().to("cpu").contiguous()
        with self._engine.lock:
            self._session.learn(spec)
            piece_map = make_piece_map(self._session.layout((spec.key,)), (spec,), None)
        values = pieces(piece_map, [bytes_of(kept)])

        def finish(done: Done[memoryview]) -> None:
            if done.refused is not None:
                self._catalogue.forget(spec.key)
            raise_if_refused(done)

        return self._begin(
            Pending(self._engine, lambda: f"init of {spec.key!r}", finish),
            lambda now_s: self._session.init(spec, values, now_s),
        )

    @overload
    def push(
        self,
        key: Keys,
        value: Values | None = ...,
        *,
        weight: float | None = ...,
        wait: Literal[False] = ...,
        flush: bool = ...,
        whole: bool = ...,
    ) -> Handle[None]: ...
    @overload
    def push(
        self,
        key: Keys,
        value: Values | None = ...,
        *,
        weight: float | None = ...,
        wait: Literal[True],
        flush: bool = ...,
        whole: bool = ...,
    ) -> None: ...

    def push(
        self,
        key: Keys,
        value: Values | None = None,
        *,
        weight: float | None = None,
        wait: bool = False,
        flush: bool = False,
        whole: bool = False,
    ) -> Handle[None] | None:
        """Adds a contribution to one key, a list of keys or a dict. The handle is done when it is in the value.

        Outside of rounds that is when it was applied; in bsp and bounded, when its round is closed. For a compressed
        key, `whole` sends this push uncompressed, and `flush` also sends all that compression has left out so far.
        """
        piece_map = self._catalogue.piece_map(key, None)
        views = sources(piece_map, key, value, "push")
        if piece_map.compressed:
            what = partial(_describe, "push", piece_map)
            handle = self._compression.push(what, piece_map, views, weight, flush=flush, whole=whole)
            return handle.wait() if wait else self._in_background(handle)
        pending: Pending[None] = Pending(self._engine, lambda: _describe("push", piece_map), raise_if_refused)
        handle = self._begin(
            pending, lambda now_s: self._session.push(piece_map.layout, views, now_s=now_s, weight=weight)
        )
        return handle.wait() if wait else self._in_background(handle)

    def pull(
        self,
        key: Keys,
        *,
        rows: slice | None = None,
        out: Values | None = None,
        at_least: Mapping[int, Version] | None = None,
        wait: bool = True,
    ) -> Any:
        """The values of one key, a list or a dict; into `out` where given. With wait=False a handle of them.

        A dict's own tensors are where its values are received. `at_least` is the `versions` of an earlier report.
        """
        piece_map = self._catalogue.piece_map(key, rows)
        landing = destinations(piece_map, key, out if out is not None or not isinstance(key, Mapping) else key)
        if piece_map.compressed:
            what, result = partial(_describe, "pull", piece_map), self._result_of(key, landing)
            handle = self._compression.pull(what, piece_map, landing, result, rows=rows, at_least=at_least)
            return handle.wait() if wait else self._in_background(handle)
        handle = self._begin(
            self._receiving("pull", piece_map, key, landing),
            lambda now_s: self._session.pull(piece_map.layout, now_s=now_s, at_least=at_least),
        )
        return handle.wait() if wait else self._in_background(handle)

    def pull_now(self, named: Mapping[str, Tensor]) -> None:
        """The values as they are when this is asked, into these tensors: outside of rounds, and exact where workers are
        given less of them, since their key is compressed."""
        specs = {key: self._catalogue.spec(key) for key in named}
        told = {key: KeySpec(beside(key), spec.shape, spec.dtype, UpdateRule("assign")) for key, spec in specs.items()}
        self._catalogue.know(told.values())
        self.pull({told[key].key: tensor for key, tensor in named.items()})

    def optimizer_state(self, keys: Collection[str]) -> dict[str, dict[str, Tensor]]:
        """What the servers' optimizers keep of these keys, by torch's own names; nothing where none has taken a step.
        In rounds it is of the last one that is closed: ask between two steps."""
        found = self._catalogue.beside(keys)
        told = [spec for states in found.values() for spec in states.values()]
        self._catalogue.know(told)
        if not told:
            return {}
        values = self.pull({spec.key: torch.empty(spec.shape, dtype=DTYPES[spec.dtype]) for spec in told})
        return {
            key: {name: values[spec.key] for name, spec in states.items()} for key, states in found.items() if states
        }

    def push_pull(
        self,
        key: Keys,
        value: Values | None = None,
        *,
        out: Values | None = None,
        weight: float | None = None,
        wait: bool = True,
    ) -> Any:
        """A push, and the values right after it was applied, in one trip. With wait=False a handle of them.

        For compressed keys it is a push and then a pull, so it waits.
        """
        if wait and (found := self._fast.try_push_pull(key, value, out, weight)) is not None:
            return found
        piece_map = self._catalogue.piece_map(key, None)
        if piece_map.compressed:
            if not wait:
                raise ConfigError(f"{_describe('push_pull', piece_map)} can't be left to wait for: it is compressed")
            self.push(key, value, weight=weight, wait=True)
            return self.pull(key if value is not None else list(keys_of(key)), out=out)
        views = sources(piece_map, key, value, "push_pull")
        landing = destinations(piece_map, key, out)
        handle = self._begin(
            self._receiving("push_pull", piece_map, key, landing),
            lambda now_s: self._session.push(piece_map.layout, views, now_s=now_s, weight=weight, pull=True),
        )
        return handle.wait() if wait else self._in_background(handle)

    def configure(self, key: str, *, from_round: int = 0, **changes: Any) -> None:
        """Changes arguments of a key's update rule (`lr=0.01`), now or from a round on."""
        self._catalogue.piece_map(key, None)
        if not changes:
            raise ConfigError(f"configure of {key!r} changes nothing; say what, as in lr=0.01")
        plain = {name: plain_argument(name, value) for name, value in changes.items()}
        self._begin(
            Pending(self._engine, lambda: f"configure of {key!r}", raise_if_refused),
            lambda now_s: self._session.configure(key, plain, from_round, now_s),
        ).wait()

    # --- what compression has left out ---

    def residuals(self, keys: Collection[str] | None = None) -> dict[str, Tensor]:
        """What compression has left out of this client's pushes so far, by key: it is part of the next push. A program
        that keeps its own checkpoints has to keep it, too. Residuals of several workers may be added up, and given to
        any of them."""
        return self._compression.read_residuals(keys)

    def add_residuals(self, residuals: Mapping[str, Tensor], *, instead: bool = False) -> None:
        """The next pushes carry this too, or `instead` of what was left out so far."""
        for key, value in residuals.items():
            piece_map = self._catalogue.piece_map(key, None)
            sources(piece_map, key, value, "add_residuals")
            if not piece_map.compressed:
                raise ConfigError(f"{key!r} is not compressed, so nothing is ever left out of it")
        self._compression.add_residuals(residuals, instead=instead)

    def flush_residuals(self) -> None:
        """Pushes all that compression has left out so far, each key's as a push of its own. This is for keys outside of
        rounds: in rounds, a worker that leaves sends it with its last push."""
        for key, left in self.residuals().items():
            if self._session.specs[key].delay is None:
                self.push(key, torch.zeros_like(left), flush=True, wait=True)

    def scale_residuals(self, factor: float, keys: Collection[str] | None = None) -> None:
        """Where servers step by SGD and the learning rate changes: old / new, so that it counts what it would have."""
        if not isfinite(factor):
            raise ConfigError(f"residuals can't be scaled by {factor}; leave them as they are while the rate is 0")
        self._compression.scale_residuals(factor, keys)

    # --- checkpoints ---

    @overload
    def checkpoint(
        self, path: str | os.PathLike[str], *, keep: int | None = ..., timeout_s: float = ..., wait: Literal[True] = ...
    ) -> Taken: ...
    @overload
    def checkpoint(
        self, path: str | os.PathLike[str], *, keep: int | None = ..., timeout_s: float = ..., wait: Literal[False]
    ) -> Handle[Taken]: ...

    def checkpoint(
        self, path: str | os.PathLike[str], *, keep: int | None = None, timeout_s: float = 600.0, wait: bool = True
    ) -> Taken | Handle[Taken]:
        """Writes everything to a new folder in `path`, which all servers must see; `keep` removes all but the last n.

        Workers call it between two steps. The cut is made when this begins; with wait=False a handle is returned then,
        and the servers write while training goes on. Until the handle is done there is no such checkpoint.
        """
        handle = self.begin_checkpoint(path, CheckpointOptions(keep, timeout_s=timeout_s))
        return handle.wait(timeout_s) if wait else handle

    def begin_checkpoint(self, path: str | os.PathLike[str], options: CheckpointOptions) -> Handle[Taken]:
        """The same with more options, for callers that add files of their own."""
        if options.keep is not None and options.keep < 1:
            raise ConfigError(f"keep={options.keep} would leave no checkpoint; keep 1 or more")
        return begin_checkpoint(self._engine, shelf_of(path), options, self._catalogue.round_now)

    def rewind(self) -> Source | None:
        """After RolledBack in a store that rewinds: takes note of it; until then every operation raises it again.

        Returns the checkpoint's folder and the round that everything is at now: go on with the next step. None: only
        some shards went back, or none, so go on as before.
        """
        with self._engine.lock:
            source = self._session.rewind()
            if source is not None:
                self._compression.forget()
            return source

    # --- what is there ---

    def keys(self, prefix: str = "") -> list[str]:
        """The names of the keys, sorted."""
        return self._catalogue.names(prefix)

    def info(self, key: str) -> Info:
        """Shape, dtype, version, servers and bytes of a key."""
        return self._catalogue.info(key)

    def servers(self) -> list[dict[str, object]]:
        """The servers of the table: name, address, and how many shards, keys and bytes each holds."""
        return self._catalogue.servers()

    @property
    def table(self) -> Table:
        """Which server is primary of which shard, and who follows it, as this client knows it."""
        assert self._session.table is not None
        return self._session.table

    def bytes_by_server(self, keys: list[str]) -> dict[str, int]:
        """How much of these keys' values each server is primary of, as this client knows it."""
        table, found = self.table, dict[str, int]()
        for part in self._catalogue.piece_map(keys, None).layout.parts:
            name = table.servers[table.owners[part.shard]].name
            found[name] = found.get(name, 0) + sum(piece.size_bytes for piece in part.pieces)
        return found

    @property
    def step(self) -> int:
        """The step that this worker is in; 0 outside of rounds."""
        return self._session.step

    @property
    def sequence(self) -> int:
        """The number of this client's last request."""
        return self._session.sequence

    @property
    def members(self) -> tuple[int, ...]:
        """The numbers of the workers that are in this worker's step, in order: it changes as workers come and go."""
        with self._engine.lock:
            return self._session.members

    @property
    def round_members(self) -> tuple[Member, ...]:
        """The workers that are listed: which client each is, and from which round on it is in."""
        with self._engine.lock:
            return self._session.round_members

    @property
    def first_rounds(self) -> dict[int, int]:
        """From which round on each worker is in."""
        return {member.worker: member.from_round for member in self.round_members}

    @property
    def ended(self) -> list[Member]:
        """Workers that have gone, or have said that they go: `until` is the first round without them."""
        with self._engine.lock:
            return list(self._session.ended.values())

    def wait_for_members(self, count: int, timeout_s: float) -> None:
        """Waits until this client knows that `count` workers are in this worker's step; others may know it earlier."""
        if not self._engine.wait_for_word(lambda: len(self._session.members) >= count, timeout_s):
            raise PeerTimeout(f"of {count} workers only {len(self.members)} are in the rounds after {timeout_s:g} s")

    def wait_until_members_are_known(self, timeout_s: float) -> None:
        """After a pull, waits until `members` are those of the step that this worker begins, as servers know them."""
        if not self._engine.wait_for_word(lambda: self._session.knows_members, timeout_s):
            raise PeerTimeout(
                f"the coordinator has not said within {timeout_s:g} s who is in step {self.step}, though the servers "
                "know; is it gone?"
            )

    def begin_at(self, step: int) -> None:
        """Makes this the worker's next step, if it is not there yet; it passes the steps before without a push."""
        with self._engine.turn as session:
            session.step = max(session.step, step)

    def announce_leave(self, *, now: bool = False) -> int:
        """Says that this worker will leave in a few rounds, so that the others share the batches of the rounds after
        that; or, with `now`, that it has taken its last step. Returns the first step that it need not take. Close the
        store when the last push before that step is done: until then the others know that its part of those rounds is
        there."""
        with self._engine.turn as session:
            until, told = session.announce_leave(now=now)
            self._engine.obey(told)
            self._compression.until = until
        return until

    def wait_until_leave_is_known(self, timeout_s: float) -> None:
        """After `announce_leave`, waits until the coordinator has told all. This worker then knows which workers left
        before."""
        self._engine.wait_for_word(lambda: self._session.leave_is_known, timeout_s)

    def close(self) -> None:
        """Leaves the store; operations that are still open fail."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- within ---

    def _begin(self, pending: Pending[Any], start: Start) -> Pending[Any]:
        self._engine.start(pending, start)
        return pending

    def _in_background(self, handle: Pending[Any]) -> Handle[Any]:
        self._engine.leave_to_background()
        return handle

    def _result_of(self, keys: Keys, landing: Destination) -> Callable[[Done[memoryview]], Any]:
        def finish(done: Done[memoryview]) -> Any:
            self.last = done
            raise_if_refused(done)
            return shape_like(keys, landing.result())

        return finish

    def _receiving(self, what: str, piece_map: PieceMap, keys: Keys, landing: Destination) -> Pending[Any]:
        def targets(shard: int) -> list[memoryview]:
            return landing.targets(*piece_map.of_shard[shard])

        return Pending(self._engine, lambda: _describe(what, piece_map), self._result_of(keys, landing), targets)


def _spec(name: str, value: Tensor | None, update: UpdateRule | None, delay: int | None, reject_nan: bool) -> KeySpec:
    if not isinstance(value, Tensor):
        raise ConfigError(f"init of {name!r} needs a tensor, not {type(value).__name__}")
    dtype = dtype_name(value.dtype)
    if dtype is None:
        raise ConfigError(f"{name!r} is {value.dtype}, which the store has not; use a float, integer or bool dtype")
    return KeySpec(name, tuple(value.shape), dtype, update or UpdateRule("assign"), delay, reject_nan)


def _describe(what: str, piece_map: PieceMap) -> str:
    keys = piece_map.layout.keys
    return f"{what} of {keys[0]!r}" if len(keys) == 1 else f"{what} of {keys[0]!r} and {len(keys) - 1} more keys"

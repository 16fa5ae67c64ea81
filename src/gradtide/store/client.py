"""The store as a user sees it: connect, init, push, pull, push_pull, configure, keys, info.

A tensor that was pushed must not change until its handle is done: its memory is what is sent, and sent again.
"""

import difflib
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, overload

from torch import Tensor

from gradtide.checkpoint.shelf import Taken
from gradtide.errors import ConfigError, NotMember, RolledBack, StaleGradient, StoreError, UnknownKey
from gradtide.events import Emit, ignore
from gradtide.handle import Handle
from gradtide.store.engine import Engine, Start, Timeouts
from gradtide.store.lane import Lane, is_small
from gradtide.store.messages import NO_WORKER, KeyInfo, KeySpec, Refused, Source, Table, UpdateRule, Version
from gradtide.store.operations import Done
from gradtide.store.pending import Pending
from gradtide.store.session import Session, SessionOptions
from gradtide.store.summary import Info, merge, parse_consistency
from gradtide.store.taking import CheckpointOptions, begin_checkpoint, shelf_of
from gradtide.store.tensors import bytes_of, dtype_name
from gradtide.store.values import (
    Destination,
    Keys,
    Plan,
    Values,
    destinations,
    keys_of,
    make_plan,
    pieces,
    shape_like,
    sources,
)
from gradtide.transport.authenticate import parse_address, read_secret_file

__all__ = ["Store", "connect"]

_ERRORS: dict[str, type[StoreError]] = {
    "unknown_key": UnknownKey,
    "not_member": NotMember,
    "incarnation": NotMember,
    "stale": StaleGradient,
    "rolled_back": RolledBack,
}
_PLANS_KEPT = 256


def connect(
    address: str,
    worker: int | None = None,
    *,
    secret_file: str | Path | None = None,
    workers: int = 0,
    consistency: str = "async",
    timeouts: Timeouts | None = None,
    emit: Emit = ignore,
) -> "Store":
    """Connects to the store whose coordinator listens at `address`.

    With `worker` this process joins the rounds as that worker; `workers` says how many the first round should wait
    for. `consistency` is what keys are initialised with: "async", "bsp" or "bounded(k)". `emit` hears when replicas are
    missing (`Degraded`).
    """
    where = parse_address(address)
    secret = read_secret_file(secret_file) if secret_file is not None else b""
    if worker is not None and worker < 0:
        raise ConfigError(f"worker {worker} makes no sense; workers are numbered from 0")
    name = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
    patience = timeouts or Timeouts()
    session: Session[memoryview] = Session(
        name if worker is None else f"worker-{worker}-{name}",
        time.time_ns() // 1000,
        NO_WORKER if worker is None else worker,
        workers,
        SessionOptions(resend_s=patience.resend_s, resend_most_s=8 * patience.resend_s),
    )
    engine = Engine(session, where, secret, patience, emit)
    try:
        engine.wait_until_ready()
    except BaseException:
        engine.close()
        raise
    return Store(engine, consistency)


class Store:
    """A key-value store over many servers. Use it from any thread; close it, or use it in a `with`."""

    def __init__(self, engine: Engine, consistency: str = "async") -> None:
        self._engine, self._session = engine, engine.session
        self._delay = parse_consistency(consistency)
        self._plans: dict[object, Plan] = {}
        self._lanes: dict[object, Lane] = {}  # by key: those that are small
        self._plans_lock = threading.Lock()
        self.last: Done[memoryview] | None = None  # what the latest pull of any thread reported

    # --- values ---

    def init(
        self,
        key: str | Mapping[str, Tensor],
        value: Tensor | None = None,
        *,
        update: UpdateRule | None = None,
        consistency: str | None = None,
        reject_nan: bool = False,
    ) -> None:
        """Creates a key, or several. The same again is fine; other values, shape, dtype or update rule are refused."""
        named = {key: value} if isinstance(key, str) else dict(key)
        delay = self._delay if consistency is None else parse_consistency(consistency)
        handles = []
        for name, tensor in named.items():
            handles.append(self._init(_spec(name, tensor, update, delay, reject_nan), tensor))
            while len(handles) > 64:
                handles.pop(0).wait()
        for handle in handles:
            handle.wait()

    def _init(self, spec: KeySpec, value: Tensor | None) -> Handle[None]:
        assert value is not None
        kept = value.detach().to("cpu").contiguous()
        with self._engine.lock:
            self._session.learn(spec)
            plan = make_plan(self._session.layout((spec.key,)), (spec,), None)
        values = pieces(plan, [bytes_of(kept)])

        def finish(done: Done[memoryview]) -> None:
            if done.refused is not None:
                self._forget(spec.key)
            _raise_if_refused(done)

        return self._begin(
            Pending(self._engine, lambda: f"init of {spec.key!r}", finish),
            lambda now_s: self._session.init(spec, values, now_s),
        )

    @overload
    def push(
        self, key: Keys, value: Values | None = ..., *, weight: float | None = ..., wait: Literal[False] = ...
    ) -> Handle[None]: ...
    @overload
    def push(
        self, key: Keys, value: Values | None = ..., *, weight: float | None = ..., wait: Literal[True]
    ) -> None: ...

    def push(
        self, key: Keys, value: Values | None = None, *, weight: float | None = None, wait: bool = False
    ) -> Handle[None] | None:
        """Adds a contribution to one key, a list of keys or a dict. The handle is done when it is in the value.

        Outside of rounds that is when it was applied; in bsp and bounded, when its round is closed.
        """
        plan = self._plan(key, None)
        views = sources(plan, key, value, "push")
        pending: Pending[None] = Pending(self._engine, lambda: _describe("push", plan), _raise_if_refused)
        handle = self._begin(pending, lambda now_s: self._session.push(plan.layout, views, now_s=now_s, weight=weight))
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
        plan = self._plan(key, rows)
        landing = destinations(plan, key, out if out is not None or not isinstance(key, Mapping) else key)
        handle = self._begin(
            self._receiving("pull", plan, key, landing),
            lambda now_s: self._session.pull(plan.layout, now_s=now_s, at_least=at_least),
        )
        return handle.wait() if wait else self._in_background(handle)

    def push_pull(
        self,
        key: Keys,
        value: Values | None = None,
        *,
        out: Values | None = None,
        weight: float | None = None,
        wait: bool = True,
    ) -> Any:
        """A push, and the values right after it was applied, in one trip. With wait=False a handle of them."""
        if wait and type(key) is str and key in self._lanes:
            found = self._lanes[key].push_pull(value, out, weight)
            if found is not None:
                return found if isinstance(found, Tensor) else found.wait()
        plan = self._plan(key, None)
        views = sources(plan, key, value, "push_pull")
        landing = destinations(plan, key, out)
        handle = self._begin(
            self._receiving("push_pull", plan, key, landing),
            lambda now_s: self._session.push(plan.layout, views, now_s=now_s, weight=weight, pull=True),
        )
        return handle.wait() if wait else self._in_background(handle)

    def configure(self, key: str, *, from_round: int = 0, **changes: bool | int | float) -> None:
        """Changes arguments of a key's update rule (`lr=0.01`), now or from a round on."""
        self._plan(key, None)
        if not changes:
            raise ConfigError(f"configure of {key!r} changes nothing; say what, as in lr=0.01")
        self._begin(
            Pending(self._engine, lambda: f"configure of {key!r}", _raise_if_refused),
            lambda now_s: self._session.configure(key, changes, from_round, now_s),
        ).wait()

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
        """The same, with more to say; for those who add files of their own."""
        if options.keep is not None and options.keep < 1:
            raise ConfigError(f"keep={options.keep} would leave no checkpoint; keep 1 or more")
        return begin_checkpoint(self._engine, shelf_of(path), options, self._round_now)

    def rewind(self) -> Source | None:
        """After RolledBack in a store that rewinds: takes note of it; until then every operation raises it again.

        Returns the checkpoint's folder and the round that everything is at now: go on with the next step. None: only
        some shards went back, or none, so go on as before.
        """
        with self._engine.lock:
            return self._session.rewind()

    def _round_now(self) -> int:
        """The last round that any key has closed."""
        infos = [info for infos in self._listed("") for info in infos if info.spec.delay is not None]
        return max((info.round for info in infos), default=0)

    # --- what is there ---

    def keys(self, prefix: str = "") -> list[str]:
        """The names of the keys, sorted."""
        return sorted({info.spec.key for infos in self._listed(prefix) for info in infos})

    def info(self, key: str) -> Info:
        """Shape, dtype, version, servers and bytes of a key."""
        listed = [info for infos in self._listed(key) for info in infos if info.spec.key == key]
        if not listed:
            self._no_such_key(key)
        return merge([(self._server_of(info), info) for info in listed])

    def servers(self) -> list[dict[str, object]]:
        """The servers of the table: name, address, and how many shards, keys and bytes each holds."""
        listed: dict[str, list[KeyInfo]] = {}
        for infos in self._listed(""):
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

    @property
    def table(self) -> Table:
        """Which server is primary of which shard, and who follows it, as this client knows it."""
        assert self._session.table is not None
        return self._session.table

    @property
    def step(self) -> int:
        """The step that this worker is in; 0 outside of rounds."""
        return self._session.step

    @property
    def members(self) -> tuple[int, ...]:
        """The numbers of the workers that are in this worker's step, in order: it changes as workers come and go."""
        with self._engine.lock:
            return self._session.members

    def announce_leave(self) -> int:
        """Says that this worker will go in a few rounds, so that the others share the batches of those that follow;
        returns the first step that it need not take. Close the store then."""
        with self._engine.lock:
            self._engine.give_up_quick()
            until, told = self._session.announce_leave()
            self._engine.obey(told)
        return until

    def close(self) -> None:
        """Leaves the store; what is still open fails."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- within ---

    def _begin(self, pending: Pending[Any], start: Start) -> Pending[Any]:
        self._engine.start(pending, start)
        return pending

    def _in_background(self, handle: Pending[Any]) -> Handle[Any]:
        self._engine.leave_to_background()
        return handle

    def _receiving(self, what: str, plan: Plan, keys: Keys, landing: Destination) -> Pending[Any]:
        def finish(done: Done[memoryview]) -> Any:
            self.last = done
            _raise_if_refused(done)
            return shape_like(keys, landing.result())

        def targets(shard: int) -> list[memoryview]:
            return landing.targets(*plan.of_shard[shard])

        return Pending(self._engine, lambda: _describe(what, plan), finish, targets)

    def _plan(self, key: Keys, rows: slice | None) -> Plan:
        name = (key if isinstance(key, str) else tuple(key), None if rows is None else (rows.start, rows.stop))
        plan = self._plans.get(name)
        return plan if plan is not None else self._make_plan(name, keys_of(key), rows)

    def _make_plan(self, name: object, keys: tuple[str, ...], rows: slice | None) -> Plan:
        specs = self._session.specs
        unknown = [key for key in keys if key not in specs]
        if unknown:
            self._learn(unknown)
        with self._engine.lock:
            layout = self._session.layout(keys, rows)
            plan = make_plan(layout, [specs[key] for key in keys], rows)
        with self._plans_lock:
            if len(self._plans) >= _PLANS_KEPT:
                self._plans.clear()
                self._lanes.clear()
            self._plans[name] = plan
            if rows is None and is_small(plan):
                self._lanes[keys[0]] = Lane(self._engine, plan, partial(self._receiving, "push_pull", plan, keys[0]))
        return plan

    def _learn(self, keys: Sequence[str]) -> None:
        """Keys that somebody else initialised."""
        prefix = keys[0] if len(keys) == 1 else ""
        found = {info.spec.key: info.spec for infos in self._listed(prefix) for info in infos}
        for key in keys:
            if key not in found:
                self._no_such_key(key)
            with self._engine.lock:
                self._session.learn(found[key])

    def _forget(self, key: str) -> None:
        with self._engine.lock:
            self._session.forget(key)
        with self._plans_lock:
            self._plans.clear()
            self._lanes.clear()

    def _no_such_key(self, key: str) -> NoReturn:
        near = difflib.get_close_matches(key, self.keys(), 1)
        hint = f"did you mean {near[0]!r}?" if near else "init it first"
        raise UnknownKey(f"unknown key {key!r}; {hint}")

    def _listed(self, prefix: str) -> list[tuple[KeyInfo, ...]]:
        def finish(done: Done[memoryview]) -> list[tuple[KeyInfo, ...]]:
            _raise_if_refused(done)
            return [listed.keys for listed in done.listed]

        pending = Pending(self._engine, lambda: "keys", finish)
        self._begin(pending, lambda now_s: self._session.keys(prefix, now_s))
        return pending.wait()

    def _server_of(self, info: KeyInfo) -> str:
        table = self._session.table
        assert table is not None
        return table.servers[table.owners[info.shards[0]]].name


def _spec(name: str, value: Tensor | None, update: UpdateRule | None, delay: int | None, reject_nan: bool) -> KeySpec:
    if not isinstance(value, Tensor):
        raise ConfigError(f"init of {name!r} needs a tensor, not {type(value).__name__}")
    dtype = dtype_name(value.dtype)
    if dtype is None:
        raise ConfigError(f"{name!r} is {value.dtype}, which the store has not; use a float, integer or bool dtype")
    return KeySpec(name, tuple(value.shape), dtype, update or UpdateRule("assign"), delay, reject_nan)


def _raise_if_refused(done: Done[memoryview]) -> None:
    refused: Refused | None = done.refused
    if refused is not None:
        raise _ERRORS.get(refused.reason, StoreError)(refused.text or f"the store refuses: {refused.reason}")


def _describe(what: str, plan: Plan) -> str:
    keys = plan.layout.keys
    return f"{what} of {keys[0]!r}" if len(keys) == 1 else f"{what} of {keys[0]!r} and {len(keys) - 1} more keys"

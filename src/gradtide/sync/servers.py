"""A parameter server: gradients are pushed as backward goes on, values are pulled at the step.

Each parameter is a key under its own name. With an elementwise optimizer the servers step, by torch.optim itself; with
any other, or with norm clipping, they only average, and every worker takes the same step with what it pulls.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradtide.decrees import Dismissed
from gradtide.errors import ConfigError, PeerLost, PeerTimeout
from gradtide.events import Emit, GradientsSynchronised, Waiting
from gradtide.handle import Handle
from gradtide.store import Store, connect, update
from gradtide.store.updates import ELEMENTWISE
from gradtide.sync.alone import take_step
from gradtide.sync.buckets import cut_into_buckets
from gradtide.sync.job import Job
from gradtide.sync.ways import Trained

__all__ = ["Servers", "ServersWay"]

_NOT_ARGUMENTS = frozenset({"params", "foreach", "fused", "capturable", "differentiable", "initial_lr"})
_LOOK_S = 0.02
_USED = "which parameters have a gradient"  # a key of its own where the workers step


@dataclass(frozen=True, slots=True)
class Servers:
    """`sync=Servers("bsp")`, "bounded:2" or "async"; at the job's own servers, or at `address`."""

    mode: str = "bsp"
    address: str | None = None
    secret_file: str | Path | None = None

    @property
    def consistency(self) -> str:
        """As the store calls it."""
        name, _, delay = self.mode.partition(":")
        if self.mode in ("bsp", "async"):
            return self.mode
        if name == "bounded" and delay.isdecimal():
            return f"bounded({delay})"
        raise ConfigError(f"Servers({self.mode!r}) makes no sense; say 'bsp', 'async' or 'bounded:2'")


class ServersWay:
    """The way of workers whose parameters live on servers."""

    def __init__(self, trained: Trained, job: Job, servers: Servers, emit: Emit, *, overlap: bool = True) -> None:
        self._emit = emit
        self._trained, self._job, self._overlap, self._mode = trained, job, overlap, servers.mode
        address = servers.address or job.store
        consistency = servers.consistency
        if address is None:
            raise ConfigError("this job has no servers; start it with gradtide run --servers 2, or give their address=")
        self.servers_step = _can_step_on_servers(trained)
        if not self.servers_step and servers.mode == "async":
            raise ConfigError(
                f"in async every push is an update, so the servers must step, and they can't with {_why_not(trained)}; "
                "use 'bsp' or 'bounded:2'"
            )
        who = "the servers step" if self.servers_step else f"the workers step ({_why_not(trained)})"
        self.reason = f"servers at {address}, {servers.mode}; {who}"
        self._number, self._took_over, self._changed = job.rank, False, set[str]()
        self._until = 0  # the first step that this worker need not take, once it is to go
        self.store = self._connect(address, consistency, servers.secret_file)
        if servers.mode != "async":
            job.behind = max(0, self.store.step - 1)  # it begins with the first round that it is in
        self._follow_members()
        self._values = {n: p.detach() for n, p in zip(trained.names, trained.parameters, strict=True)}
        self._buffers = {f"buffer {name}": buffer for name, buffer in trained.buffers}
        self._gradients = {} if self.servers_step else {n: torch.zeros_like(v) for n, v in self._values.items()}
        if not self.servers_step:
            self._gradients[_USED] = torch.zeros(len(trained.parameters))
        self._waiting: list[Handle[None]] = []
        self._bucket_of: dict[int, set[int]] = {}
        self._start_buckets()
        self._options = self._read_options()
        try:
            self._move_in()
        except BaseException:
            self.store.close()
            raise

    def _connect(self, address: str, consistency: str, secret_file: str | Path | None) -> Store:
        """One that was started again is refused while the lease of the one that died still runs."""
        job, deadline_s = self._job, time.monotonic() + self._job.timeout_s
        while True:
            try:
                return connect(
                    address, worker=self._number, workers=job.size, consistency=consistency, secret_file=secret_file
                )
            except PeerLost:
                if not job.incarnation or time.monotonic() > deadline_s:
                    raise
                time.sleep(_LOOK_S)

    # --- a gradient's way ---

    def ready(self, index: int, weight: float) -> None:
        bucket = self._bucket_of[index]
        bucket.discard(index)
        if not bucket and self._overlap:
            self._push(self._full[id(bucket)], weight)

    def _push(self, indices: list[int], weight: float) -> None:
        """Who has no gradient of a parameter says so with a negative weight: if nobody has, nothing happens to it."""
        names, parameters = self._trained.names, self._trained.parameters
        gradients, nothing = {}, {}
        for index in indices:
            gradient = parameters[index].grad
            if gradient is None:
                nothing[names[index]] = torch.zeros_like(parameters[index])
            else:
                gradients[names[index]] = gradient
        self._pushed.update(indices)
        counts = 1.0 if self._mode == "async" else weight
        for named, counted in ((gradients, counts), (nothing, -counts if self.servers_step else counts)):
            if named:
                self._waiting.append(self.store.push(named, weight=counted))

    def synchronise(self, weight: float) -> None:
        if self.servers_step:
            raise ConfigError(
                "the servers take the step, so no worker ever has the whole gradient; say clip_norm= and they only "
                "average"
            )
        self._push_the_rest(weight)
        used = torch.tensor([float(p.grad is not None) for p in self._trained.parameters])
        self._waiting.append(self.store.push(_USED, used))
        self._wait_for_the_round()
        self.store.pull(self._gradients)
        for index, parameter in enumerate(self._trained.parameters):
            gradient = self._gradients[self._trained.names[index]]
            parameter.grad = gradient if self._gradients[_USED][index] else None
        self._synchronised = True

    def step(self, weight: float) -> None:
        if self.servers_step:
            self._follow_options()
            self._push_the_rest(weight)
            self._wait_for_the_round()
            self.store.pull(self._values)
            for parameter in self._trained.parameters:
                parameter.grad = None
        else:
            if not self._synchronised:
                self.synchronise(weight)
            take_step(self._trained)
        self._follow_members()
        self._share_buffers()
        self._waiting = [handle for handle in self._waiting if not _ended(handle)]
        self._start_buckets()

    def _follow_members(self) -> None:
        """Who is in the next step shares its batch; the first of them speaks for all."""
        if self._until and self.store.step >= self._until:
            self.store.close()
            raise Dismissed(0)
        members, led = self.store.members, self._job.rank == 0
        if self._number in members:
            self._job.rank, self._job.size = members.index(self._number), len(members)
            self._took_over = self._took_over or (self._job.rank == 0 and not led)

    def depart(self) -> None:
        """Goes after the next few steps, when the others know it; in async, where nobody waits, at once."""
        if self._mode == "async":
            self.store.close()
            raise Dismissed(0)
        self._until = self._until or self.store.announce_leave()

    def _wait_for_the_round(self) -> None:
        """In bsp, until the round is closed. Otherwise what was pushed may take its time: pull waits if it must."""
        self._emit(Waiting())
        if self._mode == "bsp":
            for handle in self._waiting:
                handle.wait()
        self._emit(GradientsSynchronised(sum(p.nbytes for p in self._trained.parameters)))

    def _push_the_rest(self, weight: float) -> None:
        rest = [i for i in range(len(self._trained.parameters)) if i not in self._pushed]
        if rest:
            self._push(rest, weight)

    def _share_buffers(self) -> None:
        """Worker 0's buffers are everybody's."""
        if self._buffers:
            if self._job.rank == 0:
                self.store.push(self._buffers, wait=True)
            else:
                self.store.pull(self._buffers)

    def _start_buckets(self) -> None:
        self._pushed: set[int] = set()
        self._full: dict[int, list[int]] = {}
        self._synchronised = False
        for indices in cut_into_buckets(self._trained.parameters):
            bucket = set(indices)
            self._full[id(bucket)] = indices
            self._bucket_of |= dict.fromkeys(indices, bucket)

    # --- the store ---

    def _move_in(self) -> None:
        """Worker 0 initialises what is not there yet; every worker begins with what is there."""
        keys = {**(self._values if self.servers_step else self._gradients), **self._buffers}
        if self._job.rank == 0:
            there = set(self.store.keys())
            for name, value in keys.items():
                if name not in there:
                    if name in self._buffers:
                        self.store.init(name, value, consistency="async")
                    else:
                        self.store.init(name, value, update=self._rule(name))
        self._wait_for(keys)
        self.store.pull({**self._buffers, **self._values} if self.servers_step else self._buffers)

    def _wait_for(self, keys: Mapping[str, Tensor]) -> None:
        deadline_s = time.monotonic() + self._job.timeout_s
        while missing := set(keys) - set(self.store.keys()):
            if time.monotonic() > deadline_s:
                key, patience = sorted(missing)[0], f"{self._job.timeout_s:g} s"
                raise PeerTimeout(f"worker 0 has not initialised {key!r} within {patience}; is it stuck?")
            time.sleep(_LOOK_S)

    def _rule(self, name: str) -> Any:
        if not self.servers_step:
            return update("mean")
        options = self._options[self._trained.names.index(name)]
        return update(type(self._trained.optimizer).__name__, **options)

    def _read_options(self) -> list[dict[str, Any]]:
        groups = self._trained.optimizer.param_groups
        return [_arguments(groups[group]) for group in self._trained.group_of()]

    def _follow_options(self) -> None:
        """What a schedule of learning rates, or the user, changed counts from the round of this step on."""
        options = self._read_options()
        for old, new in zip(self._options, options, strict=True):
            self._changed.update(k for k, v in new.items() if old.get(k) != v)
        if options == self._options and not self._took_over:
            return
        if self._job.rank == 0:  # who has just become the first says all again: the one before may have left early
            again = self._changed if self._took_over else set[str]()
            for name, old, new in zip(self._trained.names, self._options, options, strict=True):
                changes = {k: v for k, v in new.items() if old.get(k) != v or k in again}
                if changes:
                    self.store.configure(name, from_round=self.store.step, **changes)
            self._took_over = False
        self._options = options

    def begin_again(self) -> None:
        """The servers hold other values than they did: forgets what was under way, and takes what is there."""
        self._waiting.clear()
        for parameter in self._trained.parameters:
            parameter.grad = None
        self._start_buckets()
        self._options = self._read_options()
        self.store.pull({**self._buffers, **self._values} if self.servers_step else self._buffers)

    def close(self) -> None:
        self.store.close()


def _arguments(group: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in group.items() if k not in _NOT_ARGUMENTS and k != "decoupled_weight_decay"}


def _can_step_on_servers(trained: Trained) -> bool:
    kind = type(trained.optimizer)
    return kind.__name__ in ELEMENTWISE and kind.__module__.startswith("torch.optim") and trained.clip_norm is None


def _why_not(trained: Trained) -> str:
    if trained.clip_norm is not None:
        return "norm clipping"
    return f"{type(trained.optimizer).__name__}, which is not elementwise"


def _ended(handle: Handle[None]) -> bool:
    if not handle.done():
        return False
    handle.result()
    return True

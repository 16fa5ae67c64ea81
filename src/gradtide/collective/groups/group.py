"""Group: ranks that work together. This file checks and prepares what is asked for; one_host.py and others do it."""

import mmap
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from gradtide.collective.executors.choose import Strategy, choose, nominal_topology
from gradtide.collective.executors.runner import Runner
from gradtide.collective.groups.calls import Calls
from gradtide.collective.groups.explaining import explain_hosts
from gradtide.collective.groups.joining import (
    address_seen,
    join_beside,
    join_job,
    join_one_host,
    join_store,
    store_beside,
    store_of_job,
)
from gradtide.collective.groups.letters import Letters, boxes_bytes
from gradtide.collective.groups.many_hosts import ManyHosts
from gradtide.collective.groups.measuring import measure_exchange
from gradtide.collective.groups.messages import Messages
from gradtide.collective.groups.parting import MeetingPlace, join_part
from gradtide.collective.groups.probing import measure_links
from gradtide.collective.host.one_host import Call, OneHost
from gradtide.collective.host.prepare import check_split, held, output, plain
from gradtide.collective.host.reductions import Reduction, reduction
from gradtide.collective.host.signature import Signature, sign
from gradtide.collective.links.links import MOST_FLOWS
from gradtide.environment import read_environment
from gradtide.errors import ConfigError, ScheduleError
from gradtide.events import ClockAligned
from gradtide.handle import Handle
from gradtide.kernels import DONE
from gradtide.schedule.model import Schedule
from gradtide.schedule.predict.exchange_model import ExchangeModel
from gradtide.timeouts import default_timeouts
from gradtide.topology.model import Topology

__all__ = ["Group"]

T = TypeVar("T")
_SENDING_S = 5.0  # how long a group that is closed waits for messages to be taken
Tensor = torch.Tensor
Create = Callable[[Signature, tuple[int, ...], torch.dtype, float], Tensor]


class Group:
    """Ranks that work together. All of them call the same operations in the same order.

    Every operation takes `timeout_s` (how long a living rank may be missing before PeerTimeout; half an hour by
    default) and `async_op` (return a Handle at once; the operation runs in the background, in order). An operation that
    changes its tensor in place returns it.
    """

    def __init__(
        self, name: str, backend: OneHost | ManyHosts, runner: Runner, host_of: list[int], timeout_s: float
    ) -> None:
        self.name, self.rank, self.size, self.timeout_s = name, backend.rank, backend.size, timeout_s
        self.host_of = tuple(host_of)  # each rank's host, by number
        self.topology = nominal_topology(host_of)  # what strategies are planned on; probe() measures it
        self._backend, self._runner = backend, runner
        self._host = backend if isinstance(backend, OneHost) else backend.host
        self._calls = Calls(name, backend, timeout_s)
        self.messages = Messages(backend, self._calls)
        self._plans = self._calls.plans
        self._all_reduce_now: Callable[[Any, int], int] = self._calls.timed(backend.all_reduce_now)
        self._enter, self._leave = self._calls.lane.enter, self._calls.lane.leave
        self._chosen: dict[tuple[str | Path, int], Schedule] = {}
        self._ranks = tuple(host_of.count(host) for host in sorted(set(host_of)))  # of each host
        self.exchange_model: ExchangeModel | None = None  # how long collectives between hosts should take
        self._met_at: Callable[[], MeetingPlace] | None = None  # where ranks of several hosts did, for parts of them

    @classmethod
    def join(cls, name: str, rank: int, size: int, *, timeout_s: float | None = None) -> "Group":
        """Joins `size` processes of this host and user that give the same name, each with its own rank."""
        limit_s = default_timeouts().step_s if timeout_s is None else timeout_s
        return cls(name, *join_one_host(name, rank, size, limit_s), [0] * size, limit_s)

    @classmethod
    def from_environment(cls, *, timeout_s: float | None = None) -> "Group":
        """Joins the job that torchrun or another launcher started this process for, on one host or on many. Without a
        launcher it is a group of one: a script runs under plain `python` too."""
        launch = read_environment().launch
        if launch is None:
            return cls.join(f"alone-{uuid.uuid4().hex}", 0, 1, timeout_s=timeout_s)
        name = f"job at {launch.master_addr}:{launch.master_port}"
        limit_s = default_timeouts().step_s if timeout_s is None else timeout_s
        return cls(name, *join_job(launch, limit_s), limit_s)._meeting_at(lambda: store_of_job(launch, limit_s))

    @classmethod
    def from_store(
        cls, name: str, store: Any, rank: int, size: int, address: Callable[[], str | None], *, timeout_s: float
    ) -> "Group":
        """Joins ranks that share a store of torch's; the rest is as in join_store."""
        joined = cls(name, *join_store(store, rank, size, timeout_s, address), timeout_s)
        return joined._meeting_at(lambda: (store, address))

    @classmethod
    def beside(cls, process_group: Any = None, *, timeout_s: float | None = None) -> "Group":
        """Joins the ranks of a torch.distributed process group (the default one), which stays as it is."""
        process_group = process_group or dist.group.WORLD
        if process_group is None:
            raise ConfigError("torch.distributed has no process group yet; call init_process_group first")
        limit_s = default_timeouts().step_s if timeout_s is None else timeout_s
        joined = cls("beside a process group", *join_beside(process_group, limit_s), limit_s)
        store = store_beside(process_group)
        return joined._meeting_at(lambda: (store, lambda: address_seen(store)))

    def part(self, ranks: Sequence[int], *, timeout_s: float | None = None) -> "Group":
        """A group of some of these ranks, in increasing order. They alone call it, all in the same order.

        Its operations do not queue behind those of this group, or of another part.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        token, backend, runner, host_of = join_part(self, self._met_at, ranks, limit_s)
        made = Group(f"{self.name}, part {token}", backend, runner, host_of, limit_s)
        made._met_at = self._met_at
        return made

    def _meeting_at(self, place: Callable[[], tuple[Any, Callable[[], str | None]]]) -> "Group":
        self._met_at = lambda: MeetingPlace(*place())
        return self

    def address(self) -> str:
        """By which ranks of other hosts reach this one. A host's name alone is often one of its loopback's."""
        seen = self._met_at().address() if self._met_at is not None else None
        return seen or socket.gethostbyname(socket.gethostname())

    # --- Collectives ---

    def all_reduce(
        self,
        tensor: Tensor,
        op: str = "sum",
        *,
        strategy: Strategy | None = None,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """Every rank's tensor becomes the reduction of all, with the same bits on all.

        Without a strategy, ranks on one host are added in rank order whatever the size. A strategy is a name ("ring"),
        "auto" (the fastest on `self.topology`), the Path of a schedule's file, or a Schedule.
        """
        try:
            plan = self._plans.get((op, tensor.dtype, tensor.shape))
        except AttributeError:
            raise ConfigError(
                f"all_reduce needs a tensor, not {type(tensor).__name__}; say torch.tensor(...)"
            ) from None
        # The shortest way: one compiled call does it all. What Python does around it is a microsecond.
        if plan is not None and strategy is None and tensor.is_cpu and tensor.is_contiguous():
            if async_op or not self._enter():
                return self._in_turn(plan, tensor, async_op, timeout_s)
            try:
                try:
                    code = self._all_reduce_now(plan.address, tensor.data_ptr())
                except BaseException as error:  # a signal's, such as Ctrl-C: it came in the middle
                    self._calls.give_up(error)
                    raise
                if code != DONE:
                    self._finish(plan, tensor, code, timeout_s)
            finally:
                self._leave()
            return tensor
        how = reduction(op, tensor.dtype)
        if strategy is not None:
            return self._run_schedule(tensor, how, strategy, async_op, timeout_s)
        signature = sign(f"all_reduce({op})", tensor.dtype, tuple(tensor.shape))
        work = partial(self._backend.all_reduce, how=how)
        result = self._calls.in_place(signature, tensor, work, async_op, timeout_s)
        self._remember(signature, tensor, how)
        return result

    def _remember(self, signature: Signature, tensor: Tensor, how: Reduction) -> None:
        """The next of its kind goes the shortest way. Not a single number: it may be contiguous and yet have to be
        negated when it is read (the imaginary part of a conjugate)."""
        key, backend = (how.name, tensor.dtype, tensor.shape), self._backend
        if key in self._plans or how.blocks is None or tensor.numel() == 1:
            return
        if (plan := backend.plan(signature, tensor.numel(), how)) is not None:
            self._calls.remember(key, plan, tensor.nbytes)

    def _in_turn(self, plan: Any, tensor: Tensor, async_op: bool, timeout_s: float | None) -> Any:
        """By a plan too, but not right now: in the background, or after what is there."""
        memory = tensor.detach()  # as it is now, whatever becomes of the tensor

        def work(call: Call) -> Tensor:
            began = time.perf_counter()
            self._backend.run(plan, memory, call.timeout_s)
            self._calls.note(plan.signature, memory.nbytes, began)
            return tensor

        return self._calls.run(plan.signature, work, async_op, timeout_s)

    def _finish(self, plan: Any, tensor: Tensor, code: int, timeout_s: float | None) -> None:
        limit = self.timeout_s if timeout_s is None else timeout_s
        self._calls.guarded(lambda: self._backend.finish(plan, tensor, code, limit))
        if self._calls.timings is not None:
            self._calls.timings.finished(plan.address)

    def _run_schedule(
        self, tensor: Tensor, how: Reduction, strategy: Strategy, async_op: bool, timeout_s: float | None
    ) -> Any:
        schedule = self.schedule(strategy, tensor.numel() * tensor.element_size())
        if schedule.collective != "all_reduce":
            raise ScheduleError(f"schedule {schedule.name} is for {schedule.collective}, not for all_reduce")
        digest = self._runner.prepare(schedule)
        call = f"all_reduce({how.name}) by schedule {schedule.name} {digest}"
        signature = sign(call, tensor.dtype, tuple(tensor.shape))
        backend = self._backend

        def work(call: Call, prepared: Tensor) -> None:
            with backend.together(call) if isinstance(backend, ManyHosts) else nullcontext():
                self._runner.run(call, schedule, prepared, how)

        return self._calls.in_place(signature, tensor, work, async_op, timeout_s)

    def schedule(self, strategy: Strategy, size_bytes: int) -> Schedule:
        """The schedule that an all_reduce of this many bytes would follow.

        Sizes up to the same power of two have one: to plan takes a second, and chunks are shares of any size.
        """
        if isinstance(strategy, Schedule):
            return strategy
        key = strategy, 1 << max(0, size_bytes - 1).bit_length()
        if key not in self._chosen:
            self._chosen[key] = choose(strategy, self.topology, key[1])
        return self._chosen[key]

    def broadcast(
        self, tensor: Tensor, root: int = 0, *, async_op: bool = False, timeout_s: float | None = None
    ) -> Any:
        """Every rank's tensor becomes the root's."""
        self._check_rank(root)
        signature = sign(f"broadcast(from {root})", tensor.dtype, tuple(tensor.shape))
        work = partial(self._backend.broadcast, root=root)
        return self._calls.in_place(signature, tensor, work, async_op, timeout_s)

    def reduce(
        self, tensor: Tensor, op: str = "sum", root: int = 0, *, async_op: bool = False, timeout_s: float | None = None
    ) -> Any:
        """The root's tensor becomes the reduction of all, in rank order; the others keep theirs."""
        self._check_rank(root)
        work = partial(self._backend.reduce, how=reduction(op, tensor.dtype), root=root)
        signature = sign(f"reduce({op} to {root})", tensor.dtype, tuple(tensor.shape))
        return self._calls.in_place(signature, tensor, work, async_op, timeout_s)

    def all_gather(
        self, tensor: Tensor, out: Tensor | None = None, *, async_op: bool = False, timeout_s: float | None = None
    ) -> Any:
        """Every rank's tensors, one after the other, as a tensor of shape (size, *shape)."""
        signature = sign("all_gather", tensor.dtype, tuple(tensor.shape))
        out = output(tensor, (self.size, *tensor.shape), out)
        return self._calls.into(signature, tensor, out, self._backend.all_gather, async_op, timeout_s)

    def gather(
        self,
        tensor: Tensor,
        root: int = 0,
        out: Tensor | None = None,
        *,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """What all_gather gives, at the root; None elsewhere."""
        self._check_rank(root)
        signature = sign(f"gather(to {root})", tensor.dtype, tuple(tensor.shape))
        if self.rank != root:
            memory, backend = held(tensor), self._backend
            return self._calls.run(
                signature, lambda c: backend.gather(c, plain(memory), None, root), async_op, timeout_s
            )
        out = output(tensor, (self.size, *tensor.shape), out)
        return self._calls.into(signature, tensor, out, partial(self._backend.gather, root=root), async_op, timeout_s)

    def scatter(
        self,
        out: Tensor,
        source: Tensor | None = None,
        root: int = 0,
        *,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """Each rank's `out` becomes its row of the root's `source`, whose shape is (size, *out.shape)."""
        self._check_rank(root)
        if (source is not None) != (self.rank == root):
            raise ConfigError(
                f"scatter: rank {root}, the root, gives the source, and nobody else; this is rank {self.rank}"
            )
        if source is not None:
            output(source, (self.size, *out.shape), source)
        signature = sign(f"scatter(from {root})", out.dtype, tuple(out.shape))
        memory = None if source is None else held(source)

        def work(call: Call, row: Tensor) -> None:
            self._backend.scatter(call, None if memory is None else plain(memory), row, root)

        return self._calls.in_place(signature, out, work, async_op, timeout_s)

    def reduce_scatter(
        self,
        tensor: Tensor,
        op: str = "sum",
        out: Tensor | None = None,
        *,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """Row r of every rank's tensor, whose shape is (size, *shape), reduced in rank order, goes to rank r."""
        how = reduction(op, tensor.dtype)
        signature = sign(f"reduce_scatter({op})", tensor.dtype, tuple(tensor.shape))
        self._check_rows(tensor, "reduce_scatter")
        out = output(tensor, tuple(tensor.shape[1:]), out)
        work = partial(self._backend.reduce_scatter, how=how)
        return self._calls.into(signature, tensor, out, work, async_op, timeout_s)

    def all_to_all(
        self, tensor: Tensor, out: Tensor | None = None, *, async_op: bool = False, timeout_s: float | None = None
    ) -> Any:
        """Row r of the tensor, whose shape is (size, *shape), goes to rank r; row r of the result came from rank r."""
        signature = sign("all_to_all", tensor.dtype, tuple(tensor.shape))
        self._check_rows(tensor, "all_to_all")
        out = output(tensor, tuple(tensor.shape), out)
        return self._calls.into(signature, tensor, out, self._backend.all_to_all, async_op, timeout_s)

    def all_to_all_split(
        self,
        tensor: Tensor,
        sizes: Sequence[int],
        out: Tensor,
        out_sizes: Sequence[int],
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """Of a flat tensor, sizes[r] elements go to rank r, one rank's after the other's; out_sizes[r] come from it.

        Every rank first tells the others how many go to each: the numbers may differ."""
        counts = torch.tensor([[*sizes], [*out_sizes]])
        given, wanted = self.all_gather(counts, timeout_s=timeout_s).unbind(1)  # [from, to], [to, from]
        check_split(given, wanted)
        signature = sign("all_to_all of split tensors", tensor.dtype)
        split: list[list[int]] = (given * tensor.element_size()).tolist()
        work = partial(self._backend.all_to_all_split, sizes=split)
        return self._calls.into(signature, tensor, output(tensor, (sum(out_sizes),), out), work, False, timeout_s)

    def barrier(self, *, async_op: bool = False, timeout_s: float | None = None) -> Any:
        """Returns once every rank has called it."""
        return self._calls.run(sign("barrier"), self._backend.barrier, async_op, timeout_s)

    # --- Anything else ---

    def submit(self, what: str, work: Callable[[], T]) -> Handle[T]:
        """Runs work in the background, in order with the group's operations; it may call them, and need not wait."""
        return self._calls.lane.submit(what, work)

    def in_background(self) -> bool:
        """Whether the caller is run by this group: by submit, or by an operation's end (handle.when_done)."""
        return self._calls.lane.inside()

    def help(self, handle: Handle[Any]) -> None:
        """Call this first in the background, before waiting for an operation that was called later."""
        self._calls.lane.help(handle)

    # --- Messages ---

    def send(
        self, tensor: Tensor, to: int, *, tag: int = 0, async_op: bool = False, timeout_s: float | None = None
    ) -> Any:
        """Sends to one rank, which receives into a tensor of the same dtype and shape; those of one tag in order."""
        self._check_peer(to, "send to")
        handle = self.messages.send(tensor, to, tag, timeout_s, now=not async_op)
        return handle if async_op else handle.wait()

    def recv(
        self,
        tensor: Tensor,
        source: int | None,
        *,
        tag: int = 0,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """Receives what `source` (None: any rank) sent with this tag into the tensor.

        The handle of a receive from any rank knows which it was, once it is done: `handle.source`.
        """
        if source is not None:
            self._check_peer(source, "receive from")
        handle = self.messages.receive(tensor, source, tag, timeout_s, now=not async_op)
        return handle if async_op else handle.wait()

    # --- Memory ---

    def shared_tensor(
        self, shape: tuple[int, ...] | int, dtype: torch.dtype = torch.float32, *, timeout_s: float | None = None
    ) -> Tensor:
        """A zero-filled tensor of this rank's own in memory that all ranks see, so that collectives on it copy nothing.

        All ranks call it together. Slices of it count too. The memory goes when the last tensor over it goes.
        """
        return self._create("shared_tensor", self._host.segments.create, shape, dtype, timeout_s)

    def common_tensor(
        self, shape: tuple[int, ...] | int, dtype: torch.dtype = torch.float32, *, timeout_s: float | None = None
    ) -> Tensor:
        """A zero-filled tensor that is one and the same for all ranks: what one writes, the others read.

        All ranks call it together, and order their writes and reads by barriers. Only on one host.
        """
        if not self.on_one_host:
            raise ConfigError("ranks on several hosts have no memory in common; use shared_tensor and a collective")
        return self._create("common_tensor", self._host.segments.create_common, shape, dtype, timeout_s)

    def twofold_memory(self, size_bytes: int, *, timeout_s: float | None = None) -> tuple[mmap.mmap, mmap.mmap]:
        """Memory of zeroes, mapped twice: what is written to the first all ranks see, and each of them in its second,
        too, but for the pages that it has written to there: these are its own. All ranks call it together."""
        if not self.on_one_host:
            raise ConfigError("ranks on several hosts have no memory in common; use shared_tensor and a collective")
        signature = sign("twofold_memory", torch.uint8, (size_bytes,))
        create = self._host.segments.create_twofold
        return self._calls.run(signature, lambda c: create(c.signature, size_bytes, c.timeout_s), False, timeout_s)

    def open_letters(self) -> Letters | None:
        """Boxes for letters from each rank to each; None where ranks share no memory. All of them call it together."""
        if not self.on_one_host:
            return None
        return Letters(self._host.board, self._calls, self.common_tensor(boxes_bytes(self.size), torch.uint8))

    def _create(
        self, what: str, create: Create, shape: tuple[int, ...] | int, dtype: torch.dtype, timeout_s: float | None
    ) -> Tensor:
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        signature = sign(what, dtype, extents)
        return self._calls.run(signature, lambda c: create(c.signature, extents, dtype, c.timeout_s), False, timeout_s)

    @property
    def on_one_host(self) -> bool:
        """Whether all ranks share memory."""
        return isinstance(self._backend, OneHost)

    def probe(self, budget_s: float = 2.0, *, remembered: bool = False) -> Topology:
        """Measures the links between all ranks, one pair at a time, and plans on them from now on.

        All ranks call it together. remembered: take what a group of this process between the same hosts has found, if
        any.
        """
        self.topology = measure_links(self, budget_s, remembered)
        self._chosen.clear()
        return self.topology

    def explain(self, *, probe: bool = False) -> str:
        """Says which way collectives go; between hosts also how long they took and, where links were measured, should
        take.

        With probe=True all ranks call it together: it measures collectives for half a second at most, unless a group
        of this process between the same hosts has done so.
        """
        if self._calls.timings is None:
            return f"all {self.size} ranks are on one host: a collective is one compiled call in shared memory"
        if probe:
            with self._calls.timings.paused():
                self.exchange_model = measure_exchange(self, self._ranks)
        return explain_hosts(self._ranks, self.flows, self.exchange_model, self._calls.timings)

    @property
    def flows(self) -> int:
        """Connections between each two ranks of different hosts that collectives go over; 0 on one host."""
        return self._backend.flows if isinstance(self._backend, ManyHosts) else 0

    def use_flows(self, wanted: int, *, keep: bool = False) -> None:
        """All ranks call it together: collectives between hosts go over this many connections from now on, with the
        same bits. keep: keep connections that are left over, for another change."""
        if not 1 <= wanted <= MOST_FLOWS:
            raise ConfigError(f"{wanted} flows make no sense; 1 to {MOST_FLOWS} do")
        self._calls.use_flows(wanted, keep=keep)

    def set_timeout(self, timeout_s: float) -> None:
        """Sets how long a rank may be missing from now on, unless an operation says otherwise."""
        self.timeout_s = self._calls.timeout_s = timeout_s

    def set_notice(self, notice_s: float) -> None:
        """Sets after how long a wait a line names, once, the rank that is waited for, and where in its code it is."""
        self._host.board.notice_s = notice_s
        if isinstance(self._backend, ManyHosts):
            self._backend.watch.notice_s = notice_s

    def compare_clocks(self, tell: Callable[[ClockAligned], None]) -> None:
        """Compares this host's clock with that of rank 0, now and then; `tell` is called in another thread. On one host
        there is one clock."""
        if isinstance(self._backend, ManyHosts):
            self._backend.watch.compare_clocks(tell)

    def advise(self, text: str) -> None:
        """What else to say from now on to ranks that ask for different things."""
        if text not in self._host.board.advice:
            self._host.board.advice += f"; {text}"

    @contextmanager
    def purpose(self, text: str) -> Iterator[None]:
        """In it, who waits in vain or finds others at something else says what it is doing: "in gradtide.shard"."""
        board = self._host.board
        before, board.purpose = board.purpose, text
        try:
            yield
        finally:
            board.purpose = before

    # --- Ending ---

    def lose(self, ranks: Sequence[int]) -> None:
        """Declares these ranks dead, from any thread, for what watches over the job. Whatever waits for them raises
        PeerLost at once; a wire that was cut would let it wait for seconds."""
        if isinstance(self._backend, ManyHosts):
            self._backend.lose(ranks)

    def close(self) -> None:
        """Leaves the group. Operations that were called before are finished first, except for receives that nothing has
        come for."""
        self._close(in_good_order=True)

    def _close(self, *, in_good_order: bool) -> None:
        self._calls.finish()
        self.messages.close(min(_SENDING_S, self.timeout_s))
        self._calls.close(in_good_order=in_good_order)
        self.messages.join()

    def abort(self) -> None:
        """Leaves the group at once: whatever is under way fails, here and on the other ranks."""
        self._calls.close(in_good_order=False)
        self.messages.close(0)
        self.messages.join()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *error: object) -> None:
        self._close(in_good_order=error[0] is None)

    # --- How ---

    def _check_rank(self, rank: int) -> None:
        if not isinstance(rank, int) or not 0 <= rank < self.size:
            raise ConfigError(f"group {self.name!r} has ranks 0 to {self.size - 1}, not {rank!r}")

    def _check_peer(self, rank: int, what: str) -> None:
        self._check_rank(rank)
        if rank == self.rank:
            raise ConfigError(f"rank {rank} can't {what} itself; copy the tensor")

    def _check_rows(self, tensor: Tensor, what: str) -> None:
        if tensor.dim() == 0 or tensor.shape[0] != self.size:
            raise ConfigError(
                f"{what} takes a tensor with a row a rank, shape ({self.size}, ...); this one has {tuple(tensor.shape)}"
            )

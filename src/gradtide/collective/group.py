"""Group: ranks that work together. This file checks and prepares what is asked for; one_host.py and others do it."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from gradtide.collective.calls import Calls
from gradtide.collective.choose import Strategy, choose, nominal_topology
from gradtide.collective.joining import join_beside, join_job, join_one_host, join_store
from gradtide.collective.kernels import DONE
from gradtide.collective.many_hosts import ManyHosts
from gradtide.collective.messages import Messages
from gradtide.collective.one_host import AllReduce, Call, OneHost
from gradtide.collective.prepare import output, plain
from gradtide.collective.probing import probe_links
from gradtide.collective.reductions import Reduction, reduction
from gradtide.collective.runner import Runner
from gradtide.collective.signature import Signature, sign
from gradtide.environment import read_environment
from gradtide.errors import ConfigError, ScheduleError
from gradtide.handle import Handle
from gradtide.schedule.model import Schedule
from gradtide.topology.model import Topology

__all__ = ["Group"]

T = TypeVar("T")
_SENDING_S = 5.0  # how long a group that is closed waits for messages to be taken
Tensor = torch.Tensor


class Group:
    """Ranks that work together. All of them call the same operations in the same order.

    Every operation takes `timeout_s` (how long a rank may be missing before PeerTimeout) and `async_op` (return a
    Handle at once; the operation runs in the background, in order). One that changes its tensor in place returns it.
    """

    def __init__(
        self, name: str, backend: OneHost | ManyHosts, runner: Runner, host_of: list[int], timeout_s: float
    ) -> None:
        self.name, self.rank, self.size, self.timeout_s = name, backend.rank, backend.size, timeout_s
        self.topology = nominal_topology(host_of)  # what strategies are planned on; probe() measures it
        self._backend, self._runner = backend, runner
        self._host = backend if isinstance(backend, OneHost) else backend.host
        self._calls = Calls(name, backend, timeout_s)
        self.messages = Messages(backend, self._calls)
        self._plans, self._all_reduce_now = self._calls.plans, self._host.all_reduce_now
        self._enter, self._leave = self._calls.lane.enter, self._calls.lane.leave
        self._chosen: dict[tuple[str | Path, int], Schedule] = {}

    @classmethod
    def join(cls, name: str, rank: int, size: int, *, timeout_s: float = 60.0) -> "Group":
        """Joins `size` processes of this host and user that give the same name, each with its own rank."""
        return cls(name, *join_one_host(name, rank, size, timeout_s), [0] * size, timeout_s)

    @classmethod
    def from_environment(cls, *, timeout_s: float = 60.0) -> "Group":
        """Joins the job that torchrun or another launcher started this process for, on one host or on many."""
        launch = read_environment().launch
        if launch is None:
            raise ConfigError("RANK is not set; start with torchrun, or use Group.join(name, rank, size)")
        backend, runner, host_of = join_job(launch, timeout_s)
        return cls(f"job at {launch.master_addr}:{launch.master_port}", backend, runner, host_of, timeout_s)

    @classmethod
    def from_store(
        cls, name: str, store: Any, rank: int, size: int, address: Callable[[], str | None], *, timeout_s: float
    ) -> "Group":
        """Joins ranks that share a store of torch's for this group alone; the rest is as in join_store."""
        backend, runner, host_of = join_store(store, rank, size, timeout_s, address)
        return cls(name, backend, runner, host_of, timeout_s)

    @classmethod
    def beside(cls, process_group: Any = None, *, timeout_s: float = 60.0) -> "Group":
        """Joins the ranks of a torch.distributed process group (the default one), which stays as it is."""
        process_group = process_group or dist.group.WORLD
        if process_group is None:
            raise ConfigError("torch.distributed has no process group yet; call init_process_group first")
        return cls("beside a process group", *join_beside(process_group, timeout_s), timeout_s)

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
        plan = self._plans.get((op, tensor.dtype, tensor.shape))
        # The shortest way: one compiled call does it all. What Python does around it is a microsecond.
        if (
            plan is not None
            and strategy is None
            and not async_op
            and tensor.is_cpu
            and tensor.is_contiguous()
            and self._enter()
        ):
            try:
                code = self._all_reduce_now(plan.address, tensor.data_ptr())
                if code != DONE:
                    self._finish(plan, tensor, code, timeout_s)
            finally:
                self._leave()
            return tensor
        how = reduction(op, tensor.dtype)
        if strategy is not None:
            return self._run_schedule(tensor, how, strategy, async_op, timeout_s)
        signature = sign(f"all_reduce({op})", tensor.dtype, tuple(tensor.shape))
        work = lambda c, t: self._backend.all_reduce(c, t, how)  # noqa: E731
        result = self._calls.in_place(signature, tensor, work, async_op, timeout_s)
        self._remember(signature, tensor, how)
        return result

    def _remember(self, signature: Signature, tensor: Tensor, how: Reduction) -> None:
        """The next of its kind goes the shortest way. Not a single number: it may be contiguous and yet have to be
        negated when it is read (the imaginary part of a conjugate)."""
        if isinstance(self._backend, OneHost) and how.blocks is not None and tensor.numel() != 1:
            plan = self._backend.plan(signature, tensor.numel(), how)
            self._calls.remember((how.name, tensor.dtype, tensor.shape), plan)

    def _finish(self, plan: AllReduce, tensor: Tensor, code: int, timeout_s: float | None) -> None:
        limit = self.timeout_s if timeout_s is None else timeout_s
        self._calls.guarded(lambda: self._host.finish(plan, tensor, code, limit))

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
        """The schedule that an all_reduce of so many bytes would follow.

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
        return self._calls.in_place(
            signature, tensor, lambda c, t: self._backend.broadcast(c, t, root), async_op, timeout_s
        )

    def reduce(
        self, tensor: Tensor, op: str = "sum", root: int = 0, *, async_op: bool = False, timeout_s: float | None = None
    ) -> Any:
        """The root's tensor becomes the reduction of all, in rank order; the others keep theirs."""
        self._check_rank(root)
        how = reduction(op, tensor.dtype)
        signature = sign(f"reduce({op} to {root})", tensor.dtype, tuple(tensor.shape))
        return self._calls.in_place(
            signature, tensor, lambda c, t: self._backend.reduce(c, t, how, root), async_op, timeout_s
        )

    def all_gather(
        self, tensor: Tensor, out: Tensor | None = None, *, async_op: bool = False, timeout_s: float | None = None
    ) -> Any:
        """Every rank's tensors, one after the other, as a tensor of shape (size, *shape)."""
        signature = sign("all_gather", tensor.dtype, tuple(tensor.shape))
        out = output(tensor, (self.size, *tensor.shape), out)
        return self._calls.into(
            signature, tensor, out, lambda c, t, o: self._backend.all_gather(c, t, o), async_op, timeout_s
        )

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
            source = plain(tensor)
            return self._calls.run(signature, lambda c: self._backend.gather(c, source, None), async_op, timeout_s)
        out = output(tensor, (self.size, *tensor.shape), out)
        return self._calls.into(
            signature, tensor, out, lambda c, t, o: self._backend.gather(c, t, o), async_op, timeout_s
        )

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
        rows = None if source is None else plain(source)
        return self._calls.in_place(
            signature, out, lambda c, o: self._backend.scatter(c, rows, o, root), async_op, timeout_s
        )

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
        work = lambda c, t, o: self._backend.reduce_scatter(c, t, o, how)  # noqa: E731
        return self._calls.into(signature, tensor, out, work, async_op, timeout_s)

    def all_to_all(
        self, tensor: Tensor, out: Tensor | None = None, *, async_op: bool = False, timeout_s: float | None = None
    ) -> Any:
        """Row r of the tensor, whose shape is (size, *shape), goes to rank r; row r of the result came from rank r."""
        signature = sign("all_to_all", tensor.dtype, tuple(tensor.shape))
        self._check_rows(tensor, "all_to_all")
        out = output(tensor, tuple(tensor.shape), out)
        return self._calls.into(
            signature, tensor, out, lambda c, t, o: self._backend.all_to_all(c, t, o), async_op, timeout_s
        )

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
        """Who is in the background and about to wait for something asked for later calls this first."""
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
        """Receives what `source` (None: any rank of this host) sent with this tag into the tensor.

        The handle of one from anybody knows who it was, once it is done: `handle.source`.
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
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        signature = sign("shared_tensor", dtype, extents)
        create = self._host.segments.create
        return self._calls.run(signature, lambda c: create(c.signature, extents, dtype, c.timeout_s), False, timeout_s)

    def common_tensor(
        self, shape: tuple[int, ...] | int, dtype: torch.dtype = torch.float32, *, timeout_s: float | None = None
    ) -> Tensor:
        """A zero-filled tensor that is one and the same for all ranks: what one writes, the others read.

        All ranks call it together, and order their writes and reads by barriers. Only on one host.
        """
        if not self.on_one_host:
            raise ConfigError("ranks on several hosts have no memory in common; use shared_tensor and a collective")
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        signature = sign("common_tensor", dtype, extents)
        create = self._host.segments.create_common
        return self._calls.run(signature, lambda c: create(c.signature, extents, dtype, c.timeout_s), False, timeout_s)

    @property
    def on_one_host(self) -> bool:
        """Whether all ranks share memory."""
        return isinstance(self._backend, OneHost)

    def probe(self, budget_s: float = 2.0) -> Topology:
        """Measures the links between all ranks, one pair at a time, and plans on them from now on."""
        self.topology = probe_links(self, budget_s)
        self._chosen.clear()
        return self.topology

    def set_timeout(self, timeout_s: float) -> None:
        """How long a rank may be missing from now on, where an operation says nothing else."""
        self.timeout_s = self._calls.timeout_s = timeout_s

    # --- Ending ---

    def close(self) -> None:
        """Leaves the group. What was asked for before ends first, but receives that nothing has come for do not."""
        self._calls.finish()
        self.messages.close(min(_SENDING_S, self.timeout_s))
        self._calls.close()

    def abort(self) -> None:
        """Leaves the group at once: whatever is under way fails, here and on the other ranks."""
        self._calls.close()
        self.messages.close(0)

    def __enter__(self) -> "Group":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- How ---

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise ConfigError(f"group {self.name!r} has ranks 0 to {self.size - 1}, not {rank}")

    def _check_peer(self, rank: int, what: str) -> None:
        self._check_rank(rank)
        if rank == self.rank:
            raise ConfigError(f"rank {rank} can't {what} itself; copy the tensor")

    def _check_rows(self, tensor: Tensor, what: str) -> None:
        if tensor.dim() == 0 or tensor.shape[0] != self.size:
            raise ConfigError(
                f"{what} takes a tensor with a row a rank, shape ({self.size}, ...); this one has {tuple(tensor.shape)}"
            )

"""Group: ranks that work together. This file checks and prepares what is asked for; one_host.py and others do it."""

import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar, overload

import torch

from gradtide.collective.choose import Strategy, choose, nominal_topology
from gradtide.collective.joining import join_job, join_one_host
from gradtide.collective.kernels import DONE, KERNELS
from gradtide.collective.lane import Lane
from gradtide.collective.many_hosts import ManyHosts
from gradtide.collective.one_host import IN_PLACE_BYTES, Call, OneHost
from gradtide.collective.prepare import give_back, output, plain
from gradtide.collective.probing import probe_links
from gradtide.collective.reductions import Reduction, reduction
from gradtide.collective.runner import Runner
from gradtide.collective.signature import Signature, sign
from gradtide.environment import read_environment
from gradtide.errors import CommunicationError, ConfigError, Mismatch, ScheduleError
from gradtide.handle import Handle
from gradtide.schedule.model import Schedule
from gradtide.topology.model import Topology

__all__ = ["Group"]

T = TypeVar("T")
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
        self._lane = Lane()
        self._message_lanes: dict[tuple[str, int], Lane] = {}
        self._broken = ""
        self._quick: dict[Any, tuple[Any, Signature, int, Reduction]] = {}
        self._chosen: dict[tuple[str | Path, int], Schedule] = {}
        self._me = self._host.board.me
        self._finalizer = weakref.finalize(self, backend.close)

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
        quick = self._quick.get((op, tensor.dtype, tensor.shape))
        # The shortest way for small tensors: one compiled call does it all (4 KB between two ranks: under 2 us).
        if (
            quick
            and strategy is None
            and not async_op
            and tensor.is_cpu
            and tensor.is_contiguous()
            and not self._broken
            and self._lane.enter()
        ):
            kernel, signature, count, how = quick
            try:
                code = kernel(self._me, tensor.data_ptr(), count, how.code, signature.number, 0, how.item_bytes)
                if code != DONE:
                    self._finish_quick(code, quick, tensor, timeout_s)
            finally:
                self._lane.leave()
            return tensor
        how = reduction(op, tensor.dtype)
        if strategy is not None:
            return self._run_schedule(tensor, how, strategy, async_op, timeout_s)
        signature = sign(f"all_reduce({op})", tensor.dtype, tuple(tensor.shape))
        self._remember_quick(signature, tensor, how)
        return self._in_place(signature, tensor, lambda c, t: self._backend.all_reduce(c, t, how), async_op, timeout_s)

    def _remember_quick(self, signature: Signature, tensor: Tensor, how: Reduction) -> None:
        small = tensor.numel() * how.item_bytes < IN_PLACE_BYTES
        if small and how.element is not None and isinstance(self._backend, OneHost):
            if len(self._quick) > 1024:
                self._quick.clear()
            key = how.name, tensor.dtype, tensor.shape
            self._quick[key] = KERNELS.STAGED[how.element], signature, tensor.numel(), how

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
            if isinstance(backend, ManyHosts):
                backend.agree(call)
            self._runner.run(call, schedule, prepared, how)

        return self._in_place(signature, tensor, work, async_op, timeout_s)

    def schedule(self, strategy: Strategy, size_bytes: int) -> Schedule:
        """The schedule that an all_reduce of so many bytes would follow."""
        if isinstance(strategy, Schedule):
            return strategy
        key = strategy, size_bytes
        if key not in self._chosen:
            if len(self._chosen) > 256:
                self._chosen.clear()
            self._chosen[key] = choose(strategy, self.topology, size_bytes)
        return self._chosen[key]

    def broadcast(
        self, tensor: Tensor, root: int = 0, *, async_op: bool = False, timeout_s: float | None = None
    ) -> Any:
        """Every rank's tensor becomes the root's."""
        self._check_rank(root)
        signature = sign(f"broadcast(from {root})", tensor.dtype, tuple(tensor.shape))
        return self._in_place(signature, tensor, lambda c, t: self._backend.broadcast(c, t, root), async_op, timeout_s)

    def reduce(
        self, tensor: Tensor, op: str = "sum", root: int = 0, *, async_op: bool = False, timeout_s: float | None = None
    ) -> Any:
        """The root's tensor becomes the reduction of all, in rank order; the others keep theirs."""
        self._check_rank(root)
        how = reduction(op, tensor.dtype)
        signature = sign(f"reduce({op} to {root})", tensor.dtype, tuple(tensor.shape))
        return self._in_place(
            signature, tensor, lambda c, t: self._backend.reduce(c, t, how, root), async_op, timeout_s
        )

    def all_gather(
        self, tensor: Tensor, out: Tensor | None = None, *, async_op: bool = False, timeout_s: float | None = None
    ) -> Any:
        """Every rank's tensors, one after the other, as a tensor of shape (size, *shape)."""
        signature = sign("all_gather", tensor.dtype, tuple(tensor.shape))
        out = output(tensor, (self.size, *tensor.shape), out)
        return self._into(
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
            return self._run(signature, lambda c: self._backend.gather(c, source, None), async_op, timeout_s)
        out = output(tensor, (self.size, *tensor.shape), out)
        return self._into(signature, tensor, out, lambda c, t, o: self._backend.gather(c, t, o), async_op, timeout_s)

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
        return self._in_place(signature, out, lambda c, o: self._backend.scatter(c, rows, o, root), async_op, timeout_s)

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
        return self._into(signature, tensor, out, work, async_op, timeout_s)

    def all_to_all(
        self, tensor: Tensor, out: Tensor | None = None, *, async_op: bool = False, timeout_s: float | None = None
    ) -> Any:
        """Row r of the tensor, whose shape is (size, *shape), goes to rank r; row r of the result came from rank r."""
        signature = sign("all_to_all", tensor.dtype, tuple(tensor.shape))
        self._check_rows(tensor, "all_to_all")
        out = output(tensor, tuple(tensor.shape), out)
        return self._into(
            signature, tensor, out, lambda c, t, o: self._backend.all_to_all(c, t, o), async_op, timeout_s
        )

    def barrier(self, *, async_op: bool = False, timeout_s: float | None = None) -> Any:
        """Returns once every rank has called it."""
        return self._run(sign("barrier"), self._backend.barrier, async_op, timeout_s)

    # --- Messages ---

    def send(self, tensor: Tensor, to: int, *, async_op: bool = False, timeout_s: float | None = None) -> Any:
        """Sends to one rank, which receives into a tensor of the same dtype and shape, in the order sent."""
        self._check_peer(to, "send to")
        data = plain(tensor).view(-1).view(torch.uint8)
        call = self._call(sign("a message", tensor.dtype, tuple(tensor.shape)), timeout_s)
        return self._message(("send", to), call, lambda: self._backend.send(call, data, to), async_op)

    def recv(self, tensor: Tensor, source: int, *, async_op: bool = False, timeout_s: float | None = None) -> Any:
        """Receives what `source` sent into the tensor."""
        self._check_peer(source, "receive from")
        call = self._call(sign("a message", tensor.dtype, tuple(tensor.shape)), timeout_s)
        prepared = plain(tensor)

        def work() -> Tensor:
            self._backend.receive(call, prepared.view(-1).view(torch.uint8), source)
            return give_back(prepared, tensor)

        return self._message(("recv", source), call, work, async_op)

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
        return self._run(signature, lambda c: create(c.signature, extents, dtype, c.timeout_s), False, timeout_s)

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
        return self._run(signature, lambda c: create(c.signature, extents, dtype, c.timeout_s), False, timeout_s)

    @property
    def on_one_host(self) -> bool:
        """Whether all ranks share memory."""
        return isinstance(self._backend, OneHost)

    def probe(self, budget_s: float = 2.0) -> Topology:
        """Measures the links between all ranks, one pair at a time, and plans on them from now on."""
        self.topology = probe_links(self, budget_s)
        self._chosen.clear()
        return self.topology

    # --- Ending ---

    def close(self) -> None:
        """Leaves the group. What was asked for before ends first."""
        for lane in (self._lane, *self._message_lanes.values()):
            lane.close(self.timeout_s)
        self._broken = self._broken or "it was closed"
        self._finalizer()

    def __enter__(self) -> "Group":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- How ---

    def _in_place(
        self,
        signature: Signature,
        tensor: Tensor,
        work: Callable[[Call, Tensor], None],
        async_op: bool,
        timeout_s: float | None,
    ) -> Any:
        prepared = plain(tensor)

        def whole(call: Call) -> Tensor:
            work(call, prepared)
            return give_back(prepared, tensor)

        return self._run(signature, whole, async_op, timeout_s)

    def _into(
        self,
        signature: Signature,
        tensor: Tensor,
        out: Tensor,
        work: Callable[[Call, Tensor, Tensor], None],
        async_op: bool,
        timeout_s: float | None,
    ) -> Any:
        source, target = plain(tensor), plain(out)

        def whole(call: Call) -> Tensor:
            work(call, source, target)
            return give_back(target, out)

        return self._run(signature, whole, async_op, timeout_s)

    @overload
    def _run(
        self, signature: Signature, work: Callable[[Call], T], async_op: Literal[False], timeout_s: float | None
    ) -> T: ...

    @overload
    def _run(
        self, signature: Signature, work: Callable[[Call], T], async_op: bool, timeout_s: float | None
    ) -> T | Handle[T]: ...

    def _run(
        self, signature: Signature, work: Callable[[Call], T], async_op: bool, timeout_s: float | None
    ) -> T | Handle[T]:
        call = self._call(signature, timeout_s)

        def guarded() -> T:
            return self._guarded(lambda: work(call))

        if async_op:
            return self._lane.submit(signature.text, guarded)
        return self._lane.run(signature.text, guarded)

    def _guarded(self, work: Callable[[], T]) -> T:
        """Runs it, unless the group is broken; remembers if it breaks. After a mismatch nobody is ahead."""
        self._check_whole()
        try:
            return work()
        except (Mismatch, ConfigError):
            raise
        except BaseException as error:
            self._broken = f"{type(error).__name__}: {error}".rstrip(": ")
            if isinstance(self._backend, ManyHosts):
                self._backend.close()  # the ranks of this host wait for us, not for who is lost: tell them at once
            raise

    def _finish_quick(
        self, code: int, quick: tuple[Any, Signature, int, Reduction], tensor: Tensor, timeout_s: float | None
    ) -> None:
        kernel, signature, count, how = quick
        arguments = (self._me, tensor.data_ptr(), count, how.code, signature.number, 0, how.item_bytes)
        limit = self.timeout_s if timeout_s is None else timeout_s
        board = self._host.board
        self._guarded(lambda: board.finish(code, lambda: int(kernel(*arguments)), signature, limit))

    def _call(self, signature: Signature, timeout_s: float | None) -> Call:
        return Call(signature, self.timeout_s if timeout_s is None else timeout_s)

    def _message(self, key: tuple[str, int], call: Call, work: Callable[[], T], async_op: bool) -> Any:
        # Each direction to each peer has its own lane: a receive that waits must not keep the send that it waits for.
        lane = self._message_lanes.setdefault(key, Lane())
        text = f"{key[0]} of {call.signature.text}"
        if async_op:
            return lane.submit(text, lambda: self._guarded(work))
        return lane.run(text, lambda: self._guarded(work))

    def _check_whole(self) -> None:
        self._host.board.check_process()
        if self._broken:
            raise CommunicationError(f"group {self.name!r} can't be used any more ({self._broken}); join a new one")

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

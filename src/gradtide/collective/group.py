"""Group: ranks that work together. This file checks and prepares what is asked for; one_host.py and others do it."""

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, TypeVar, overload

import torch

from gradtide.collective.board import Board, Layout
from gradtide.collective.channel import Channels
from gradtide.collective.kernels import DONE, KERNELS
from gradtide.collective.lane import Lane
from gradtide.collective.one_host import IN_PLACE_BYTES, Call, OneHost
from gradtide.collective.reductions import Reduction, reduction
from gradtide.collective.signature import Signature, sign
from gradtide.errors import CommunicationError, ConfigError, Mismatch
from gradtide.handle import Handle
from gradtide.transport.rendezvous import Place, join_host

__all__ = ["Group"]

T = TypeVar("T")
Tensor = torch.Tensor


class Group:
    """Ranks that work together. All of them call the same operations in the same order.

    Every operation takes `timeout_s` (how long a rank may be missing before PeerTimeout) and `async_op` (return a
    Handle at once; the operation runs in the background, in order). One that changes its tensor in place returns it.
    """

    def __init__(self, name: str, backend: OneHost, timeout_s: float) -> None:
        self.name, self.rank, self.size, self.timeout_s = name, backend.rank, backend.size, timeout_s
        self._backend = backend
        self._channels = Channels(backend.board)
        self._lane = Lane()
        self._message_lanes: dict[tuple[str, int], Lane] = {}
        self._broken = ""
        self._quick: dict[Any, tuple[Any, Signature, int, Reduction]] = {}
        self._me = backend.board.me
        self._finalizer = weakref.finalize(self, backend.close)

    @classmethod
    def join(cls, name: str, rank: int, size: int, *, timeout_s: float = 60.0) -> "Group":
        """Joins `size` processes of this host and user that give the same name, each with its own rank."""
        if size < 1 or not 0 <= rank < size:
            raise ConfigError(f"rank {rank} of {size} makes no sense; ranks go from 0 to size - 1")
        layout = Layout(size)
        peers, mapping = join_host(Place(name, rank, size), layout.total_bytes, timeout_s)
        return cls(name, OneHost(Board(rank, size, peers, mapping)), timeout_s)

    # --- Collectives ---

    def all_reduce(
        self, tensor: Tensor, op: str = "sum", *, async_op: bool = False, timeout_s: float | None = None
    ) -> Any:
        """Every rank's tensor becomes the reduction of all, in rank order: the same bits on all, whatever the size."""
        quick = self._quick.get((op, tensor.dtype, tensor.shape))
        # The shortest way for small tensors: one compiled call does it all (4 KB between two ranks: under 2 us).
        if (
            quick
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
        return self._all_reduce(tensor, op, async_op, timeout_s)

    def _all_reduce(self, tensor: Tensor, op: str, async_op: bool, timeout_s: float | None) -> Any:
        how = reduction(op, tensor.dtype)
        signature = sign(f"all_reduce({op})", tensor.dtype, tuple(tensor.shape))
        if how.element is not None and tensor.numel() * how.item_bytes < IN_PLACE_BYTES:
            if len(self._quick) > 1024:
                self._quick.clear()
            self._quick[op, tensor.dtype, tensor.shape] = KERNELS.STAGED[how.element], signature, tensor.numel(), how
        return self._in_place(
            signature, tensor, lambda call, t: self._backend.all_reduce(call, t, how), async_op, timeout_s
        )

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
        out = _output(tensor, (self.size, *tensor.shape), out)
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
            source = _plain(tensor)
            return self._run(signature, lambda c: self._backend.gather(c, source, None), async_op, timeout_s)
        out = _output(tensor, (self.size, *tensor.shape), out)
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
            _output(source, (self.size, *out.shape), source)
        signature = sign(f"scatter(from {root})", out.dtype, tuple(out.shape))
        rows = None if source is None else _plain(source)
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
        out = _output(tensor, tuple(tensor.shape[1:]), out)
        work = lambda c, t, o: self._backend.reduce_scatter(c, t, o, how)  # noqa: E731
        return self._into(signature, tensor, out, work, async_op, timeout_s)

    def all_to_all(
        self, tensor: Tensor, out: Tensor | None = None, *, async_op: bool = False, timeout_s: float | None = None
    ) -> Any:
        """Row r of the tensor, whose shape is (size, *shape), goes to rank r; row r of the result came from rank r."""
        signature = sign("all_to_all", tensor.dtype, tuple(tensor.shape))
        self._check_rows(tensor, "all_to_all")
        out = _output(tensor, tuple(tensor.shape), out)
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
        data = _plain(tensor).view(-1).view(torch.uint8)
        signature = sign("a message", tensor.dtype, tuple(tensor.shape))
        limit = self.timeout_s if timeout_s is None else timeout_s
        return self._message(("send", to), signature, lambda: self._channels.send(signature, data, to, limit), async_op)

    def recv(self, tensor: Tensor, source: int, *, async_op: bool = False, timeout_s: float | None = None) -> Any:
        """Receives what `source` sent into the tensor."""
        self._check_peer(source, "receive from")
        signature = sign("a message", tensor.dtype, tuple(tensor.shape))
        limit = self.timeout_s if timeout_s is None else timeout_s
        plain = _plain(tensor)

        def work() -> Tensor:
            self._channels.receive(signature, plain.view(-1).view(torch.uint8), source, limit)
            return _give_back(plain, tensor)

        return self._message(("recv", source), signature, work, async_op)

    # --- Memory ---

    def shared_tensor(
        self, shape: tuple[int, ...] | int, dtype: torch.dtype = torch.float32, *, timeout_s: float | None = None
    ) -> Tensor:
        """A zero-filled tensor of this rank's own in memory that all ranks see, so that collectives on it copy nothing.

        All ranks call it together. Slices of it count too. The memory goes when the last tensor over it goes.
        """
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        signature = sign("shared_tensor", dtype, extents)
        create = self._backend.segments.create
        return self._run(signature, lambda c: create(c.signature, extents, dtype, c.timeout_s), False, timeout_s)

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
        plain = _plain(tensor)

        def whole(call: Call) -> Tensor:
            work(call, plain)
            return _give_back(plain, tensor)

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
        source, target = _plain(tensor), _plain(out)

        def whole(call: Call) -> Tensor:
            work(call, source, target)
            return _give_back(target, out)

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
        call = Call(signature, self.timeout_s if timeout_s is None else timeout_s)

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
            raise

    def _finish_quick(
        self, code: int, quick: tuple[Any, Signature, int, Reduction], tensor: Tensor, timeout_s: float | None
    ) -> None:
        kernel, signature, count, how = quick
        arguments = (self._me, tensor.data_ptr(), count, how.code, signature.number, 0, how.item_bytes)
        limit = self.timeout_s if timeout_s is None else timeout_s
        board = self._backend.board
        self._guarded(lambda: board.finish(code, lambda: int(kernel(*arguments)), signature, limit))

    def _message(self, key: tuple[str, int], signature: Signature, work: Callable[[], T], async_op: bool) -> Any:
        # Each direction to each peer has its own lane: a receive that waits must not keep the send that it waits for.
        lane = self._message_lanes.setdefault(key, Lane())
        text = f"{key[0]} of {signature.text}"
        if async_op:
            return lane.submit(text, lambda: self._guarded(work))
        return lane.run(text, lambda: self._guarded(work))

    def _check_whole(self) -> None:
        self._backend.board.check_process()
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


def _plain(tensor: Tensor) -> Tensor:
    """The tensor itself if it is contiguous memory of the CPU, or else a copy that is."""
    if tensor.layout != torch.strided:
        raise ConfigError(f"a tensor of layout {tensor.layout} can't be communicated; make it dense first")
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def _give_back(plain: Tensor, tensor: Tensor) -> Tensor:
    """Puts the result where it was asked for, if that is elsewhere."""
    if plain.data_ptr() != tensor.data_ptr() or plain.device != tensor.device or plain.is_conj() != tensor.is_conj():
        tensor.detach().copy_(plain)
    return tensor


def _output(tensor: Tensor, shape: tuple[int, ...], out: Tensor | None) -> Tensor:
    if out is None:
        return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    if tuple(out.shape) != shape or out.dtype != tensor.dtype:
        raise ConfigError(
            f"expected {str(tensor.dtype).removeprefix('torch.')}{list(shape)}, "
            f"got {str(out.dtype).removeprefix('torch.')}{list(out.shape)}"
        )
    return out

"""torch's process group over a Group: the operations under the names and with the arguments that torch uses.

torch calls some of them from C++ (DDP, functional collectives), the rest from Python. Where a caller waits anyway,
`opts.asyncOp` is False and the operation runs in the caller's thread; else the group's own thread runs it, in order.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gradtide.collective.c10d.compiling import never_compiled
from gradtide.collective.c10d.errors import BadArgument, as_torch_error
from gradtide.collective.c10d.reconfigure import Reconfiguring, Unformed
from gradtide.collective.c10d.shapes import are_alike, check_count, check_device, fill, flat, put_back, stacked
from gradtide.collective.c10d.sparse import all_reduce_sparse
from gradtide.collective.c10d.splitting import Splitter
from gradtide.collective.c10d.versions import no_error
from gradtide.collective.c10d.work import Finished, Work, finished
from gradtide.collective.groups.group import Group
from gradtide.errors import ConfigError, GradtideError

__all__ = ["ProcessGroup"]

Tensor = torch.Tensor
_torch: Any = vars(dist)  # torch does not declare all that is in there
_Base: Any = _torch["ProcessGroup"]
_REDUCTIONS = {"SUM": "sum", "AVG": "mean", "MIN": "min", "MAX": "max", "PRODUCT": "product"}
_REDUCTIONS |= {name.upper(): name for name in ("band", "bor", "bxor")}
# By the number of torch's enumeration: a dictionary of its members would take 3 us to look up.
_BY_NUMBER = {int(getattr(_torch["ReduceOp"], theirs)): ours for theirs, ours in _REDUCTIONS.items()}


_SUM = _torch["ReduceOp"].SUM
_PLANNED_BYTES = 64 * 1024  # what is smaller waits for latencies, whatever the way


def _reduction(opts: Any) -> str:
    asked = opts.reduceOp
    if asked == _SUM:
        return "sum"
    name = _BY_NUMBER.get(int(asked.op))
    if name is None:
        raise BadArgument(f"gradtide has no {asked.op}; multiply the tensor yourself and use SUM")
    return name


def _limit(opts: Any) -> float | None:
    """How long it may take; None: as long as the group says."""
    seconds: float = opts.timeout.total_seconds()
    return seconds if seconds > 0 else None


@never_compiled
class ProcessGroup(_Base):  # type: ignore[misc]
    """One rank's process group. `group` is what does the work.

    prepare: makes a group ready, and says whether large tensors are reduced as the planner finds best on its topology.
    """

    def __init__(
        self,
        group: Group | Unformed,
        store: Any,
        splitter: Splitter,
        called: str,
        timeout_s: float,
        prepare: Callable[[Group], bool],
    ) -> None:
        super().__init__(group.rank, group.size)
        self.group: Any = group
        self._store, self._splitter, self._prepare = store, splitter, prepare
        self._called, self._timeout_s = called, timeout_s  # of members that come later, too
        self._planned = not isinstance(group, Unformed) and prepare(group)
        self._reconfiguring = Reconfiguring(store)
        self._name, self._description, self._sequence = "", "", 0

    # --- Collectives ---

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Finished:
        opts = opts or _torch["AllreduceOptions"]()
        return self._run("all_reduce", opts, tensors, self._all_reduce, tensors, _reduction(opts))

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> Finished:
        return self.allreduce(tensors, opts)

    def _all_reduce(self, limit_s: float | None, tensors: Sequence[Tensor], op: str) -> None:
        for tensor in tensors:
            if tensor.layout is not torch.strided:
                all_reduce_sparse(self.group, tensor, op, limit_s)
            else:
                row = flat(tensor)
                strategy = "auto" if self._planned and row.nbytes >= _PLANNED_BYTES else None
                self.group.all_reduce(row, op, strategy=strategy, timeout_s=limit_s)
                put_back(row, tensor)

    def broadcast(self, tensors: Sequence[Tensor], opts: Any = None) -> Finished:
        opts = opts or _torch["BroadcastOptions"]()
        return self._run("broadcast", opts, tensors, self._broadcast, tensors, opts.rootRank)

    def _broadcast(self, limit_s: float | None, tensors: Sequence[Tensor], root: int) -> None:
        for tensor in tensors:
            row = flat(tensor)
            self.group.broadcast(row, root, timeout_s=limit_s)
            put_back(row, tensor)

    def reduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Finished:
        opts = opts or _torch["ReduceOptions"]()
        return self._run("reduce", opts, tensors, self._reduce, tensors[0], _reduction(opts), opts.rootRank)

    def _reduce(self, limit_s: float | None, tensor: Tensor, op: str, root: int) -> None:
        row = flat(tensor)
        self.group.reduce(row, op, root, timeout_s=limit_s)
        put_back(row, tensor)

    def allgather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None) -> Finished:
        opts = opts or _torch["AllgatherOptions"]()
        return self._run("all_gather", opts, outputs, self._all_gather, outputs, inputs)

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> Finished:
        """Here outputs has a list a rank, where allgather's has a list a tensor."""
        return self.allgather(list(zip(*outputs, strict=True)), inputs, opts)

    def _all_gather(self, limit_s: float | None, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor]) -> None:
        for targets, tensor in zip(outputs, inputs, strict=True):
            self._check_many(targets)
            if are_alike([*targets, tensor]):
                fill(targets, self.group.all_gather(flat(tensor), timeout_s=limit_s))
            else:
                self._all_gather_uneven(limit_s, targets, tensor)

    def _all_gather_uneven(self, limit_s: float | None, targets: Sequence[Tensor], tensor: Tensor) -> None:
        """Of as many elements as each rank has: from each to all."""
        check_count([targets[self.group.rank]], tensor)
        for root, target in enumerate(targets):
            row = flat(tensor) if root == self.group.rank else flat(target)
            self.group.broadcast(row, root, timeout_s=limit_s)
            put_back(row, target)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Finished:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Finished:
        opts = opts or _torch["AllgatherOptions"]()
        return self._run("all_gather", opts, outputs, self._all_gather_single, outputs, inputs)

    def _all_gather_single(self, limit_s: float | None, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        for output, tensor in zip(outputs, inputs, strict=True):
            self._check_rows(output, tensor)
            row = flat(output)
            self.group.all_gather(flat(tensor), row.view(self.group.size, -1), timeout_s=limit_s)
            put_back(row, output)

    def reduce_scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any = None
    ) -> Finished:
        opts = opts or _torch["ReduceScatterOptions"]()
        return self._run("reduce_scatter", opts, outputs, self._reduce_scatter, outputs, inputs, _reduction(opts))

    def _reduce_scatter(
        self, limit_s: float | None, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], op: str
    ) -> None:
        for output, tensors in zip(outputs, inputs, strict=True):
            self._check_many(tensors)
            if are_alike([*tensors, output]):
                row = flat(output)
                self.group.reduce_scatter(stacked(tensors), op, row, timeout_s=limit_s)
                put_back(row, output)
            else:
                self._reduce_scatter_uneven(limit_s, output, tensors, op)

    def _reduce_scatter_uneven(self, limit_s: float | None, output: Tensor, tensors: Sequence[Tensor], op: str) -> None:
        """Of as many elements as each rank is to have: reduced to one after the other."""
        check_count([tensors[self.group.rank]], output)
        for root, tensor in enumerate(tensors):
            row = flat(tensor).clone() if root == self.group.rank else flat(tensor)
            self.group.reduce(row, op, root, timeout_s=limit_s)
            if root == self.group.rank:
                put_back(row, output)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Finished:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Finished:
        opts = opts or _torch["ReduceScatterOptions"]()
        arguments = outputs, inputs, _reduction(opts)
        return self._run("reduce_scatter", opts, outputs, self._reduce_scatter_single, *arguments)

    def _reduce_scatter_single(
        self, limit_s: float | None, outputs: Sequence[Tensor], inputs: Sequence[Tensor], op: str
    ) -> None:
        for output, tensor in zip(outputs, inputs, strict=True):
            self._check_rows(tensor, output)
            row = flat(output)
            self.group.reduce_scatter(flat(tensor).view(self.group.size, -1), op, row, timeout_s=limit_s)
            put_back(row, output)

    def gather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None) -> Finished:
        opts = opts or _torch["GatherOptions"]()
        return self._run("gather", opts, outputs, self._gather, outputs, inputs[0], opts.rootRank)

    def _gather(self, limit_s: float | None, outputs: Sequence[Sequence[Tensor]], tensor: Tensor, root: int) -> None:
        if self.group.rank == root:
            self._check_many(outputs[0])
            check_count(outputs[0], tensor)
        rows = self.group.gather(flat(tensor), root, timeout_s=limit_s)
        if rows is not None:
            fill(outputs[0], rows)

    def scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any = None) -> Finished:
        opts = opts or _torch["ScatterOptions"]()
        return self._run("scatter", opts, outputs, self._scatter, outputs[0], inputs, opts.rootRank)

    def _scatter(self, limit_s: float | None, output: Tensor, inputs: Sequence[Sequence[Tensor]], root: int) -> None:
        source = None
        if self.group.rank == root:
            self._check_many(inputs[0])
            check_count(inputs[0], output)
            source = stacked(inputs[0])
        row = flat(output)
        self.group.scatter(row, source, root, timeout_s=limit_s)
        put_back(row, output)

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> Finished:
        opts = opts or _torch["AllToAllOptions"]()
        return self._run("all_to_all", opts, outputs, self._all_to_all, outputs, inputs)

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_sizes: Sequence[int], sizes: Sequence[int], opts: Any = None
    ) -> Finished:
        """The sizes count rows of the first dimension; none means all the same."""
        opts = opts or _torch["AllToAllOptions"]()
        return self._run(
            "all_to_all", opts, [output], self._all_to_all_single, output, tensor, output_sizes or (), sizes or ()
        )

    def _all_to_all_single(
        self, limit_s: float | None, output: Tensor, tensor: Tensor, output_sizes: Sequence[int], sizes: Sequence[int]
    ) -> None:
        row, ranks = flat(output), self.group.size
        if sizes or output_sizes:
            given, wanted = self._split(tensor, sizes), self._split(output, output_sizes)
            self.group.all_to_all_split(flat(tensor), given, row, wanted, timeout_s=limit_s)
        else:
            for whole in (tensor, output):
                if not whole.dim() or len(whole) % ranks:
                    self._split(whole, ())  # refuses it
            self.group.all_to_all(flat(tensor).view(ranks, -1), row.view(ranks, -1), timeout_s=limit_s)
        put_back(row, output)

    def _split(self, tensor: Tensor, sizes: Sequence[int]) -> list[int]:
        """How many elements each rank has of it."""
        length, ranks = tensor.shape[0] if tensor.dim() else 1, self.group.size
        if (not sizes and length % ranks) or (sizes and (len(sizes) != ranks or sum(sizes) != length)):
            raise ConfigError(f"{length} rows can't be split between {ranks} ranks as {list(sizes) or 'equal parts'}")
        width = tensor.numel() // length if length else 0
        return [size * width for size in sizes or [length // ranks] * ranks]

    def _all_to_all(self, limit_s: float | None, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """It need not be as much for all."""
        self._check_many(outputs)
        self._check_many(inputs)
        given, wanted = [t.numel() for t in inputs], [t.numel() for t in outputs]
        row = inputs[0].new_empty(sum(wanted))
        self.group.all_to_all_split(torch.cat([flat(t) for t in inputs]), given, row, wanted, timeout_s=limit_s)
        fill(outputs, row.split(wanted))

    def barrier(self, opts: Any = None) -> Finished:
        opts = opts or _torch["BarrierOptions"]()
        return self._run("barrier", opts, [], lambda limit_s: self.group.barrier(timeout_s=limit_s))

    # What the operations were called before, and still are in some callers.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # --- Messages ---

    def send(self, tensors: Sequence[Tensor], to: int, tag: int = 0) -> Finished:
        try:
            return Work(self.group, self.group.messages.send(flat(tensors[0]), to, tag, None, now=False), list(tensors))
        except GradtideError as error:
            raise as_torch_error(error) from None

    def recv(self, tensors: Sequence[Tensor], source: int | None, tag: int = 0) -> Finished:
        check_device(tensors[0])
        try:
            receipt = self.group.messages.receive(tensors[0], source, tag, None, now=False, any_shape=True)
        except GradtideError as error:
            raise as_torch_error(error) from None
        return Work(self.group, receipt, list(tensors))

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> Finished:
        return self.recv(tensors, None, tag)

    # --- What torch asks of a process group ---

    def getBackendName(self) -> str:
        return "gradtide"

    name = _get_backend_name = getBackendName

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name, group_desc = property(getGroupName), property(getGroupDesc)
    supports_splitting, supports_coalescing, supports_time_estimate = True, False, False

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> "ProcessGroup":
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"the gradtide backend has no part for {device}; it takes CPU tensors")
        return self

    @property
    def options(self) -> Any:
        """What the group was made with, for its parts."""
        return self._splitter.options

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> "ProcessGroup | None":
        """A group of these ranks of this one; None for who is not one of them. All ranks call it."""
        limit = timedelta(seconds=self.group.timeout_s) if timeout is None else timeout
        part: ProcessGroup | None = self._splitter.split(
            self.group.rank, self.group.size, ranks, limit, opts, group_name or ""
        )
        if part is not None:
            part.setGroupDesc(group_desc or f"{self._description}:split")
        return part

    def perform_nocolor_split(self, device: torch.device) -> None:
        """What a rank calls that is in no part; nobody waits for it here."""

    def get_group_store(self) -> Any:
        return self._store

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def rank(self) -> int:
        return int(self.group.rank)

    def size(self) -> int:
        return int(self.group.size)

    getRank, getSize = rank, size  # as torch's C++ part asks

    def set_timeout(self, timeout: Any) -> None:
        self._timeout_s = timeout.total_seconds()
        self.group.set_timeout(self._timeout_s)

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Lets what was asked for end, then leaves."""
        self.group.close()

    def abort(self) -> None:
        """Leaves at once; what is under way fails."""
        self.group.abort()

    # --- Other members ---

    supports_reconfigure = True

    def get_reconfigure_handle(self) -> str:
        return self._reconfiguring.handle

    def reconfigure(self, opts: Any) -> Finished:
        """Those whose handles are given work together from now on, and all of them call it: without a rank that died,
        say, or with one that is new. What was under way fails."""
        try:
            self.group = self._reconfiguring.join(self._called, opts, self._timeout_s, self.group.close)
            self._planned = self._prepare(self.group)
        except GradtideError as error:
            raise as_torch_error(error) from None
        return finished([])

    def get_error(self) -> Any:
        """As torch asks from 2.14 on: errors are raised where they happen, and none is kept for later."""
        return no_error()

    # --- How ---

    def _run(self, what: str, opts: Any, result: Sequence[Any], work: Callable[..., None], *arguments: Any) -> Finished:
        limit_s = _limit(opts)
        self._sequence += 1
        if not opts.asyncOp:
            try:
                work(limit_s, *arguments)
            except GradtideError as error:
                raise as_torch_error(error) from None
            return finished(result)
        if self.group.in_background():  # by a callback of an operation that has just ended: it may wait for this one
            return _at_once(lambda: work(limit_s, *arguments), list(result))
        return Work(self.group, self.group.submit(what, lambda: work(limit_s, *arguments)), list(result))

    def _check_many(self, tensors: Sequence[Tensor]) -> None:
        if len(tensors) != self.group.size:
            raise ConfigError(f"{len(tensors)} tensors given, one a rank needed: {self.group.size}")

    def _check_rows(self, whole: Tensor, part: Tensor) -> None:
        if whole.numel() != part.numel() * self.group.size or whole.dtype != part.dtype:
            raise ConfigError(
                f"{whole.dtype}{list(whole.shape)} does not hold {self.group.size} times "
                f"{part.dtype}{list(part.shape)}, once a rank"
            )


def _at_once(work: Callable[[], None], result: list[Any]) -> Finished:
    try:
        work()
    except GradtideError as error:
        return finished(result, as_torch_error(error))
    return finished(result)

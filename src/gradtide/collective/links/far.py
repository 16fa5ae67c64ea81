"""The collectives between hosts, on tensors: one leader a host calls them. All are contiguous and on the CPU.

What is worked out for a size and an operation is kept: the next one begins with a few additions and the first send.
"""

from collections.abc import Callable, Hashable, Sequence

import torch

from gradtide.collective.host.one_host import Call
from gradtide.collective.host.reductions import Reduction, combine
from gradtide.collective.host.signature import Signature, sign
from gradtide.collective.links import operations
from gradtide.collective.links.links import HostLinks, Prepared
from gradtide.collective.links.parts import Adding, Base, Exchange, Extent
from gradtide.even_share import even_share
from gradtide.kernels import ExchangePlan

__all__ = ["TEXT_BYTES", "Far"]

Tensor = torch.Tensor
_REMEMBERED = 1024  # exchanges
TEXT_BYTES = 1024  # of what a host says it asks for
_TEXTS = sign("what the hosts ask for")
_NOTHING_ALIKE = sign("nothing: ranks of one host disagree")


class Far:
    """This host's side of every collective between hosts. `ranks` is how many ranks there are in all, for means."""

    def __init__(self, links: HostLinks, ranks: int) -> None:
        self.links, self.me, self.hosts, self._ranks = links, links.me, links.hosts, ranks
        self._prepared: dict[Hashable, Prepared] = {}

    def barrier(self, call: Call) -> None:
        self.links.run(call, self._get("barrier", lambda: operations.all_gather(self.me, _at(0, 0), self._rows(0))), 0)

    def all_reduce(self, call: Call, tensor: Tensor, how: Reduction) -> None:
        if how.blocks is None:
            return self._all_reduce_by_torch(call, tensor, how)
        key = "all_reduce", tensor.nbytes, how.name, how.dtype
        prepared = self._prepared.get(key) or self._get(key, lambda: self._all_reduce(tensor.nbytes, how))
        return self.links.run(call, prepared, tensor.data_ptr())

    def plan_all_reduce(self, signature: Signature, size_bytes: int, how: Reduction) -> Prepared:
        """For links.begin: an all-reduce that kernels can do."""
        prepared = self.links.prepare(self._all_reduce(size_bytes, how))
        prepared.words[ExchangePlan.SIGNATURE] = signature.number
        return prepared

    def _all_reduce(self, size_bytes: int, how: Reduction) -> Exchange:
        return operations.all_reduce(self.me, self.hosts, size_bytes, how.item_bytes, self._blocks(how))

    def reduce_scatter(self, call: Call, rows: Tensor, counts: tuple[int, ...], out: Tensor, how: Reduction) -> None:
        """The first counts[0] rows are host 0's, and so on; the reduction of ours goes to out."""
        if how.blocks is None:
            return self._reduce_scatter_by_torch(call, rows, counts, out, how)
        key = "reduce_scatter", counts, rows.nbytes, how.name, how.dtype

        def layout() -> Exchange:
            whole = Extent(Base.OUT, 0, out.nbytes)
            return operations.reduce_scatter(self.me, _cut(rows, counts, Base.TENSOR), whole, self._blocks(how))

        return self.links.run(call, self._get(key, layout), rows.data_ptr(), out.data_ptr())

    def all_gather(self, call: Call, rows: Tensor, counts: tuple[int, ...]) -> None:
        """The first counts[0] rows are host 0's, and so on: each host has its own in place, and gets the others'."""

        def layout() -> Exchange:
            places = _cut(rows, counts, Base.TENSOR)
            return operations.all_gather(self.me, places[self.me], places)

        self.links.run(call, self._get(("all_gather", counts, rows.nbytes), layout), rows.data_ptr())

    def broadcast(self, call: Call, tensor: Tensor, root: int) -> None:
        key = "broadcast", root, tensor.nbytes
        prepared = self._get(key, lambda: operations.broadcast(self.me, self.hosts, root, tensor.nbytes))
        self.links.run(call, prepared, tensor.data_ptr())

    def all_to_all(
        self, call: Call, rows: Tensor, leaving: tuple[int, ...], out: Tensor, arriving: tuple[int, ...]
    ) -> None:
        """So many rows for each host, in order; and so many from each. Our own are copied."""

        def layout() -> Exchange:
            there, back = _cut(rows, leaving, Base.TENSOR), _cut(out, arriving, Base.OUT)
            return operations.all_to_all(self.me, there, back)

        key = "all_to_all", leaving, arriving, rows.nbytes, out.nbytes
        self.links.run(call, self._get(key, layout), rows.data_ptr(), out.data_ptr())
        begin, target = sum(leaving[: self.me]), sum(arriving[: self.me])
        out[target : target + arriving[self.me]].copy_(rows[begin : begin + leaving[self.me]])

    # --- When hosts disagree ---

    def refuse(self, timeout_s: float) -> None:
        """Takes part in what the other hosts ask for with a word that fits nothing: Disagreement is raised on all."""
        self.barrier(Call(_NOTHING_ALIKE, timeout_s))

    def say(self, text: str, timeout_s: float) -> Tensor:
        """What each host asks for, a row of bytes each."""
        rows = torch.zeros(self.hosts, TEXT_BYTES, dtype=torch.uint8)
        encoded = text.encode()[:TEXT_BYTES]
        rows[self.me, : len(encoded)] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
        self.all_gather(Call(_TEXTS, timeout_s), rows, (1,) * self.hosts)
        return rows

    # --- How ---

    def _get(self, key: Hashable, layout: Callable[[], Exchange]) -> Prepared:
        found = self._prepared.get(key)
        if found is None:
            if len(self._prepared) >= _REMEMBERED:
                self._prepared.clear()
            found = self._prepared[key] = self.links.prepare(layout())
        return found

    def _blocks(self, how: Reduction) -> Adding:
        assert how.blocks is not None
        return Adding(how.blocks.combine, how.blocks.last, how.blocks.item_bytes, self._ranks)

    def _rows(self, size_bytes: int) -> list[Extent]:
        return [_at(host * size_bytes, size_bytes) for host in range(self.hosts)]

    def _all_reduce_by_torch(self, call: Call, tensor: Tensor, how: Reduction) -> None:
        """For types that kernels can't add: shares arrive whole, torch adds them up, and they are handed out."""
        flat = tensor.view(-1)
        ends = [even_share(len(flat), host, self.hosts) for host in range(self.hosts)]
        counts = tuple(end - begin for begin, end in ends)
        mine = flat[slice(*ends[self.me])]
        self.reduce_scatter(call, flat, counts, mine, how)
        self.all_gather(call, flat, counts)

    def _reduce_scatter_by_torch(
        self, call: Call, rows: Tensor, counts: tuple[int, ...], out: Tensor, how: Reduction
    ) -> None:
        arrived = out.new_empty((self.hosts, *out.shape))
        arriving = [Extent(Base.OUT, host * out.nbytes, out.nbytes) for host in range(self.hosts)]
        layout = operations.all_to_all(self.me, _cut(rows, counts, Base.TENSOR), arriving)
        self.links.run(call, self.links.prepare(layout), rows.data_ptr(), arrived.data_ptr())
        begin = sum(counts[: self.me])
        arrived[self.me] = rows[begin : begin + counts[self.me]]
        self._reduce(how, out, arrived)

    def _reduce(self, how: Reduction, out: Tensor, arrived: Tensor) -> None:
        for row in arrived[1:]:
            combine(how, arrived[0], row)
        how.finish(arrived[0], self._ranks)
        out.copy_(arrived[0])


def _at(offset: int, size_bytes: int) -> Extent:
    return Extent(Base.TENSOR, offset, size_bytes)


def _cut(rows: Tensor, counts: Sequence[int], base: Base) -> list[Extent]:
    """Where each host's rows lie."""
    row_bytes, begin, places = rows.nbytes // max(1, len(rows)), 0, []
    for count in counts:
        places.append(Extent(base, begin * row_bytes, count * row_bytes))
        begin += count
    return places

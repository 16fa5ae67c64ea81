"""What is said and added up between hosts outside of stages: texts, refusals, and types that kernels can't add.

All of it goes over the rail that this rank drives. Tensors are contiguous and on the CPU.
"""

from collections.abc import Sequence

import torch

from gradtide.collective.host.extents import Base, Extent
from gradtide.collective.host.one_host import Call
from gradtide.collective.host.reductions import Reduction, combine
from gradtide.collective.host.signature import sign
from gradtide.collective.links import operations
from gradtide.collective.links.links import HostLinks
from gradtide.even_share import even_share

__all__ = ["TEXT_BYTES", "Far"]

Tensor = torch.Tensor
TEXT_BYTES = 1024  # of what a host says it asks for
_TEXTS = sign("what the hosts ask for")
_NOTHING_ALIKE = sign("nothing: ranks of one host disagree")


class Far:
    """This host's side. `ranks` is how many ranks there are in all, for means."""

    def __init__(self, links: HostLinks, me: int, hosts: int, ranks: int) -> None:
        self._links, self._me, self._hosts, self._ranks = links, me, hosts, ranks

    # --- When hosts disagree ---

    def refuse(self, timeout_s: float) -> None:
        """Takes part in what the other hosts ask for with a word that fits nothing: Disagreement is raised on all."""
        self._all_gather(Call(_NOTHING_ALIKE, timeout_s), torch.empty(0), (0,) * self._hosts)

    def say(self, text: str, timeout_s: float) -> Tensor:
        """What each host asks for, a row of bytes each."""
        rows = torch.zeros(self._hosts, TEXT_BYTES, dtype=torch.uint8)
        encoded = text.encode()[:TEXT_BYTES]
        rows[self._me, : len(encoded)] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
        self._all_gather(Call(_TEXTS, timeout_s), rows, (1,) * self._hosts)
        return rows

    # --- Types that kernels can't add: shares arrive whole, torch adds them up, and they are handed out ---

    def all_reduce(self, call: Call, tensor: Tensor, how: Reduction) -> None:
        flat = tensor.view(-1)
        ends = [even_share(len(flat), host, self._hosts) for host in range(self._hosts)]
        counts = tuple(end - begin for begin, end in ends)
        mine = flat[slice(*ends[self._me])]
        self.reduce_scatter(call, flat, counts, mine, how)
        self._all_gather(call, flat, counts)

    def reduce_scatter(self, call: Call, rows: Tensor, counts: Sequence[int], out: Tensor, how: Reduction) -> None:
        """The first counts[0] rows are host 0's, and so on; the reduction of ours goes to out."""
        arrived = out.new_empty((self._hosts, *out.shape))
        arriving = [Extent(Base.OUT, host * out.nbytes, out.nbytes) for host in range(self._hosts)]
        layout = operations.all_to_all(self._me, _cut(rows, counts), arriving)
        self._links.run(call, self._links.prepare(layout), rows.data_ptr(), arrived.data_ptr())
        for row in arrived[1:]:
            combine(how, arrived[0], row)
        how.finish(arrived[0], self._ranks)
        out.copy_(arrived[0])

    def _all_gather(self, call: Call, rows: Tensor, counts: Sequence[int]) -> None:
        """The first counts[0] rows are host 0's, and so on: each host has its own in place, and gets the others'."""
        places = _cut(rows, counts)
        layout = operations.all_gather(self._me, places[self._me], places)
        self._links.run(call, self._links.prepare(layout), rows.data_ptr())


def _cut(rows: Tensor, counts: Sequence[int]) -> list[Extent]:
    """Where each host's rows lie."""
    row_bytes, begin, places = rows.nbytes // max(1, len(rows)), 0, []
    for count in counts:
        places.append(Extent(Base.TENSOR, begin * row_bytes, count * row_bytes))
        begin += count
    return places

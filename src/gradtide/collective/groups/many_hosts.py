"""The collectives of ranks on several hosts: shared memory inside a host, links of our own between.

links/stages.py says what an operation is made of. What a rank asks for is compared where ranks meet anyway: a mismatch
inside a host or between hosts is found by those who meet, and then told to everybody, so that all raise the same and go
on.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count

import torch

from gradtide.collective.host.announcement import Announcement
from gradtide.collective.host.extents import Adding, Base, Extent, in_turn
from gradtide.collective.host.one_host import Call, OneHost
from gradtide.collective.host.prepare import overlap
from gradtide.collective.host.rank_watch import RankWatch
from gradtide.collective.host.reductions import Reduction, reduction
from gradtide.collective.host.signature import Signature, sign
from gradtide.collective.links import row_stages, stages
from gradtide.collective.links.connecting import Connect
from gradtide.collective.links.far import TEXT_BYTES, Far
from gradtide.collective.links.links import Disagreement, HostLinks
from gradtide.collective.links.operations import shares
from gradtide.collective.links.place import RankPlace, Stages
from gradtide.collective.links.rank_links import RankLinks
from gradtide.collective.links.running import Planned, StageRunner
from gradtide.collective.links.transfers import LinkSet
from gradtide.errors import Mismatch
from gradtide.kernels import DONE
from gradtide.transport.hosts import Hosts

__all__ = ["Between", "ManyHosts"]

_AGREEMENT, _DISAGREEMENT = sign("what the hosts ask for"), sign("something that the other hosts do not ask for")
_LINES, _LINE_BYTES = sign("where ranks listen"), 128
_REMEMBERED = 1024  # plans
_SMALL_BYTES = 256 << 10  # an all-to-all of as much is quicker by way of the rails
Tensor = torch.Tensor
Build = Callable[[], Stages]


@dataclass(frozen=True, slots=True)
class Between:
    """What a rank has besides its host: links of collectives and of messages, and who lives."""

    links: HostLinks
    ranks: RankLinks
    link_sets: Sequence[LinkSet]  # to be closed: those of messages and of schedules
    watch: RankWatch
    connect: Connect  # for more links


class ManyHosts:
    """Every collective, between the ranks of a job on several hosts."""

    def __init__(self, host: OneHost, hosts: Hosts, rank: int, between: Between) -> None:
        self.host, self.rank, self.size, self.watch = host, rank, len(hosts.leaders), between.watch
        self._links, self._ranks, self._link_sets = between.links, between.ranks, between.link_sets
        self._connect, self._flow_names = between.connect, count()
        self._here = hosts.together_with(rank)  # global ranks by local rank
        self._leaders = hosts.all_leaders()
        counts = tuple(hosts.leaders.count(leader) for leader in self._leaders)
        self._place = RankPlace(self._leaders.index(hosts.leaders[rank]), self._here.index(rank), counts)
        self._places = [
            (self._leaders.index(leader), hosts.together_with(leader).index(other))
            for other, leader in enumerate(hosts.leaders)
        ]
        self._order = [other for leader in self._leaders for other in hosts.together_with(leader)]
        self._in_order = self._order == sorted(self._order)  # whether each host's ranks stand together
        self._scattered = None if self._in_order else "in another order"
        self._far = Far(between.links, self._place.host, len(counts), self.size) if self._place.drives else None
        self._runner = StageRunner(host.board, between.links, between.watch)
        self._plans: dict[Hashable, Planned] = {}  # by the number of a signature, or that and more
        self.in_good_order = True  # as OneHost's

    def close(self) -> None:
        self.host.in_good_order = self.in_good_order
        self.watch.close(in_good_order=self.in_good_order)
        self._links.close()
        for links in self._link_sets:
            links.close()
        self.host.close()

    def lose(self, ranks: Sequence[int]) -> None:
        """These are dead, says somebody who knows. Of those of this host that is plain already."""
        for rank in ranks:
            if rank not in self._here:
                self.watch.lose(rank)

    # --- Flows ---

    @property
    def flows(self) -> int:
        """Connections between each two ranks of different hosts that collectives go over."""
        return self._links.used_flows

    def use_flows(self, call: Call, wanted: int, keep: bool) -> None:
        """All ranks, together: from now on so many. What is missing is connected; keep: what is left over is kept."""
        elsewhere = [rank for rank in range(self.size) if rank not in self._here]
        with self.together(call):
            while self._links.flows < wanted:
                purpose = f"flow {next(self._flow_names)}"
                self._links.add_flow(self._connect(purpose, elsewhere, call.timeout_s, self.watch.check))
            self._links.use_flows(wanted)
            self._plans.clear()
            if not keep:
                self._links.drop_unused_flows()

    # --- Agreeing ---

    @contextmanager
    def together(self, call: Call) -> Iterator[None]:
        """What is not made of stages runs inside this (schedules): it begins when all ranks have come for the same
        thing, and what happens to any of them ends it for all."""
        with self.watch.during(call.signature.text, call.timeout_s):
            try:
                self._run_inside(call, lambda: stages.barrier(self._place), torch.empty(0), more="barrier")
            except (Mismatch, Disagreement) as error:
                raise self._explained(call, error) from None
            yield

    @contextmanager
    def _checked(self, call: Call, *, entered: bool = False) -> Iterator[None]:
        """Every collective runs inside this: what happens to any rank ends it for all."""
        with self.watch.during(call.signature.text, call.timeout_s, entered=entered):
            try:
                yield
            except (Mismatch, Disagreement) as error:
                raise self._explained(call, error) from None

    def _explained(self, call: Call, error: Exception) -> Mismatch:
        """The same Mismatch on every rank, if not all ask for the same."""
        said = self._say(call, error)
        sides = "; ".join(f"the host of rank {leader}: {what}" for leader, what in said.items())
        return Mismatch(f"the hosts ask for different things ({sides}); {self.host.board.advice}")

    def _say(self, call: Call, error: Exception) -> dict[int, str]:
        """What each host asks for, by its leader. Who finds a mismatch inside a host tells the other hosts, on every
        rail; who finds one between hosts tells those of its host that do not drive, and wait for the result."""
        rows = torch.zeros(len(self._leaders), TEXT_BYTES, dtype=torch.uint8)
        if self._far is not None:
            mine = call.signature.text
            if isinstance(error, Mismatch):
                mine = str(error)
                with suppress(Disagreement):
                    self._far.refuse(self.watch.remaining_s())
            else:
                with suppress(Mismatch):
                    self.host.barrier(Call(_DISAGREEMENT, self.watch.remaining_s()))
            if self._place.local == 0:
                rows = self._far.say(mine, self.watch.remaining_s())
        self.host.broadcast(Call(_AGREEMENT, self.watch.remaining_s()), rows, 0)
        texts = [bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in rows]
        return dict(zip(self._leaders, texts, strict=True))

    # --- Running ---

    def planned(self, signature: Signature) -> Planned | None:
        """What an operation that went before, on the caller's own memory, was made of: for run_now()."""
        return self._plans.get(signature.number)

    def run_now(self, plan: Planned, tensor: int, out: int) -> int:
        """The short way: compiled calls, with next to nothing around them. Who gets another code than DONE goes on with
        finish()."""
        self.watch.enter()
        code = self._runner.begin(plan, tensor, out)
        if code == DONE:
            self.watch.finish()
        return code

    def all_reduce_now(self, plan: Planned, tensor: int) -> int:
        return self.run_now(plan, tensor, tensor)

    def finish(self, plan: Planned, tensor: Tensor, code: int, timeout_s: float) -> None:
        """Sees one that did not end at once to its end."""
        with self._checked(Call(plan.signature, timeout_s), entered=True):
            self._runner.finish(code, timeout_s)

    def run(self, plan: Planned, tensor: Tensor, timeout_s: float) -> None:
        code = self.all_reduce_now(plan, tensor.data_ptr())
        if code != DONE:
            self.finish(plan, tensor, code, timeout_s)

    def plan(self, signature: Signature, count: int, how: Reduction) -> Planned | None:
        return self.planned(signature)

    def _run(self, call: Call, build: Build, tensor: Tensor, out: Tensor | None = None, more: Hashable = None) -> None:
        """One operation. more: what a plan depends on besides the signature; such a one is not for run_now()."""
        with self._checked(call):
            self._run_inside(call, build, tensor, out, more)

    def _run_inside(
        self, call: Call, build: Build, tensor: Tensor, out: Tensor | None = None, more: Hashable = None
    ) -> None:
        number = call.signature.number
        key = number if more is None else (number, more)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _REMEMBERED:
                self._plans.clear()
            plan = self._plans[key] = self._runner.plan(call.signature, build())
        code = self._runner.begin(plan, tensor.data_ptr(), (tensor if out is None else out).data_ptr())
        self._runner.finish(code, call.timeout_s)
        self.watch.moved()

    # --- Collectives ---

    def gather_lines(self, line: str) -> list[str]:
        """What every rank says, in rank order, inside of together(): a short line each."""
        tensor = torch.zeros(_LINE_BYTES, dtype=torch.uint8)
        tensor[: len(line)] = torch.frombuffer(bytearray(line, "ascii"), dtype=torch.uint8)
        rows, call = torch.empty(self.size, _LINE_BYTES, dtype=torch.uint8), Call(_LINES, self.watch.remaining_s())
        self._run_inside(call, lambda: row_stages.all_gather(self._place, _LINE_BYTES), tensor, rows, more="lines")
        self._by_rank(rows, found := torch.empty_like(rows))
        return [bytes(row.tolist()).rstrip(b"\0").decode() for row in (rows if self._in_order else found)]

    def barrier(self, call: Call) -> None:
        with self._checked(call):
            self._run_inside(call, lambda: stages.barrier(self._place), torch.empty(0), more="barrier")

    def all_reduce(self, call: Call, tensor: Tensor, how: Reduction) -> None:
        if how.blocks is None:
            with self._checked(call):
                tensor.copy_(self._reduced_by_torch(call, tensor, how))
        else:
            inside, between = self._adding(how)
            self._run(call, lambda: stages.all_reduce(self._place, tensor.nbytes, inside, between), tensor)

    def reduce(self, call: Call, tensor: Tensor, how: Reduction, root: int) -> None:
        if how.blocks is None:
            with self._checked(call):
                reduced = self._reduced_by_torch(call, tensor, how)
            if self.rank == root:
                tensor.copy_(reduced)
        else:
            inside, between = self._adding(how)
            home = self._places[root]
            self._run(call, lambda: stages.reduce(self._place, tensor.nbytes, home, inside, between), tensor)

    def broadcast(self, call: Call, tensor: Tensor, root: int) -> None:
        self._run(call, lambda: stages.broadcast(self._place, tensor.nbytes, self._places[root]), tensor)

    def all_gather(self, call: Call, tensor: Tensor, out: Tensor) -> None:
        """out's rows are in rank order, wherever the ranks are; they travel in the order of the hosts."""
        rows, tensor = out if self._in_order else torch.empty_like(out), self._apart(tensor, out, row=True)
        self._run(call, lambda: row_stages.all_gather(self._place, tensor.nbytes), tensor, rows, self._scattered)
        self._by_rank(rows, out)

    def gather(self, call: Call, tensor: Tensor, out: Tensor | None, root: int) -> None:
        if not self._place.even:
            tensor = tensor if out is None else self._apart(tensor, out)
            sizes = [[tensor.nbytes * (to == root) for to in range(self.size)]] * self.size
            return self._run_split(call, tensor, tensor if out is None else out, sizes, ("gather", root))
        rows, home = out if out is None or self._in_order else torch.empty_like(out), self._places[root]
        tensor = tensor if out is None else self._apart(tensor, out, row=True)
        self._run(call, lambda: row_stages.gather(self._place, tensor.nbytes, home), tensor, rows, self._scattered)
        return None if out is None or rows is None else self._by_rank(rows, out)

    def scatter(self, call: Call, source: Tensor | None, out: Tensor, root: int) -> None:
        if self._place.even:
            source = None if source is None else self._apart(source, out, row=True)
            rows, home = out if source is None else self._by_host(source), self._places[root]
            return self._run(call, lambda: row_stages.scatter(self._place, out.nbytes, home), rows, out, "scatter")
        rows = out if source is None else self._apart(source, out)
        sizes = [[out.nbytes * (giver == root)] * self.size for giver in range(self.size)]
        return self._run_split(call, rows, out, sizes, ("scatter", root))

    def reduce_scatter(self, call: Call, tensor: Tensor, out: Tensor, how: Reduction) -> None:
        if how.blocks is None:
            with self._checked(call):
                return self._reduce_scatter_by_torch(call, tensor, out, how)
        rows, (inside, between) = self._by_host(self._apart(tensor, out, row=True)), self._adding(how)

        def build() -> Stages:
            return row_stages.reduce_scatter(self._place, out.nbytes, inside, between)

        return self._run(call, build, rows, out, self._scattered)

    def all_to_all(self, call: Call, tensor: Tensor, out: Tensor) -> None:
        row_bytes, tensor = tensor.nbytes // self.size, self._apart(tensor, out)
        sizes, several = [row_bytes] * self.size, self._place.here > 1
        if several and self._place.even and self._in_order and tensor.nbytes <= _SMALL_BYTES:
            return self._run(call, lambda: row_stages.small_all_to_all(self._place, row_bytes), tensor, out)
        return self._run(call, lambda: self._all_to_all(sizes, sizes, row_bytes), tensor, out)

    def all_to_all_split(self, call: Call, tensor: Tensor, out: Tensor, sizes: Sequence[Sequence[int]]) -> None:
        """sizes: how many bytes go from each rank to each, on which all have agreed."""
        self._run_split(call, self._apart(tensor, out), out, sizes, "split")

    def _run_split(
        self, call: Call, tensor: Tensor, out: Tensor, sizes: Sequence[Sequence[int]], more: Hashable
    ) -> None:
        leaving, arriving = sizes[self.rank], [row[self.rank] for row in sizes]
        widest = max(sizes[one][other] for one in self._here for other in self._here)
        key = more, *leaving, *arriving, widest
        self._run(call, lambda: self._all_to_all(leaving, arriving, widest), tensor, out, key)

    def _all_to_all(self, leaving: Sequence[int], arriving: Sequence[int], widest: int) -> Stages:
        there, back = in_turn(Base.TENSOR, leaving), in_turn(Base.OUT, arriving)
        return row_stages.all_to_all(self._place, there, back, self._here, widest)

    def _apart(self, source: Tensor, out: Tensor, *, row: bool = False) -> Tensor:
        """What is given, or a copy if results would be written over it before it has left. row: this rank's own row may
        lie where it belongs."""
        if not overlap(source, out):
            return source
        small, large = sorted((source, out), key=lambda tensor: tensor.nbytes)
        in_place = small.data_ptr() == large.data_ptr() + self.rank * small.nbytes
        return source if row and in_place else source.clone()

    def _by_host(self, rows: Tensor) -> Tensor:
        """Rows of all ranks, in the order of the hosts."""
        return rows if self._in_order else rows[self._order]

    def _by_rank(self, rows: Tensor, out: Tensor) -> None:
        """The other way."""
        if not self._in_order:
            out[self._order] = rows

    def _adding(self, how: Reduction) -> tuple[Adding, Adding]:
        """What adds up inside a host, and between hosts: the division of a mean comes last."""
        inside, between = reduction("sum", how.dtype) if how.name == "mean" else how, how.blocks
        assert inside.blocks is not None
        assert between is not None
        return Adding(*inside.blocks), Adding(*between, self.size)

    def _reduced_by_torch(self, call: Call, tensor: Tensor, how: Reduction) -> Tensor:
        """For types that kernels can't add."""
        whole, place = tensor.clone().view(-1), self._place
        self.host.all_reduce(call, whole, reduction("sum", how.dtype) if how.name == "mean" else how)
        cut = shares(Extent(Base.TENSOR, 0, whole.nbytes), place.drivers)
        if self._far is not None:
            begin, count = (n // how.item_bytes for n in (cut[place.local].offset, cut[place.local].size_bytes))
            self._far.all_reduce(call, whole[begin : begin + count], how)
        self._run_inside(call, lambda: stages.hand_out(place, cut), whole, more="hand out")
        return whole.view(tensor.shape)

    def _reduce_scatter_by_torch(self, call: Call, tensor: Tensor, out: Tensor, how: Reduction) -> None:
        if self._place.even and self._place.here == 1 and self._far is not None:
            self._far.reduce_scatter(call, tensor, self._place.counts, out.unsqueeze(0), how)
        else:
            out.copy_(self._reduced_by_torch(call, tensor, how)[self.rank])

    # --- Messages ---

    def send(self, call: Call, data: Tensor, target: int, tag: int) -> None:
        if target in self._here:
            self.host.send(call, data, self._here.index(target), tag)
        else:
            self._ranks.send(call, data, target, tag)

    def has_room(self, size_bytes: int, target: int) -> bool:
        if target in self._here:
            return self.host.has_room(size_bytes, self._here.index(target))
        return self._ranks.has_room(size_bytes, target)

    def is_announced(self, source: int) -> bool:
        if source in self._here:
            return self.host.is_announced(self._here.index(source))
        return self._ranks.is_announced(source)

    def is_at_hand(self, source: int) -> bool:
        if source in self._here:
            return self.host.is_at_hand(self._here.index(source))
        return self._ranks.is_at_hand(source)

    def progress(self, source: int) -> int:
        if source in self._here:
            return self.host.progress(self._here.index(source))
        return self._ranks.progress(source)

    def announced(self, call: Call, source: int) -> Announcement:
        if source in self._here:
            return self.host.announced(call, self._here.index(source))
        return self._ranks.announced(call, source)

    def take(self, call: Call, data: Tensor, source: int) -> None:
        if source in self._here:
            self.host.take(call, data, self._here.index(source))
        else:
            self._ranks.take(call, data, source)

    def gone(self) -> list[int]:
        """The ranks that died or left, and of which nothing more will come."""
        here = [self._here[rank] for rank in self.host.gone()]
        return here + [rank for rank in range(self.size) if rank not in self._here and self._ranks.is_gone(rank)]

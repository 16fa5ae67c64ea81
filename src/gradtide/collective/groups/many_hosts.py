"""The collectives of ranks on several hosts: shared memory inside a host, links of their leaders between.

An operation has three parts: the ranks of each host meet and bring together what is theirs, the leaders exchange it,
and each host hands out the result. What a rank asks for is compared where they meet anyway: a mismatch inside a host
or between hosts is found by those who meet, and then told to everybody, so that all raise the same and go on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch

from gradtide.collective.executors.gloo import Gloo
from gradtide.collective.executors.torch_wire import MessageWire
from gradtide.collective.host.announcement import Announcement
from gradtide.collective.host.one_host import AllReduce, Call, OneHost
from gradtide.collective.host.rank_watch import RankWatch
from gradtide.collective.host.reductions import Reduction, reduction
from gradtide.collective.host.signature import Signature, sign
from gradtide.collective.links.far import TEXT_BYTES, Far
from gradtide.collective.links.links import Disagreement
from gradtide.errors import Mismatch
from gradtide.kernels import DONE
from gradtide.transport.hosts import Hosts

__all__ = ["Between", "ManyHosts"]

_AGREEMENT, _DISAGREEMENT = sign("what the hosts ask for"), sign("something that the other hosts do not ask for")
_MESSAGE = 1 << 26  # a tag; below it are those of schedules


@dataclass(frozen=True, slots=True)
class Between:
    """What a rank has besides its host: links if it leads it, Gloo for messages and schedules, and who lives."""

    far: Far | None
    gloo: Gloo
    watch: RankWatch


class ManyHosts:
    """Every collective, between the ranks of a job on several hosts."""

    def __init__(self, host: OneHost, hosts: Hosts, rank: int, between: Between) -> None:
        self.host, self.rank, self.size, self.watch = host, rank, len(hosts.leaders), between.watch
        self._gloo, self._far = between.gloo, between.far
        self._here = hosts.together_with(rank)  # global ranks by local rank
        self._leaders = hosts.all_leaders()
        self._host = self._leaders.index(hosts.leaders[rank])  # this one's number
        self._host_of = [self._leaders.index(leader) for leader in hosts.leaders]
        self._counts = tuple(hosts.leaders.count(leader) for leader in self._leaders)  # ranks of each host
        self._order = [other for leader in self._leaders for other in hosts.together_with(leader)]
        self._in_order = self._order == sorted(self._order)  # whether each host's ranks stand together
        self._alone = host.size == 1
        self.in_good_order = True  # as OneHost's

    def close(self) -> None:
        self.host.in_good_order = self.in_good_order
        self.watch.close(in_good_order=self.in_good_order)
        if self._far is not None:
            self._far.links.close()
        self._gloo.close()
        self.host.close()

    # --- Agreeing ---

    @contextmanager
    def together(self, call: Call) -> Iterator[None]:
        """What is not one exchange runs inside this (schedules): it begins when all ranks have come for the same thing,
        and what happens to any of them ends it for all."""
        with self.watch.during(call.signature.text, call.timeout_s):
            try:
                self._meet(call)
            except (Mismatch, Disagreement) as error:
                raise self._explained(call, error) from None
            yield

    @contextmanager
    def _checked(self, call: Call) -> Iterator[None]:
        """Every collective runs inside this: what happens to any rank ends it for all."""
        with self.watch.during(call.signature.text, call.timeout_s):
            try:
                yield
            except (Mismatch, Disagreement) as error:
                raise self._explained(call, error) from None

    def _explained(self, call: Call, error: Exception) -> Mismatch:
        """The same Mismatch on every rank, if not all ask for the same."""
        said = self._say(call, error)
        sides = "; ".join(f"the host of rank {leader}: {what}" for leader, what in said.items())
        return Mismatch(f"the hosts ask for different things ({sides}); make them call the same operation")

    def _say(self, call: Call, error: Exception) -> dict[int, str]:
        """What each host asks for, by its leader. Who finds a mismatch inside a host tells the other hosts, and who
        finds one between hosts tells its host, whose ranks wait for the result."""
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
            rows = self._far.say(mine, self.watch.remaining_s())
        self.host.broadcast(Call(_AGREEMENT, self.watch.remaining_s()), rows, 0)
        texts = [bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in rows]
        return dict(zip(self._leaders, texts, strict=True))

    def _exchange(self, between: Callable[[Far], None]) -> None:
        """The leaders' part. Before and after it the ranks of a host meet, so that each hears of a mismatch."""
        if self._far is not None:
            between(self._far)

    def _meet(self, call: Call) -> None:
        self._meet_here(call)
        self._exchange(lambda far: far.barrier(call))
        self._meet_here(call)

    def _meet_here(self, call: Call) -> None:
        if not self._alone:
            self.host.barrier(call)

    # --- Collectives ---

    def barrier(self, call: Call) -> None:
        with self._checked(call):
            self._meet(call)

    def all_reduce(self, call: Call, tensor: torch.Tensor, how: Reduction) -> None:
        with self._checked(call):
            self._all_reduce(call, tensor, how)

    def _all_reduce(self, call: Call, tensor: torch.Tensor, how: Reduction) -> None:
        if not self._alone:
            self.host.all_reduce(call, tensor, _inside(how))
        if self._far is not None:
            self._far.all_reduce(call, tensor, how)
        if not self._alone:
            self.host.broadcast(call, tensor, 0)

    # The short way, for a rank that is alone on its host: one compiled call, as OneHost's.

    def plan(self, signature: Signature, count: int, how: Reduction) -> AllReduce | None:
        if not self._alone or self._far is None:
            return None
        prepared = self._far.plan_all_reduce(signature, count * how.item_bytes, how)
        return AllReduce(prepared.address, signature, prepared.words, prepared)

    def all_reduce_now(self, plan: int, tensor: int) -> int:
        assert self._far is not None
        self.watch.enter()
        code = self._far.links.begin(plan, tensor)
        if code == DONE:
            self.watch.finish()
        return code

    def run(self, plan: AllReduce, tensor: torch.Tensor, timeout_s: float) -> None:
        code = self.all_reduce_now(plan.address, tensor.data_ptr())
        if code != DONE:
            self.finish(plan, tensor, code, timeout_s)

    def finish(self, plan: AllReduce, tensor: torch.Tensor, code: int, timeout_s: float) -> None:
        """Sees one that did not end at once to its end."""
        assert self._far is not None
        call = Call(plan.signature, timeout_s)
        with self.watch.during(plan.signature.text, timeout_s, entered=True):
            try:
                self._far.links.finish(code)
            except Disagreement as error:
                raise self._explained(call, error) from None

    def broadcast(self, call: Call, tensor: torch.Tensor, root: int) -> None:
        with self._checked(call):
            self._broadcast(call, tensor, root)

    def _broadcast(self, call: Call, tensor: torch.Tensor, root: int) -> None:
        home = self._host_of[root]
        if home == self._host and not self._alone:
            self.host.broadcast(call, tensor, self._here.index(root))
        else:
            self._meet_here(call)
        self._exchange(lambda far: far.broadcast(call, tensor, home))
        if home == self._host:
            self._meet_here(call)
        else:
            self._hand_out(call, tensor)

    def reduce(self, call: Call, tensor: torch.Tensor, how: Reduction, root: int) -> None:
        with self._checked(call):
            copy = tensor.clone()
            self._all_reduce(call, copy, how)
            if self.rank == root:
                tensor.copy_(copy)

    def all_gather(self, call: Call, tensor: torch.Tensor, out: torch.Tensor) -> None:
        """out's rows are in rank order, wherever the ranks are; they travel in the order of the hosts."""
        with self._checked(call):
            rows = out if self._in_order else torch.empty_like(out)
            begin = sum(self._counts[: self._host])
            mine = rows[begin : begin + len(self._here)]
            if self._alone:
                mine[0].copy_(tensor)
            else:
                self.host.all_gather(call, tensor, mine)
            self._exchange(lambda far: far.all_gather(call, rows, self._counts))
            self._hand_out(call, rows)
            if not self._in_order:
                out[self._order] = rows

    def gather(self, call: Call, tensor: torch.Tensor, out: torch.Tensor | None) -> None:
        self.all_gather(call, tensor, tensor.new_empty((self.size, *tensor.shape)) if out is None else out)

    def scatter(self, call: Call, source: torch.Tensor | None, out: torch.Tensor, root: int) -> None:
        with self._checked(call):
            rows = out.new_empty((self.size, *out.shape)) if source is None else source
            self._broadcast(call, rows, root)
            out.copy_(rows[self.rank])

    def reduce_scatter(self, call: Call, tensor: torch.Tensor, out: torch.Tensor, how: Reduction) -> None:
        with self._checked(call):
            rows = self._by_host(tensor)
            if self._alone:
                return self._exchange(lambda far: far.reduce_scatter(call, rows, self._counts, out.unsqueeze(0), how))
            rows = rows.clone() if rows is tensor else rows
            self.host.all_reduce(call, rows, _inside(how))
            mine = out.new_empty((len(self._here), *out.shape))
            self._exchange(lambda far: far.reduce_scatter(call, rows, self._counts, mine, how))
            self._hand_out(call, mine)
            out.copy_(mine[self._here.index(self.rank)])
        return None

    def all_to_all(self, call: Call, tensor: torch.Tensor, out: torch.Tensor) -> None:
        """From host to host goes a block of rows: for each rank there, from each rank here."""
        with self._checked(call):
            if self._alone and self._in_order:
                return self._exchange(lambda far: far.all_to_all(call, tensor, self._counts, out, self._counts))
            row, ranks = tensor.shape[1:], len(self._here)
            rows = self._by_host(tensor) if self._alone else self._blocks_of_rows(call, self._by_host(tensor))
            arrived = tensor.new_empty((self.size * ranks, *row))
            counts = tuple(count * ranks for count in self._counts)
            self._exchange(lambda far: far.all_to_all(call, rows, counts, arrived, counts))
            self._hand_out(call, arrived)
            out[self._order] = arrived.view(self.size, ranks, *row)[:, self._here.index(self.rank)]
        return None

    def _blocks_of_rows(self, call: Call, rows: torch.Tensor) -> torch.Tensor:
        """What the ranks of this host have for all others, a block for each host, at the leader."""
        gathered = None if self._far is None else rows.new_empty((len(self._here), *rows.shape))
        self.host.gather(call, rows, gathered)
        return rows if gathered is None else torch.cat([b.flatten(0, 1) for b in gathered.split(self._counts, 1)])

    def _hand_out(self, call: Call, tensor: torch.Tensor) -> None:
        """The leader's to its host."""
        if not self._alone:
            self.host.broadcast(call, tensor, 0)

    def _by_host(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of all ranks, in the order of the hosts."""
        return rows if self._in_order else rows[self._order]

    # --- Messages ---

    def send(self, call: Call, data: torch.Tensor, target: int, tag: int) -> None:
        if target in self._here:
            return self.host.send(call, data, self._here.index(target), tag)
        wire, note = self._messages(call.timeout_s), Announcement(len(data), tag, call.signature.text)
        wire.send(note.encoded(), target, _MESSAGE).wait()
        if len(data):
            wire.send(data, target, _MESSAGE + 1).wait()
        return None

    def has_room(self, size_bytes: int, target: int) -> bool:
        return target in self._here and self.host.has_room(size_bytes, self._here.index(target))

    def is_announced(self, source: int) -> bool:
        """Of a rank of another host it is not known before its announcement is waited for."""
        return source in self._here and self.host.is_announced(self._here.index(source))

    def announced(self, call: Call, source: int) -> Announcement:
        if source in self._here:
            return self.host.announced(call, self._here.index(source))
        room = Announcement.room()
        self._messages(call.timeout_s).receive(room, source, _MESSAGE).wait()
        return Announcement.decoded(room)

    def take(self, call: Call, data: torch.Tensor, source: int) -> None:
        if source in self._here:
            self.host.take(call, data, self._here.index(source))
        elif len(data):
            self._messages(call.timeout_s).receive(data, source, _MESSAGE + 1).wait()

    def gone(self) -> list[int]:
        """The ranks of this host that died or left."""
        return [self._here[rank] for rank in self.host.gone()]

    def _messages(self, timeout_s: float) -> MessageWire:
        return MessageWire(self._gloo, self.watch, timeout_s)


def _inside(how: Reduction) -> Reduction:
    """What a host adds up by itself: the division of a mean comes last, between hosts."""
    return reduction("sum", how.dtype) if how.name == "mean" else how

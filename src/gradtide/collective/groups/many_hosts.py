"""The collectives of ranks on several hosts: shared memory inside a host, one leader a host between them.

Each operation first lets the leaders compare what their hosts ask for, so that a mismatch between hosts is an error and
not a hang. That is one round trip, which is little beside the operation itself on such a network.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gradtide.collective.executors.execute import run_programme
from gradtide.collective.executors.gloo import Gloo
from gradtide.collective.executors.programme import write_programme
from gradtide.collective.executors.torch_wire import MessageWire, WatchedWire
from gradtide.collective.host.announcement import Announcement
from gradtide.collective.host.one_host import Call, OneHost
from gradtide.collective.host.rank_watch import RankWatch
from gradtide.collective.host.reductions import Reduction, reduction
from gradtide.collective.host.signature import sign
from gradtide.errors import Mismatch
from gradtide.schedule.model import Kind, Op, Schedule
from gradtide.transport.hosts import Hosts

__all__ = ["ManyHosts"]

_TEXT_BYTES = 1024
_AGREEMENT = sign("what the hosts ask for")
_AGREE, _MOVE, _MESSAGE = 1 << 24, 1 << 25, 1 << 26  # tags; below them are those of schedules


class ManyHosts:
    """Every collective, between the ranks of a job on several hosts."""

    def __init__(self, host: OneHost, hosts: Hosts, rank: int, gloo: Gloo, watch: RankWatch) -> None:
        self.host, self.rank, self.size, self.watch = host, rank, len(hosts.leaders), watch
        self._hosts, self._gloo = hosts, gloo
        self._here = hosts.together_with(rank)  # global ranks by local rank
        self._leaders = hosts.all_leaders()
        self._leads = rank == hosts.leaders[rank]
        self._between = _exchange_schedule(len(self._leaders))
        self.in_good_order = True  # as OneHost's

    def close(self) -> None:
        self.host.in_good_order = self.in_good_order
        self.watch.close(in_good_order=self.in_good_order)
        self._gloo.close()
        self.host.close()

    def barrier(self, call: Call) -> None:
        with self.together(call):
            pass

    @contextmanager
    def together(self, call: Call) -> Iterator[None]:
        """Every collective runs inside this: it begins when all ranks have come for the same thing, and what happens
        to any of them ends it for all."""
        with self.watch.during(call.signature.text, call.timeout_s):
            self._agree(call)
            yield

    def _agree(self, call: Call) -> None:
        """Raises the same Mismatch on every rank if not all ask for the same."""
        said = self._say(self._agree_here(call))
        if len(set(said.values())) > 1:
            sides = "; ".join(f"the host of rank {leader}: {what}" for leader, what in said.items())
            raise Mismatch(f"the hosts ask for different things ({sides}); make them call the same operation")

    def _agree_here(self, call: Call) -> str:
        """What this host asks for; a mismatch inside it is for the others to know too."""
        try:
            self.host.barrier(Call(call.signature, self.watch.remaining_s()))
        except Mismatch as error:
            return str(error)
        return call.signature.text

    def _say(self, mine: str) -> dict[int, str]:
        """What each host asks for, by its leader."""
        rows = torch.zeros(len(self._leaders), _TEXT_BYTES, dtype=torch.uint8)
        if self._leads:
            encoded, at = mine.encode()[:_TEXT_BYTES], self._leaders.index(self.rank)
            rows[at, : len(encoded)] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
            self._swap(self.watch.remaining_s(), rows[at], list(rows), _AGREE)
        self.host.broadcast(Call(_AGREEMENT, self.watch.remaining_s()), rows, 0)
        return {
            leader: bytes(row.tolist()).rstrip(b"\0").decode(errors="replace")
            for leader, row in zip(self._leaders, rows, strict=True)
        }

    def all_reduce(self, call: Call, tensor: torch.Tensor, how: Reduction) -> None:
        with self.together(call):
            self._all_reduce(call, tensor, how)

    def _all_reduce(self, call: Call, tensor: torch.Tensor, how: Reduction) -> None:
        plain = reduction("sum", how.dtype) if how.name == "mean" else how
        self.host.all_reduce(call, tensor, plain)
        if self._leads and tensor.numel():
            me = self._leaders.index(self.rank)
            programme = write_programme(self._between, me, len(self._leaders), lambda process: process == me)
            wire = WatchedWire(self._gloo, self.watch, call.timeout_s, self._leaders)
            run_programme(self._between, programme, {me: tensor.view(-1)}, plain, None, wire)
        self.host.broadcast(call, tensor, 0)
        how.finish(tensor, self.size)

    def broadcast(self, call: Call, tensor: torch.Tensor, root: int) -> None:
        with self.together(call):
            self._broadcast(call, tensor, root)

    def _broadcast(self, call: Call, tensor: torch.Tensor, root: int) -> None:
        home = self._hosts.leaders[root]
        others = [leader for leader in self._leaders if leader != home]
        wire = self._wire(call.timeout_s)
        if self.rank == root and tensor.numel():
            for work in [wire.send(tensor, leader, _MOVE) for leader in others]:
                work.wait()
        elif self.rank in others and tensor.numel():
            wire.receive(tensor, root, _MOVE).wait()
        self.host.broadcast(call, tensor, self._here.index(root) if root in self._here else 0)

    def reduce(self, call: Call, tensor: torch.Tensor, how: Reduction, root: int) -> None:
        with self.together(call):
            copy = tensor.clone()
            self._all_reduce(call, copy, how)
            if self.rank == root:
                tensor.copy_(copy)

    def all_gather(self, call: Call, tensor: torch.Tensor, out: torch.Tensor) -> None:
        """The hosts' own blocks go between the leaders; out's rows are in rank order, wherever the ranks are."""
        with self.together(call):
            blocks = [tensor.new_empty((self._hosts.leaders.count(leader), *tensor.shape)) for leader in self._leaders]
            at = self._leaders.index(self._hosts.leaders[self.rank])
            self.host.all_gather(call, tensor, blocks[at])
            if self._leads:
                self._swap(call.timeout_s, blocks[at], blocks)
            for leader, block in zip(self._leaders, blocks, strict=True):
                self.host.broadcast(call, block, 0)
                for row, rank in enumerate(self._hosts.together_with(leader)):
                    out[rank].copy_(block[row])

    def gather(self, call: Call, tensor: torch.Tensor, out: torch.Tensor | None) -> None:
        self.all_gather(call, tensor, tensor.new_empty((self.size, *tensor.shape)) if out is None else out)

    def scatter(self, call: Call, source: torch.Tensor | None, out: torch.Tensor, root: int) -> None:
        with self.together(call):
            rows = out.new_empty((self.size, *out.shape)) if source is None else source
            self._broadcast(call, rows, root)
            out.copy_(rows[self.rank])

    def reduce_scatter(self, call: Call, tensor: torch.Tensor, out: torch.Tensor, how: Reduction) -> None:
        with self.together(call):
            copy = tensor.clone()
            self._all_reduce(call, copy, how)
            out.copy_(copy[self.rank])

    def all_to_all(self, call: Call, tensor: torch.Tensor, out: torch.Tensor) -> None:
        with self.together(call):
            out[self.rank].copy_(tensor[self.rank])
            if not tensor[0].numel():
                return
            wire = self._wire(call.timeout_s)
            others = [rank for rank in range(self.size) if rank != self.rank]
            arriving = [wire.receive(out[rank], rank, _MOVE) for rank in others]
            leaving = [wire.send(tensor[rank], rank, _MOVE) for rank in others]
            for work in (*arriving, *leaving):
                work.wait()

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

    def _wire(self, timeout_s: float) -> WatchedWire:
        return WatchedWire(self._gloo, self.watch, timeout_s)

    def _swap(self, timeout_s: float, mine: torch.Tensor, theirs: list[torch.Tensor], tag: int = _MOVE) -> None:
        """Leaders only: everybody's tensor to everybody else."""
        wire = self._wire(timeout_s)
        others = [(leader, room) for leader, room in zip(self._leaders, theirs, strict=True) if leader != self.rank]
        arriving = [wire.receive(room, leader, tag) for leader, room in others if room.numel()]
        leaving = [wire.send(mine, leader, tag) for leader, _ in others if mine.numel()]
        for work in (*arriving, *leaving):
            work.wait()


def _exchange_schedule(leaders: int) -> Schedule:
    """A ring: part i of the buffers is added up along it until leader i has it all, then handed round. Step by step, so
    that all leaders are busy at each."""
    ops: list[Op] = []
    last: dict[int, tuple[int, ...]] = dict.fromkeys(range(leaders), ())
    for step in range(2 * leaders - 2):
        kind: Kind = "reduce" if step < leaders - 1 else "copy"
        for chunk in range(leaders):
            source = (chunk + 1 + step) % leaders
            ops.append(Op(len(ops), source, (source + 1) % leaders, chunk, kind, last[chunk]))
            last[chunk] = (len(ops) - 1,)
    names = tuple(f"host{host}" for host in range(leaders))
    return Schedule("between hosts", "all_reduce", names, leaders, (1,) * leaders, tuple(ops))

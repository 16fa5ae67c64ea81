"""One rank of all contenders that talk between hosts; its rank is in the environment. HOSTS is how many there are.

`run TIMES SIZE KIND OPERATION`: SIZE is that of the larger of input and output. The bare pair is that of the leaders.
"""

import select
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from gradtide.collective.groups.group import Group
from gradtide.registration import register
from gradtide.schedule.predict.exchange_model import busiest_bytes
from gradtide.testing.hosts import ADDRESSES
from gradtide.transport.authenticate import set_congestion

Step = Callable[[], object]
_PORT = 29_790


class BarePair:
    """Two sockets of Python's that move what an operation must move, and compute nothing.

    They avoid congestion as our links do, by cubic: beside BBR, where a system has that, the comparison would flatter.
    """

    def __init__(self, rank: int, ranks: tuple[int, ...]) -> None:
        """rank: 0 or 1. ranks: how many each host has, which says how much an operation moves."""
        self._rank, self._ranks = rank, ranks
        self._room = bytearray()
        self._data = memoryview(b"")
        while True:
            self._sock = socket.socket()
            set_congestion(self._sock, "cubic")
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                self._meet()
                break
            except ConnectionError:
                self._sock.close()
                time.sleep(0.05)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _meet(self) -> None:
        if self._rank == 0:
            with self._sock as listener:
                listener.bind((ADDRESSES[0], _PORT))
                listener.listen()
                self._sock, _ = listener.accept()
        else:
            self._sock.connect((ADDRESSES[0], _PORT))

    def step(self, operation: str, size_bytes: int) -> Step:
        if operation == "broadcast":
            self._room, self._data = bytearray(size_bytes), memoryview(bytearray(size_bytes))
            return lambda: self._move(*((size_bytes, 1) if self._rank == 0 else (0, size_bytes)), answers=True)
        each_way = int(busiest_bytes(operation, self._ranks, size_bytes))
        self._room, self._data = bytearray(each_way), memoryview(bytearray(each_way))
        return lambda: self._move(each_way, each_way)

    def _move(self, leaving: int, arriving: int, answers: bool = False) -> None:
        """Both ways at once, without a thread."""
        data, room = self._data[:leaving], memoryview(self._room)[:arriving]
        while data or room:
            moved = 0
            if data:
                moved += (sent := self._try(self._sock.send, data))
                data = data[sent:]
            if room:
                moved += (got := self._try(self._sock.recv_into, room))
                room = room[got:]
            if not moved:
                select.select([self._sock] if room else [], [self._sock] if data else [], [])
        if answers and self._rank:
            self._sock.send(b"\0")

    def _try(self, move: Callable[..., int], what: memoryview) -> int:
        try:
            return move(what, *((0, socket.MSG_DONTWAIT) if move == self._sock.recv_into else (socket.MSG_DONTWAIT,)))
        except BlockingIOError:
            return 0


def through_group(group: Group, operation: str, tensor: torch.Tensor, rows: torch.Tensor) -> Step:
    """rows is the tensor with a row for each rank."""
    row, other = rows[group.rank].clone(), torch.zeros_like(rows)
    return {
        "all_reduce": lambda: group.all_reduce(tensor),
        "broadcast": lambda: group.broadcast(tensor),
        "all_gather": lambda: group.all_gather(row, rows),
        "reduce_scatter": lambda: group.reduce_scatter(rows, out=row),
        "all_to_all": lambda: group.all_to_all(rows, other),
    }[operation]


def through_torch(group: Any, operation: str, tensor: torch.Tensor, rows: torch.Tensor) -> Step:
    row, flat, other = rows[dist.get_rank()].clone(), rows.view(-1), torch.zeros(rows.numel())
    names = vars(dist)  # newer torch calls them so
    gather = names.get("all_gather_single") or names["all_gather_into_tensor"]
    scatter = names.get("reduce_scatter_single") or names["reduce_scatter_tensor"]
    return {
        "all_reduce": lambda: dist.all_reduce(tensor, group=group),
        "broadcast": lambda: dist.broadcast(tensor, 0, group=group),
        "all_gather": lambda: gather(flat, row, group=group),
        "reduce_scatter": lambda: scatter(row, flat, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, flat, group=group),
    }[operation]


def main(hosts: int) -> None:
    torch.set_num_threads(1)
    group = Group.from_environment(timeout_s=600)
    rank, size = group.rank, group.size
    group.explain(probe=True)
    dist.init_process_group("gloo")
    register()
    backend = dist.new_group(backend="gradtide")
    here = size // hosts
    bare = BarePair(rank // here, (here, here)) if hosts == 2 and rank % here == 0 else None
    print("ready", flush=True)
    for line in sys.stdin:
        _, times, size_bytes, kind, operation = line.split()
        rows = torch.zeros(size, int(size_bytes) // 4 // size)
        tensor = rows.view(-1)
        if kind == "predicted":
            assert group.exchange_model is not None
            print(int(times) * group.exchange_model.seconds(operation, tensor.nbytes), flush=True)
            continue
        if kind == "bare":
            step = bare.step(operation, tensor.nbytes) if bare is not None else lambda: None
        elif kind == "group":
            step = through_group(group, operation, tensor, rows)
        else:
            step = through_torch(backend if kind == "c10d" else dist.group.WORLD, operation, tensor, rows)
        step()
        group.barrier()
        started = time.perf_counter()
        for _ in range(int(times)):
            step()
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))

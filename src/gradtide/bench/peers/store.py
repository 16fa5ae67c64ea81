"""One contender of `bench store`, in a process of its own: store KIND SIZE_BYTES PLACEMENT RANK ADDRESS[,SECRET_FILE].

Each does one step: send a tensor of that size, have it added to what is there, get the sum back. PLACEMENT says on
which processors the two ends run, alike for every contender: "any", "apart" (on the first and the second), or
"together" (both on the first).
"""

import contextlib
import os
import socket
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from gradtide.bench.contender import repeating, serve
from gradtide.store.rules.tensors import bytes_of

__all__ = ["KINDS", "main", "place"]


_PROCESSORS = sorted(os.sched_getaffinity(0))  # before anything is put anywhere


def place(placement: str, end: int) -> None:
    """Puts this process where this end of a contender runs."""
    if placement != "any":
        os.sched_setaffinity(0, {_PROCESSORS[end % len(_PROCESSORS) if placement == "apart" else 0]})


def bare(value: Tensor, placement: str, rank: int, address: str) -> Callable[[], object]:
    """A pair of sockets: sendmsg there, recv_into, add, sendmsg back, recv_into."""
    here, there = socket.socketpair()
    if os.fork() == 0:
        here.close()
        with contextlib.suppress(OSError):
            _add_and_send_back(there, value.numel(), placement)
        os._exit(0)
    there.close()
    out = torch.empty_like(value)
    mine, theirs = bytes_of(value), bytes_of(out)

    def step() -> None:
        _send(here, mine)
        _receive(here, theirs)

    return step


def _add_and_send_back(sock: socket.socket, count: int, placement: str) -> None:
    place(placement, 1)
    total, received = torch.zeros(count), torch.empty(count)
    mine, theirs = bytes_of(total), bytes_of(received)
    while _receive(sock, theirs):
        total.add_(received)
        _send(sock, mine)


def _send(sock: socket.socket, view: memoryview) -> None:
    sent = sock.sendmsg([view])
    while sent < view.nbytes:
        sent += sock.sendmsg([view[sent:]])


def _receive(sock: socket.socket, view: memoryview) -> bool:
    there = 0
    while there < view.nbytes:
        count = sock.recv_into(view[there:])
        if not count:
            return False
        there += count
    return True


def copy(value: Tensor, placement: str, rank: int, address: str) -> Callable[[], object]:
    """What memory alone takes: add, and copy out, in one process."""
    total, out = torch.zeros_like(value), torch.empty_like(value)

    def step() -> None:
        total.add_(value)
        out.copy_(total)

    return step


def gradtide(value: Tensor, placement: str, rank: int, address: str) -> Callable[[], object]:
    from gradtide.store.client.store import connect
    from gradtide.store.rules.updates import update

    where, _, secret_file = address.partition(",")
    store = connect(where, secret_file=secret_file or None)
    key = f"{value.numel()}"
    store.init(key, torch.zeros_like(value), update=update("add"))
    return partial(store.push_pull, key, value, out=torch.empty_like(value))


def redis(value: Tensor, placement: str, rank: int, address: str) -> Callable[[], object]:
    """SET and GET in one round trip; Redis can't add tensors, so it has less to do."""
    import redis as library

    client = library.Redis(unix_socket_path=address)
    data = value.numpy().tobytes()

    def step() -> None:
        pipeline = client.pipeline(transaction=False)
        pipeline.set("w", data)
        pipeline.get("w")
        pipeline.execute()

    return step


def ray(value: Tensor, placement: str, rank: int, address: str) -> Callable[[], object]:
    import ray as library

    library.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)

    class Adder:
        def __init__(self, count: int) -> None:
            self.total = torch.zeros(count).numpy()

        def push_pull(self, gradient: object) -> object:
            self.total = self.total + gradient
            return self.total

    actor = library.remote(Adder).remote(value.numel())
    gradient = value.numpy()
    return lambda: library.get(actor.push_pull.remote(gradient))


KINDS = {"bare": bare, "copy": copy, "gradtide": gradtide, "redis": redis, "ray": ray}


def main() -> None:
    kind, size_bytes, placement, rank, address = sys.argv[1:]
    torch.set_num_threads(1)
    place(placement, 0)
    value = torch.ones(int(size_bytes) // 4)
    serve(repeating(KINDS[kind](value, placement, int(rank), address)))


if __name__ == "__main__":
    main()

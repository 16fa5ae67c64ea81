"""Groups that are closed with messages under way, in both directions, by one rank or by all: ranks 0 and 1 are on one
network namespace, 2 and 3 on another."""

import gc
import os
import threading
import time
from itertools import product

import pytest
import torch
from namespaces import namespaces
from ranks import Ranks, move

from clock import at_most
from gradtide.collective.groups import group as group_module
from gradtide.collective.groups.group import Group
from gradtide.errors import CommunicationError
from gradtide.transport.keys import make_secret_file

SIZE = 4
LARGE = 4_000_000  # floats: more than kernels take


@pytest.fixture(scope="module")
def apart():
    with namespaces(2) as hosts:
        started = Ranks(SIZE)
        started.run(move, SIZE, hosts)
        yield started
        started.close()


def encrypt(rank, size, path, on):
    os.environ |= {"GRADTIDE_SECRET_FILE": path, "GRADTIDE_ENCRYPT": "1" if on else "0"}


def held():
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def see_the_end(handles):
    """A send may have gone well; all else ends with what happened."""
    for _, handle in handles:
        assert handle.ended(20), handle.what
        error = handle.error()
        if error is not None or not handle.what.startswith("send"):
            assert isinstance(error, CommunicationError), (handle.what, error)
            said = str(error)
            assert any(word in said for word in ("closed", "left", "died", "gave up", "can't be used", "is gone")), said


def under_way(rank, size, leaving, how, times):
    """Everybody sends large messages to all that nobody asks for, and even ranks wait for small ones that nobody sends
    (and so take the large ones as they come); then some leave. Returns how long that took, how long it took the handles
    to end, and what is held more than before."""
    group_module._SENDING_S, took = 1.0, []  # how long who closes waits for what it sends
    for turn in range(times + 1):
        if turn == 1:
            before = held()
        group, another = (Group.from_environment(timeout_s=30) for _ in range(2))
        others = [other for other in range(size) if other != rank]
        handles = [(other, group.send(torch.ones(LARGE), other, tag=1, async_op=True)) for other in others]
        receiving = [*others, None] if rank % 2 == 0 else []
        handles += [(other, group.recv(torch.ones(3), other, tag=2, async_op=True)) for other in receiving]
        another.barrier()  # not of the group itself: who is out of it would leave under those who are not
        begin = time.monotonic()
        if rank in leaving:
            group.close() if how == "close" else group.abort()
            closed = time.monotonic()
            see_the_end(handles)
        else:
            see_the_end([(other, handle) for other, handle in handles if other in leaving])
            closed = time.monotonic()
            group.abort()
            see_the_end(handles)
        took.append((closed - begin, time.monotonic() - closed))
        another.close()
        del group, handles, another
    more = [now - then for now, then in zip(held(), before, strict=True)]
    return max(closing for closing, _ in took), max(ending for _, ending in took), more


def ways_to_leave():
    """By default every two values of these three meet once; the other half, which pairs them again, is slow."""
    for encrypted, leaving, how in product([False, True], [[2], [0, 1, 2, 3]], ["close", "abort"]):
        repeats = (encrypted + (len(leaving) > 1) + (how == "abort")) % 2
        name = f"{'encrypted' if encrypted else 'in clear'}-{len(leaving)} leaving-{how}"
        yield pytest.param(encrypted, leaving, how, marks=[pytest.mark.slow] if repeats else [], id=name)


@pytest.mark.parametrize(("encrypted", "leaving", "how"), list(ways_to_leave()))
def test_a_group_that_is_closed_with_messages_under_way_ends_them_and_leaves_nothing(
    apart, tmp_path, encrypted, leaving, how
):
    make_secret_file(tmp_path / "job.secret")
    apart.run(encrypt, SIZE, str(tmp_path / "job.secret"), encrypted)
    for closing_s, ending_s, more in apart.run(under_way, SIZE, leaving, how, 1):
        assert closing_s < at_most(15)
        assert ending_s < at_most(15)
        assert more == [0, 0]

"""The contract of a communicator, as each of three devices takes part in it; and who runs it, threads or processes."""

import uuid

import pytest
import torch

from gradtide.collective import Group
from gradtide.collective.groups import letters
from gradtide.errors import CommunicationError, PeerLost, PeerTimeout
from gradtide.parallel import DevicePool, find_devices
from gradtide.parallel.split.run.speaking.processes import GroupCommunicator
from gradtide.parallel.split.run.speaking.threads import Switchboard

DEVICES = 3
ALL, PAIR = (0, 1, 2), (0, 2)


def new_name():
    return f"split-{uuid.uuid4().hex}"


def on_threads(function, *arguments, devices=DEVICES, timeout_s=20.0):
    board = Switchboard(devices, timeout_s)
    ends = board.communicators()

    def work(index):
        try:
            return function(ends[index], *arguments)
        except BaseException as error:
            ends[index].abort(error)
            raise

    with DevicePool(find_devices([f"cpu:{n}" for n in range(devices)])) as pool:
        return pool.run(work)


def in_process(rank, size, name, function, arguments, timeout_s=20.0):
    with Group.join(name, rank, size, timeout_s=timeout_s) as group:
        end = GroupCommunicator(group, [ALL, PAIR], [ALL, PAIR])
        try:
            answer = function(end, *arguments)
            end.close()
            return answer
        except BaseException as error:
            end.abort(error)
            raise


# --- the contract ---


def messages_keep_order_type_and_gradient(end):
    """Each sends to the next two messages of two tags, of all kinds of values, and awaits them in the other order."""
    to, source = (end.rank + 1) % end.size, (end.rank - 1) % end.size
    large = torch.full((300, 1000), float(end.rank), dtype=torch.float64, requires_grad=True)
    for number in range(2):
        end.send([large, None, 7 + number, 2.5, True, torch.arange(3), torch.empty(0, 4)], to, tag=1)
        end.send([torch.tensor(number)] * 20, to, tag=2)
    for number in range(2):
        assert [int(v) for v in end.receive(source, 2)] == [number] * 20
    for number in range(2):
        values = end.receive(source, 1)
        assert values[1:5] == [None, 7 + number, 2.5, True]
        assert values[0].requires_grad
        assert not values[5].requires_grad
        assert torch.equal(values[0], torch.full((300, 1000), float(source), dtype=torch.float64))
        assert values[5].tolist() == [0, 1, 2]
        assert values[5].dtype == torch.int64
        assert values[6].shape == (0, 4)
    end.finish()


def gather_gives_uneven_tensors_in_the_order_of_members(end):
    shapes = [(2, end.size - rank) for rank in (2, 0, 1)]
    found = end.gather(torch.full((2, end.size - end.rank), float(end.rank)), (2, 0, 1), shapes)
    assert [int(one[0, 0]) for one in found] == [2, 0, 1]
    assert [tuple(one.shape) for one in found] == shapes
    nothing = end.gather(torch.empty(0, 2), ALL, [(0, 2)] * 3)
    assert [one.shape for one in nothing] == [(0, 2)] * 3


def swap_gives_each_what_the_others_have_for_it(end):
    """To member j go `lengths[j]` rows that say who sends."""
    for members, lengths in (((2, 0, 1), (1, 4, 2)), (ALL, (2, 2, 2)), (ALL, (0, 0, 0))):
        found = end.swap([torch.full((length, 3), float(end.rank)) for length in lengths], members)
        own = lengths[members.index(end.rank)]
        assert [tuple(one.shape) for one in found] == [(own, 3)] * 3
        assert all(bool((one == member).all()) for one, member in zip(found, members, strict=True))


def sums_add_in_rank_order_and_leave_what_was_given(end):
    given = torch.tensor([1e16, -1e16, 1.0][end.rank], dtype=torch.float64).repeat(5)
    before = given.clone()
    assert end.add_up(given, (2, 1, 0)).tolist() == [1.0] * 5  # (1e16 - 1e16) + 1: another order loses the 1
    assert torch.equal(given, before)
    if end.rank in PAIR:
        assert end.add_up(torch.ones(2), PAIR).tolist() == [2.0, 2.0]


def sums_in_the_background_do_not_keep_exchanges(end):
    """Device 0 begins its sum after the exchange that the others make while theirs is under way."""
    values = torch.full((1000,), end.rank + 1.0)
    pending = None if end.rank == 0 else end.begin_sum(values, ALL)
    assert end.add_up(torch.ones(1), ALL).item() == 3
    pending = pending or end.begin_sum(values, ALL)
    again = end.begin_sum(other := torch.full((4,), 1.0), ALL)
    pending.wait()
    again.wait()
    assert values.tolist() == [6.0] * 1000
    assert other.tolist() == [3.0] * 4


CONTRACT = (
    messages_keep_order_type_and_gradient,
    gather_gives_uneven_tensors_in_the_order_of_members,
    swap_gives_each_what_the_others_have_for_it,
    sums_add_in_rank_order_and_leave_what_was_given,
    sums_in_the_background_do_not_keep_exchanges,
)


def letters_without_room(rank, size, name):
    """Boxes of 1 MB, and the next rank keeps 2.4 MB of what it is sent; then it lets go of it, and is sent more."""
    before, letters._ROOM_BYTES = letters._ROOM_BYTES, 1 << 20
    try:
        with Group.join(name, rank, size, timeout_s=20.0) as group:
            end = GroupCommunicator(group, [ALL], [])
            to, source = (rank + 1) % size, (rank - 1) % size
            as_messages = []
            for _ in range(3):
                for number in range(6):
                    end.send([torch.full((50_000,), 10.0 * rank + number, dtype=torch.float64)], to, tag=1)
                as_messages.append(len(end._sent))
                kept = [end.receive(source, 1)[0] for _ in range(6)]
                assert [one.unique().tolist() for one in kept] == [[10.0 * source + number] for number in range(6)]
                end.finish()
                del kept
                end.finish()
                end.add_up(torch.ones(1), ALL)  # all have let go of it
            end.close()
            return as_messages
    finally:
        letters._ROOM_BYTES = before


def whole_contract(end):
    for part in CONTRACT:
        part(end)


def wait_in_vain(end, how):
    """Device 1 never comes; returns what device 0 is told, and in how many words device 2 is."""
    if end.rank == 1:
        return ""
    waits = {
        "message": lambda: end.receive(1, 5),
        "gather": lambda: end.gather(torch.ones(1), ALL, [(1,)] * 3),
        "sum": lambda: end.begin_sum(torch.ones(1), ALL).wait(),
    }
    with pytest.raises((PeerTimeout, PeerLost)) as told:
        waits[how]()
    return str(told.value)


def fail_first(end):
    """Device 1 fails while the others wait for it."""
    if end.rank == 1:
        raise ValueError("the third layer is broken")
    with pytest.raises(CommunicationError) as told:
        end.receive(1, 5) if end.rank else end.add_up(torch.ones(1), ALL)
    return str(told.value)

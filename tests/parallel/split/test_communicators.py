"""Threads and processes: one contract."""

import communicating as c
import pytest
from ranks import Failed


def test_threads_keep_the_contract():
    c.on_threads(c.whole_contract)


def test_processes_keep_the_contract(device_processes):
    device_processes.run(c.in_process, c.DEVICES, c.new_name(), c.whole_contract, ())


def test_letters_that_find_no_room_come_as_messages_in_their_order(device_processes):
    for as_messages in device_processes.run(c.letters_without_room, c.DEVICES, c.new_name()):
        assert all(0 < count <= 8 for count in as_messages)  # two letters fit, and four come as messages of two parts


@pytest.mark.parametrize("how", ["message", "gather", "sum"])
def test_a_thread_that_waits_in_vain_says_for_whom(how):
    told = c.on_threads(c.wait_in_vain, how, timeout_s=0.2)
    assert "device 1 did not come within 0.2 s" in told[0]
    assert "device 1" in told[2]


def test_the_first_failure_of_a_thread_ends_the_others_at_once():
    with pytest.raises(ValueError, match="third layer"):
        c.on_threads(c.fail_first, timeout_s=60.0)


def test_the_first_failure_of_a_process_ends_the_others_at_once(device_processes):
    device_processes.start(c.in_process, c.DEVICES, c.new_name(), c.fail_first, (), 60.0)
    with pytest.raises(Failed, match="third layer"):
        device_processes.answer(1)
    assert "rank 1" in device_processes.answer(0)
    assert "rank 1" in device_processes.answer(2)

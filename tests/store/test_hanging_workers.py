"""Workers that hold the interpreter for long, because they compile or import: their connections stand."""

import ctypes
import subprocess
import time

import pytest
import torch

import gradtide
from gradtide.errors import NotMember, PeerLost
from loaded_python import loaded_python
from store_processes import wait_until


def hold_the_interpreter(seconds):
    """No other thread of this process runs meanwhile: nobody beats."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def test_a_worker_that_holds_the_interpreter_for_some_leases_is_still_in_the_rounds(forks):
    with (
        gradtide.local_servers(1, lease_s=0.4, forks=forks) as servers,
        gradtide.connect(servers.address, worker=0, workers=1, consistency="bsp") as store,
    ):
        store.init("w", torch.zeros(3), update=gradtide.update("add"))
        store.push("w", torch.ones(3), wait=True)
        hold_the_interpreter(1.5)
        store.push("w", torch.ones(3), wait=True)
        assert store.members == (0,)
        assert store.first_rounds == {0: 1}
        assert store.pull("w").tolist() == [2, 2, 2]


def test_a_worker_that_was_struck_off_is_in_again_by_itself_and_is_told_what_did_not_count(forks):
    with (
        gradtide.local_servers(1, lease_s=0.3, worker_lease_s=0.5, forks=forks) as servers,
        gradtide.connect(servers.address, worker=0, workers=1, consistency="bsp") as store,
    ):
        store.init("w", torch.zeros(3), update=gradtide.update("add"))
        store.push("w", torch.ones(3), wait=True)
        hold_the_interpreter(2.0)
        counted, told = 0, []
        deadline_s = time.monotonic() + 30
        while counted < 3:
            assert time.monotonic() < deadline_s
            try:
                store.push("w", torch.ones(3), wait=True)
                counted += 1
            except NotMember as error:
                told.append(str(error))
        assert len(told) <= 1
        assert all("did not count" in text for text in told)
        assert store.first_rounds[0] > 1
        assert store.pull("w").tolist() == [1 + counted] * 3


def test_a_worker_that_was_killed_is_out_after_a_servers_lease(forks):
    script = """if True:
        import sys, torch, gradtide
        store = gradtide.connect(sys.argv[1], worker=1, workers=2, consistency="bsp")
        store.init("w", torch.zeros(3), update=gradtide.update("add"))
        print("in", flush=True)
        sys.stdin.read()
    """
    with gradtide.local_servers(1, lease_s=0.4, forks=forks) as servers:
        command = [loaded_python(), "-c", script, servers.address]
        with (
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other,
            gradtide.connect(servers.address, worker=0, workers=2, consistency="bsp") as store,
        ):
            store.init("w", torch.zeros(3), update=gradtide.update("add"))
            assert other.stdout.readline() == b"in\n"
            handle = store.push("w", torch.ones(3))
            assert not handle.ended(0.1)
            other.kill()
            handle.wait(20)  # not the minute that one may hang
            wait_until(lambda: store.members == (0,))


def test_who_takes_the_place_of_a_worker_that_ended_without_a_word_waits_until_it_is_free(forks):
    script = """if True:
        import sys, gradtide
        store = gradtide.connect(sys.argv[1], worker=0, workers=1, consistency="bsp")
        print("in", flush=True)
        sys.stdin.read()
    """
    with gradtide.local_servers(1, forks=forks) as servers:
        command = [loaded_python(), "-c", script, servers.address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout.readline() == b"in\n"
            with pytest.raises(PeerLost, match=r"worker 0 is taken by worker-0-.*, which is alive"):
                gradtide.connect(servers.address, worker=0, workers=1, consistency="bsp")
            other.kill()
            with gradtide.connect(servers.address, worker=0, workers=1, consistency="bsp") as store:
                assert store.members == (0,)

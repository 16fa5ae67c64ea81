"""What a rank says that waits for long, and what the others hear of one that ends."""

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from ranks import own

from gradtide.collective.groups.group import Group

_kept = {}


class Heard(io.StringIO):
    """What a rank writes. As soon as there is something, a file says so."""

    def __init__(self, sign):
        super().__init__()
        self._sign = Path(sign)

    def write(self, text):
        self._sign.touch()
        return super().write(text)


def join(rank, size, hosts):
    _kept["group"] = Group.from_environment(timeout_s=30) if hosts else Group.join(own("waits"), rank, size)
    _kept["group"].set_notice(1.0)
    _kept["group"].barrier()
    return os.getpid()


def validating(sign):
    while not Path(sign).exists():
        time.sleep(0.01)


def reduce(rank, size, late, sign):
    """The late come when somebody has complained; what this rank said."""
    with contextlib.redirect_stderr(Heard(sign)) as said:
        if rank in late:
            validating(sign)
        assert _kept["group"].all_reduce(torch.ones(3)).eq(size).all()
    return said.getvalue()


@pytest.mark.parametrize("late", [[1], [0, 2]])
def test_a_long_wait_is_told_once_by_one_rank_with_who_is_waited_for_and_where_it_is(fresh, tmp_path, late):
    fresh.run(join, 3, False)
    said = fresh.run(reduce, 3, late, str(tmp_path / "sign"))
    first = 0 if late == [1] else 1
    who = "rank 1" if late == [1] else "ranks 0, 2"
    places = "".join(rf"; rank {rank} is at {re.escape(__file__)}:\d+ \(validating\)" for rank in late)
    line = rf"gradtide: rank {first} has waited 1 s for {who} in all_reduce\(sum\) of float32\[3\]{places}\n"
    assert re.fullmatch(line, said[first])
    assert [said[rank] for rank in range(3) if rank != first] == ["", ""]


@pytest.mark.parametrize("late", [2, 1])
def test_a_long_wait_is_told_between_hosts_too(far, tmp_path, late):
    far.run(join, 4, True)
    said = far.run(reduce, 4, [late], str(tmp_path / "sign"))
    place = rf"{re.escape(__file__)}:\d+ \(validating\)"
    line = rf"gradtide: rank 0 has waited 1 s for rank {late} in all_reduce\(sum\) of float32\[3\]; rank {late} is at "
    assert re.fullmatch(f"{line}{place}\n", said[0])
    assert said[1:] == ["", "", ""]


def test_one_that_can_not_answer_is_named_all_the_same(fresh, tmp_path):
    pids = fresh.run(join, 2, False)
    os.kill(pids[1], signal.SIGSTOP)
    fresh.start(reduce, 2, [], str(tmp_path / "sign"))
    validating(tmp_path / "sign")
    os.kill(pids[1], signal.SIGCONT)
    assert fresh.answer(0) == "gradtide: rank 0 has waited 1 s for rank 1 in all_reduce(sum) of float32[3]\n"
    assert fresh.answer(1) == ""


ENDS = """
import atexit, os, sys
atexit.register(lambda: os._exit(hasattr(sys, "last_value")))  # after everything else; to unload torch takes seconds
from gradtide.collective import Group
from gradtide.collective.groups import preload
from gradtide.errors import PeerLost

preload.load()
how = next((how for how in ("well", "badly", "watches") if os.fork() == 0), None)
if how is None:
    print(sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(3)), flush=True)
elif how == "watches":
    for name in ("well", "badly"):
        try:
            group = Group.join(sys.argv[1] + name, 1, 2)
            for _ in range(3):
                group.barrier()
        except PeerLost as error:
            print(error, flush=True)
else:
    group = Group.join(sys.argv[1] + how, 0, 2)
    for _ in range(2):
        group.barrier()
    if how == "badly":
        raise ValueError("this rank did not finish")
"""


def test_a_program_that_ends_well_has_finished_and_one_that_raises_has_died():
    command = [sys.executable, "-c", ENDS, f"ends-{os.getpid()}-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    well, badly, codes = done.stdout.splitlines()
    assert well.startswith("rank 0 has finished (left the group) while rank 1 waits in barrier: give all workers")
    assert badly.startswith(
        "rank 0 died or left during barrier (rank 0 ended with ValueError: this rank did not finish ("
    )
    assert codes == "[0, 0, 1]"

"""Local steps: whatever a program does, workers end as a few plain lines do that play them."""

import re

import local_programs
import played
import pytest
import torch
import training

import gradtide
from gradtide import Servers

NESTEROV = gradtide.update("sgd", lr=0.7, momentum=0.9, nesterov=True)
WAYS = {
    "a mean at every step": {"every": 1},
    "an outer optimizer": {"every": 4, "outer": NESTEROV},
    "after some together": {"every": 3, "outer": gradtide.update("adam", lr=0.01), "after": 2},
}
HELD = "the servers hold the base"
OVER_SERVERS = {"loaded": HELD, "edited": HELD}  # what servers refuse


def check(found, wanted, refusal=None):
    for own, of_played in zip(found, wanted, strict=True):
        assert not isinstance(of_played, str), of_played
        if refusal is not None:
            assert isinstance(own, str)
            assert re.search(refusal, own), own
            continue
        assert not isinstance(own, str), own
        for a, b in zip(own, of_played, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-10), f"off by {(a - b).abs().max()}"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", [*local_programs.BY_ONE, *local_programs.BY_SEVERAL], ids=lambda p: p.__name__)
def test_workers_do_what_is_played(workers, program, way):
    size = 3 if way == "an outer optimizer" else 2
    found, wanted = (
        workers.run(played.run, size, training.new_name(), program, WAYS[way], only) for only in (False, True)
    )
    check(found, wanted)


@pytest.mark.parametrize(
    ("program", "way"),
    [(program, "an outer optimizer") for program in local_programs.BY_ONE]
    + [(local_programs.stepped_twice, "a mean at every step"), (local_programs.group_added, "after some together")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_workers_over_servers_do_what_is_played(workers, stores, program, way):
    over = Servers("bsp", stores, name=training.new_name())
    found = workers.run(played.run, 2, training.new_name(), program, {**WAYS[way], "over": over})
    wanted = workers.run(played.run, 2, training.new_name(), program, WAYS[way], True)
    check(found, wanted, OVER_SERVERS.get(program.__name__))

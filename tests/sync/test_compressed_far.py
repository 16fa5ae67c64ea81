"""Compressed gradients between two hosts: network namespaces, one slow wire."""

from contextlib import ExitStack

import compressing
import pytest
import torch
from ranks import Ranks, move

from gradtide.errors import ConfigError
from gradtide.testing import hosts


@pytest.fixture(scope="module")
def far():
    """Two ranks of a job that a launcher started, on a host each."""
    with ExitStack() as stack:
        try:
            inside = stack.enter_context(hosts.two_hosts("40mbit"))
        except ConfigError as error:
            pytest.skip(str(error))
        started = Ranks(2)
        stack.callback(started.close)
        started.run(move, 2, [command[-1] for command in inside])
        yield started


def test_between_slow_hosts_auto_takes_what_pays_and_says_what_that_saves(far):
    answers = far.run(compressing.learn, 2, None, "auto", "adam", 3)
    said = answers[0][2]
    assert said.startswith("int8: 0.409 MB a step to each worker instead of 1.63; "), said
    assert "s predicted instead of" in said
    assert all(torch.equal(a, b) for a, b in zip(answers[0][1], answers[1][1], strict=True))


def test_thin_matrices_and_the_largest_values_go_between_hosts_as_on_one(far):
    for compress in ("powersgd:2", "topk:0.02"):
        answers = far.run(compressing.learn, 2, None, compress, "sgd", 3)
        assert all(torch.equal(a, b) for a, b in zip(answers[0][1], answers[1][1], strict=True))

"""Compressed gradients between two hosts: network namespaces, one slow wire."""

import compressing
import pytest
import torch
from far import far_ranks


@pytest.fixture(scope="module")
def far():
    """Two ranks, on a host each."""
    with far_ranks(2, "40mbit") as started:
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

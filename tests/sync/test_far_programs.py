"""Programs of PyTorch users on two hosts: network namespaces, two workers on each, by ring and over links."""

import local_inside
import programs
import pytest
from far import far_ranks
from test_true_to_pytorch import check

from gradtide.sync import Local

TRIED = {
    **dict.fromkeys(["clip_norm", "masked", "scaler", "uneven_micro_batches", "two_backwards", "gradient_penalty"]),
    **dict.fromkeys(["checkpoint_reentrant", "skipped_backward", "token_means_accumulated", "shrunk_parameters"]),
    **dict.fromkeys(["average_swapped_in", "frozen_unseeded", "two_optimizers", "unfrozen_later", "step_hooks"]),
    **dict.fromkeys(["reassigned_buffer", "sparse_adam", "options_differ", "in_no_optimizer", "group_added_later"]),
}


@pytest.fixture(scope="module")
def far():
    """Four ranks: 0 and 1 on one host, 2 and 3 on the other."""
    with far_ranks(4, "1gbit") as started:
        yield started


@pytest.mark.parametrize("sync", ["ring", "auto"])
def test_programs_by_ring_and_over_links_between_two_hosts(far, sync):
    assert TRIED.keys() <= programs.PROGRAMS.keys()
    for answers in zip(*far.run(programs.run_many, 4, list(TRIED), {"sync": sync}), strict=True):
        check(answers[0][0], "ring", [found for _, found in answers])


@pytest.mark.parametrize("compress", [None, "topk:1"])
def test_hosts_step_by_themselves_and_meet_now_and_then(far, compress):
    local = Local(4, local_inside.NESTEROV, within="host")
    found = far.run(local_inside.train, 4, "", [], "adamw", local, 29, compress)
    wanted = local_inside.played("adamw", 4, local, (2, 2))
    for parameters, sums, _ in found:
        assert max((a - b).abs().max() for a, b in zip(parameters, wanted, strict=True)) < 1e-12
        assert (sums[1] == found[3][1][1]) == (sums is found[2][1] or sums is found[3][1])  # apart in the second step

"""A model or its optimizers change in mid-training: workers do as one process does, or refuse it in one line."""

import re
from functools import cache

import changed_programs
import pytest
import torch
import training

import gradtide
from gradtide import Servers

WAYS = {
    "auto": {},
    "all-reduce": {"share_parameters": False},
    "compressed": {"compress": "topk:1"},
    "torch.distributed": {"sync": "torch.distributed"},
    "local": {"sync": gradtide.Local(1)},  # which is exact, since SGD with momentum is linear in gradients
}
FOLLOWED = [program.__name__ for program in changed_programs.FOLLOWED]
STATE = "the optimizer's state"
NOT_EDITED = "the servers hold the parameters|the servers know nothing of it"
NEW, BY_HAND = "the servers know nothing of it", "call model.step()"
WRAPPED, KEEP = "this model is wrapped already", "the servers step, with the optimizer"
NOT_KNOWN = {"servers": NEW, "servers that average": NEW}
WRAPPED_ALREADY = {"servers": WRAPPED, "servers that average": WRAPPED}
REFUSED = {
    "replaced_and_pointed_to": NOT_KNOWN,
    "replaced_with_a_new_optimizer": NOT_KNOWN,
    "replaced_in_the_middle_of_a_step": NOT_KNOWN,
    "grown": NOT_KNOWN,
    "grown_embedding": NOT_KNOWN,
    "grown_by_data": NOT_KNOWN,
    "put_into_a_group": {"servers that average": NEW},
    "replaced_with_its_state": {"auto": STATE, "servers": STATE, "servers that average": NEW},
    "assigned": NOT_KNOWN,
    "swapped": {"servers": "the servers hold it and step it"},
    "assigned_by_the_wrapper": {"servers": NOT_EDITED, "servers that average": NEW},
    "weight_normed": {"servers that average": NEW},
    "grown_by_a_layer": {"servers that average": NEW},
    "two_optimizers_in_turns": {"servers": BY_HAND},
    "second_optimizer_of_a_part": {"servers": BY_HAND},
    "second_optimizer_of_the_same": {"servers": BY_HAND},
    "second_optimizer_of_what_is_thawed": {"servers": BY_HAND},
    "new_optimizer": {"servers": BY_HAND},
    "new_optimizer_given_to_step": {"servers": KEEP},
    "wrapped_again": WRAPPED_ALREADY,
    "wrapped_as_a_part": WRAPPED_ALREADY,
}
OVER_SERVERS = [
    *REFUSED,
    "cut_off",
    "reordered_groups",
    "sharpness_aware",
    "sharpness_aware_by_a_closure",
    "merged_and_added_later",
]
# Local(1) is exact where steps are linear in gradients, all are an optimizer's, and workers begin without state,
# and a gradient is used for a step alone.
NOT_LOCAL = (
    "parameters_moved_between_groups",
    "gradients_in_no_optimizer_stay",
    "merged_and_added_later",
    "wrapped_again_by_the_same_optimizer",
    "sharpness_aware",
    "sharpness_aware_by_a_closure",
)
alone = cache(changed_programs.alone)


def check(program, way, found):
    wanted, refusal = alone(program), REFUSED.get(program, {}).get(way)
    for of_worker in found:
        if refusal is not None:
            assert isinstance(of_worker, str), f"{program} was to be refused"
            assert re.search(refusal, of_worker), of_worker
            assert "\n" not in of_worker
            continue
        assert not isinstance(of_worker, str), of_worker
        assert len(of_worker) == len(wanted)
        for a, b in zip(of_worker, wanted, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-10), f"{program}: off by {(a - b).abs().max()}"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", FOLLOWED)
def test_what_a_program_changes_is_followed(workers, program, way):
    if way != "local" or program not in NOT_LOCAL:
        check(program, way, workers.run(changed_programs.run, 2, training.new_name(), program, dict(WAYS[way])))


@pytest.mark.parametrize("way", ["servers", "servers that average"])
@pytest.mark.parametrize("program", OVER_SERVERS)
def test_over_servers_it_is_followed_or_refused(forks, workers, program, way):
    with gradtide.local_servers(1, forks=forks) as servers:
        options = {"sync": Servers("bsp", servers.address)}
        options |= {"share_parameters": False} if way == "servers that average" else {}
        found = workers.run(changed_programs.run, 2, training.new_name(), program, options)
    check(program, way, found)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    "program",
    ["replaced_with_a_new_optimizer", "replaced_and_added", "weight_normed", "reordered_groups", "wrapped_again"],
)
def test_three_workers_and_one_do_as_two(workers, program, size):
    name = training.new_name() if size > 1 else None
    check(program, "auto", workers.run(changed_programs.run, size, name, program, {}))


@pytest.mark.parametrize("way", ["auto", "all-reduce", "local"])
def test_a_wrapper_that_let_go_of_its_model_says_so(workers, way):
    for found in workers.run(changed_programs.run, 2, training.new_name(), "old_wrapper_used", dict(WAYS[way])):
        assert "this model was wrapped again since, and is trained through that wrapper" in found


@pytest.mark.parametrize("size", [1, 2])
def test_a_closed_wrapper_takes_no_step(workers, size):
    name = training.new_name() if size > 1 else None
    for found in workers.run(changed_programs.run, size, name, "closed_wrapper_used", {}):
        assert "close() has ended the training of this wrapper" in found


@pytest.mark.parametrize("program", ["steps_in_backward", "strangers_step_in_backward"])
def test_an_optimizer_that_steps_within_backward_is_refused_where_there_are_several_workers(workers, program):
    check(program, "auto", workers.run(changed_programs.run, 1, None, program, {}))
    for found in workers.run(changed_programs.run, 2, training.new_name(), program, {}):
        assert "a hook steps, or takes a gradient away, within backward" in found


NEVER = "trains, but no worker's gradient of it reaches the others"
BY_A_STRANGER = "0.weight was changed outside of model.edit"  # of shared memory, where that is looked at before
NET = [
    ("replaced_and_pointed_to", ("auto", "shared", "all-reduce"), f"4.weight {NEVER}"),
    ("replaced_with_a_new_optimizer", ("auto", "shared", "all-reduce"), f"4.weight {NEVER}|{BY_A_STRANGER}"),
    ("weight_normed", ("auto", "shared", "all-reduce"), f"2.weight_g {NEVER}"),
    ("weight_parametrized", ("auto", "shared", "all-reduce"), f"original0 {NEVER}|{BY_A_STRANGER}"),
    ("wrapped_again", ("shared",), "was looked at within a later backward, where parameters are shared"),
]


@pytest.mark.parametrize(
    ("program", "way", "said"), [(program, way, said) for program, ways, said in NET for way in ways]
)
def test_what_nobody_followed_is_found(workers, program, way, said):
    options = {"share_parameters": True} if way == "shared" else dict(WAYS[way])
    for found in workers.run(changed_programs.run_unmended, 2, training.new_name(), program, options):
        assert isinstance(found, str), "nobody noticed"
        assert re.search(said, found), found


@pytest.mark.parametrize(
    ("program", "way"), [("parametrized", "auto"), ("parametrized", "shared"), ("wrapped_again", "auto")]
)
def test_what_shared_memory_makes_right_is_right_without_being_followed(workers, program, way):
    options = {"share_parameters": True} if way == "shared" else {}
    found = workers.run(changed_programs.run_unmended, 2, training.new_name(), program, options)
    check(program, "shared", found)


def test_complex_parameters_are_compared_where_norms_are(workers):
    program = "clipped_and_complex"
    check(program, "auto", workers.run(changed_programs.run, 2, training.new_name(), program, {}))


@pytest.mark.parametrize("program", ["new_optimizer", "second_optimizer_of_the_same", "second_optimizer_of_a_part"])
def test_optimizers_that_come_later_where_local_steps_are_over_servers(stores, workers, program):
    over = Servers("bsp", stores, name=training.new_name())
    options = {"sync": gradtide.Local(1, over=over)}
    found = workers.run(changed_programs.run, 2, training.new_name(), program, options)
    if program == "second_optimizer_of_a_part":
        assert all("Local over servers counts the steps of one optimizer" in refusal for refusal in found)
    else:
        check(program, "local", found)

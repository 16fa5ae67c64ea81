"""What PyTorch users write every day gives what one process gives, or is refused in one line: on every way."""

import re
import warnings
from functools import cache
from itertools import product

import programs
import pytest
import torch
import training

import gradtide
from gradtide import Servers
from gradtide.errors import ConfigError

WAYS = {
    "auto": {},
    "shared": {"share_parameters": True},
    "all-reduce": {"share_parameters": False},
    "compressed": {"compress": "topk:1"},
    "torch.distributed": {"sync": "torch.distributed"},
    "servers": {"sync": "servers"},
    "servers that average": {"sync": "servers", "share_parameters": False},
}
EDITED, STEP, HELD = "was changed between backward and step", "call model.step()", "the servers hold"
_no_edits, _by_hand = {"servers": EDITED}, {"servers": STEP}
_no_state = {"auto": "the optimizer's state is in", "shared": "the optimizer's state is in", "servers": HELD}
_can_not_share = "parameters can't be shared"
REFUSED = {
    "clip_norm": _by_hand,
    "clip_norm_then_model_step": _no_edits,
    "clip_value": _no_edits,
    "replaced_gradient": _no_edits,
    "gradient_data": _no_edits,
    "late_edit": _no_edits,
    "masked": _by_hand,
    "noise": _by_hand,
    "scaler": _by_hand,
    "by_hand": _by_hand,
    "closure": _by_hand,
    "kept_gradients": _by_hand,
    "reads_gradients": _by_hand,
    "two_backwards": {},
    "checkpoint_reentrant": {},
    "token_means_accumulated": {"servers": "one weight", "servers that average": "one weight"},
    "shrunk_parameters": {"servers": HELD},
    "clamped_parameters": {"servers": HELD},
    "shrunk_in_edit": {"servers": HELD},
    "clamped_in_edit": {"servers": HELD},
    "average_swapped_in": {"servers": HELD},
    "parent_reloads": {"servers": HELD},
    "two_optimizers": {"shared": _can_not_share},
    "in_no_optimizer": {"shared": _can_not_share},
    "group_added_later": {},
    "converted_after_wrapping": {"servers": "convert the model before", "servers that average": "convert the model"},
    "step_hooks": {"shared": _can_not_share},
    "options_differ": {"servers that average": "differ between workers"},
    "state_cleared": _no_state,
    "momentum_zeroed": _no_state,
    "state_reloaded": {"servers": HELD},
    "sparse_sgd": {"shared": _can_not_share},
    "sparse_adam": {"shared": _can_not_share},
}

alone = cache(programs.alone)


def check(program, way, found):
    wanted, refusal = alone(program), REFUSED.get(program, {}).get(way)
    for of_worker in found:
        if refusal is not None:
            assert isinstance(of_worker, str), f"{program} was to be refused"
        else:
            assert not isinstance(of_worker, str), of_worker
            for a, b in zip(of_worker, wanted, strict=False):
                a, b = (t.to_dense() if t.is_sparse else t for t in (a, b))
                assert torch.allclose(a, b, rtol=0, atol=1e-10), f"{program}: off by {(a - b).abs().max()}"
            assert len(found[0]) == len(wanted)
    if refusal is not None:
        assert any(re.search(refusal, of_worker) for of_worker in found), found
        assert not any("\n" in of_worker for of_worker in found)


def programs_on(*ways):
    """Every scheduler by default only where whoever steps for all has to hear of the rate; else some of each kind."""
    made = []
    for way, program in product(ways, programs.PROGRAMS):
        repeats = program == "schedulers" if way not in ("shared", "servers") else program == "some_schedulers"
        made.append(pytest.param(program, way, marks=[pytest.mark.slow] if repeats else [], id=f"{way}-{program}"))
    return made


@pytest.mark.parametrize(
    ("program", "way"), programs_on("auto", "shared", "all-reduce", "compressed", "torch.distributed")
)
def test_a_program_on_one_host(workers, program, way):
    found = workers.run(programs.run, 2, training.new_name(), program, dict(WAYS[way]))
    check(program, way, found)


@pytest.mark.parametrize(("program", "way"), programs_on("servers", "servers that average"))
def test_a_program_over_servers(forks, workers, program, way):
    with gradtide.local_servers(1, forks=forks) as servers:
        options = {**WAYS[way], "sync": Servers("bsp", servers.address)}
        found = workers.run(programs.run, 2, training.new_name(), program, options)
    check(program, way, found)


@pytest.mark.parametrize(
    "program", ["clip_norm", "uneven_micro_batches", "skipped_backward", "frozen_unseeded", "tied"]
)
@pytest.mark.parametrize("way", ["auto", "all-reduce"])
def test_three_workers_do_as_two(workers, program, way):
    check(program, way, workers.run(programs.run, 3, training.new_name(), program, dict(WAYS[way])))


@pytest.mark.parametrize("way", ["auto", "shared", "all-reduce"])
def test_workers_drop_different_units_and_draw_the_same_elsewhere(workers, way):
    found = workers.run(programs.run, 2, training.new_name(), "dropout_masks", dict(WAYS[way]))
    assert torch.equal(found[0][1], found[1][1])
    for a, b in zip(found[0][0][:3], found[1][0][:3], strict=True):
        assert not torch.equal(a, b)


@pytest.mark.parametrize("way", ["auto", "shared", "all-reduce"])
def test_buffers_are_those_of_a_worker_that_still_trains(workers, way):
    for batches, mean in workers.run(programs.run, 2, training.new_name(), "joined_batch_norm", dict(WAYS[way])):
        assert batches == 5
        assert mean.mean() > 1  # worker 1's inputs are around 5


@pytest.mark.parametrize("way", ["auto", "shared", "all-reduce"])
@pytest.mark.parametrize(("program", "named"), [("other_model", "weight: float64[4, 5]"), ("other_group", "Adam")])
def test_workers_that_build_different_models_are_told_how_they_differ(workers, program, named, way):
    found = workers.run(programs.run, 2, training.new_name(), program, dict(WAYS[way]))
    assert "the model of worker 1 is not that of worker 0" in found[0]
    assert "this worker's model is not worker 0's" in found[1]
    assert named in found[1]


def test_a_worker_whose_backward_failed_half_way_may_not_go_on(workers):
    found = workers.run(programs.run, 2, training.new_name(), "error_in_one_backward", {})
    assert "the last backward on this worker ended in an error" in found[1]
    assert found[0].startswith(("PeerLost", "Mismatch", "CommunicationError", "PeerTimeout"))


def test_a_second_training_on_the_same_servers_says_whether_it_goes_on(forks, workers):
    with gradtide.local_servers(1, forks=forks) as servers:
        options = {"sync": Servers("bsp", servers.address)}
        found = workers.run(programs.run, 1, None, "second_training", dict(options))
        assert "say Servers(..., resume=True) to go on with it" in found[0]
        found = workers.run(programs.run, 2, training.new_name(), "named_trainings", dict(options))
    wanted = programs.alone("named_trainings")
    for of_worker in found:
        for a, b in zip(of_worker, wanted, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: torch.nn.Linear(3, 1, device="meta"), "weight is on the meta device"),
        (lambda: torch.nn.LazyLinear(1), "has no shape yet; run one forward"),
    ],
)
def test_parameters_without_values_are_refused(make, said):
    model = make()
    with pytest.raises(ConfigError, match=said):
        gradtide.DataParallel(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_an_optimizer_whose_step_takes_no_closure_is_one_like_any_other():
    class Own(torch.optim.SGD):
        def step(self):
            super().step()

    model = torch.nn.Linear(2, 1)
    wrapped = gradtide.DataParallel(model, Own(model.parameters(), lr=0.1))
    before = model.weight.detach().clone()
    wrapped(torch.ones(1, 2)).sum().backward()
    wrapped.step()
    assert not torch.equal(model.weight, before)


def test_forgetting_the_step_is_told_once():
    model = torch.nn.Linear(2, 1)
    wrapped = gradtide.DataParallel(model, torch.optim.SGD(model.parameters(), lr=0.1))
    wrapped(torch.ones(1, 2)).sum().backward()
    with pytest.warns(UserWarning, match="a second backward since the last step"):
        wrapped(torch.ones(1, 2)).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapped(torch.ones(1, 2)).sum().backward()


def test_explain_names_what_differs_from_one_process(workers):
    found = workers.run(programs.run, 2, training.new_name(), "explained", {})
    assert "batch normalisation sees each worker's own part" in found[0]
    assert "each worker draws its own dropout masks" in found[0]
    assert workers.run(programs.run, 2, training.new_name(), "explained_draws", {})[0] == [True, True, True, False]


@pytest.mark.parametrize("way", ["auto", "all-reduce"])
def test_a_worker_that_changes_its_copy_alone_is_found_out(workers, way):
    for found in workers.run(programs.run, 2, training.new_name(), "own_edit", dict(WAYS[way])):
        assert "0.weight is no longer the same on all workers" in found


def test_over_servers_that_average_a_worker_that_changes_its_copy_alone_is_found_out(forks, workers):
    with gradtide.local_servers(1, forks=forks) as servers:
        options = {**WAYS["servers that average"], "sync": Servers("bsp", servers.address)}
        for found in workers.run(programs.run, 2, training.new_name(), "own_edit", options):
            assert "0.weight is no longer the same on all workers" in found


@pytest.mark.parametrize("way", ["auto", "shared", "all-reduce"])
def test_a_worker_that_left_out_a_batch_is_told_at_the_next_step(workers, way):
    for found in workers.run(programs.run, 2, training.new_name(), "catches_an_error", dict(WAYS.get(way, {}))):
        assert "worker 1 takes this step with its batch number 4 of gradtide.shard, and worker 0 with number 3" in found


@pytest.mark.parametrize("way", ["shared", "all-reduce"])
def test_a_worker_that_left_out_the_last_batch_is_told_when_it_ends(workers, way):
    program = "catches_an_error_at_the_end"
    longer, early = workers.run(programs.run, 2, training.new_name(), program, dict(WAYS[way]))
    assert "this worker ends its training, and another is in a step still" in early
    assert "at the end of its training, to which all workers come after as many steps" in longer


@pytest.mark.parametrize("way", ["auto", "shared", "all-reduce"])
def test_an_embedding_that_renormalises_itself_is_refused(workers, way):
    for found in workers.run(programs.run, 2, training.new_name(), "max_norm", dict(WAYS[way])):
        assert "has max_norm=" in found


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("two_shards", "two loops over gradtide.shard are under way"),
        ("join_around_shard", "leave model.join() out"),
        ("one_skips_a_step", "a worker took a step that another left out"),
        ("validates_alone", r"rank 0: all_gather of uint8[16] in gradtide.shard, which all workers go over together"),
        ("loads_alone", "in model.edit() or load_state_dict(), which all workers enter together"),
        ("loops_of_different_lengths", "share out the data with gradtide.shard(...), or train in model.join()"),
        ("forgets_backward", "step() without a backward: no worker has a gradient since the last step"),
        ("forgets_backward_unshared", "step() without a backward: no worker has a gradient since the last step"),
        ("edits_a_shared_gradient", "warned once, of the program's own line"),
    ],
)
def test_what_would_part_the_workers_is_refused(workers, program, said):
    found = workers.run(programs.run, 2, training.new_name(), program, {})
    assert any(said in of_worker for of_worker in found), found


def test_servers_that_step_refuse_an_optimizers_state(forks, workers):
    with gradtide.local_servers(1, forks=forks) as servers:
        options = {"sync": Servers("bsp", servers.address)}
        for found in workers.run(programs.run, 2, training.new_name(), "loads_optimizer", options):
            assert "the servers hold the optimizer's state" in found


@pytest.mark.parametrize("way", ["servers", "servers that average"])
@pytest.mark.parametrize("program", ["leaves_early", "leaves_before_the_last", "catches_an_error"])
def test_over_servers_nobody_goes_on_with_a_part_of_the_batches(forks, workers, program, way):
    with gradtide.local_servers(1, forks=forks) as servers:
        options = {**WAYS[way], "sync": Servers("bsp", servers.address)}
        found = workers.run(programs.run, 2, training.new_name(), program, options)
    early, longer = found[::-1] if program == "catches_an_error" else found
    assert not isinstance(early, str), early
    assert "has taken its last step, or was lost, and worker" in longer


def test_over_servers_join_lets_loops_have_different_lengths(forks, workers):
    with gradtide.local_servers(1, forks=forks) as servers:
        options = {"sync": Servers("bsp", servers.address)}
        early, longer = workers.run(programs.run, 2, training.new_name(), "leaves_early_in_join", options)
    assert not isinstance(early, str), early
    assert not isinstance(longer, str), longer


@pytest.mark.parametrize("way", ["auto", "all-reduce"])
def test_a_model_that_is_dropped_leaves_nothing_open(workers, way):
    for counts in workers.run(programs.run, 2, training.new_name(), "dropped_models", dict(WAYS[way])):
        assert counts[-1] == counts[0], counts

"""Compressed gradients between workers: nothing is lost, and with all that there is they are what one process gives."""

import compressing
import numpy as np
import pytest
import torch
import training

import gradtide
from gradtide.compress import Compress

EXACT = ["onebit", "topk:0.05", "topk:1"]


def check_conserved(answers, limit):
    """Over all workers: what was given is what came and what is left. And the same came to all, bit for bit."""
    for came in answers[1:]:
        for mine, theirs in zip(answers[0][1], came[1], strict=True):
            for a, b in zip(mine, theirs, strict=True):
                assert (a is None) == (b is None)
                assert a is None or np.array_equal(a, b)
    for index in range(len(compressing.SHAPES)):
        given = sum(answer[0][index] for answer in answers)
        left = sum(answer[2][index] for answer in answers)
        came = sum((step[index] for step in answers[0][1] if step[index] is not None), np.zeros_like(given))
        assert np.abs(came + left - given).max() <= limit, index


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("compress", EXACT)
def test_what_came_and_what_is_left_is_what_was_given_to_the_last_bit(workers, compress, dtype):
    check_conserved(workers.run(compressing.conserve, 4, training.new_name(), compress, dtype, 12), 0.0)


@pytest.mark.parametrize("rank", [1, 3])
def test_thin_matrices_lose_nothing_either(workers, rank):
    name, compress = training.new_name(), Compress("powersgd", rank=rank)
    check_conserved(workers.run(compressing.conserve, 4, name, compress, torch.float64, 12), 1e-10)


def test_the_first_steps_are_taken_with_whole_gradients(workers):
    answers = workers.run(compressing.conserve, 2, training.new_name(), Compress("onebit", after=12), torch.float32, 12)
    check_conserved(answers, 0.0)
    assert not any(left.any() for _, _, residuals in answers for left in residuals)


@pytest.mark.parametrize("case", [case for case in training.CASES if case != "compiled"])
@pytest.mark.parametrize("compress", ["topk:1", "powersgd:512"])
def test_with_all_that_there_is_programs_give_what_one_process_gives(workers, case, compress):
    wanted = training.CASES[case](None, {})
    for found in workers.run(training.run_case, 3, training.new_name(), case, {"compress": compress}):
        for a, b in zip(found, wanted, strict=True):
            assert (a - b).abs().max() < 1e-10


def test_workers_whose_loops_differ_in_length_give_what_one_process_gives(workers):
    wanted = training.uneven_alone(3)
    for found in workers.run(training.uneven, 3, training.new_name(), {"compress": "topk:1"}):
        for a, b in zip(found, wanted, strict=True):
            assert (a - b).abs().max() < 1e-10


DIGITS = {torch.float32: 2**-10, torch.float64: 2**-10, torch.bfloat16: 2**-7}
OVER_SERVERS = [(sync, dtype) for sync in ("servers", "local over servers") for dtype in (torch.float32, torch.float64)]


@pytest.mark.parametrize(("sync", "dtype"), [*((s, t) for s in ("auto", "local") for t in DIGITS), *OVER_SERVERS])
@pytest.mark.parametrize("by", [1e-8, 1e-7, 1e6])
def test_halves_bring_gradients_of_whatever_size(workers, stores, sync, by, dtype):
    servers = gradtide.Servers("bsp", name=training.new_name())
    ways = {"local": gradtide.Local(1), "servers": servers, "local over servers": gradtide.Local(1, over=servers)}
    for wanted, moved in workers.run(
        compressing.of_another_size, 2, training.new_name(), "fp16", dtype, by, ways.get(sync, sync), stores
    ):
        for a, b in zip(wanted, moved, strict=True):
            assert (a - b).abs().max() <= DIGITS[dtype] * 64 * by


@pytest.mark.parametrize("compress", ["int8", "topk:0.1", "powersgd:2", "fp16"])
def test_what_is_not_finite_reaches_all_and_leaves_what_was_left_out_alone(workers, compress):
    for rank, (before, after, came) in enumerate(workers.run(compressing.not_finite, 2, training.new_name(), compress)):
        assert came[0][3, 4].isnan()
        assert all(g.isfinite().all() for g in came[1:])
        if rank == 1 or compress == "powersgd:2":
            assert np.array_equal(before[0], after[0])
        if compress == "topk:0.1":
            assert not np.array_equal(before[4], after[4])


def test_with_a_learning_rate_that_changes_sgd_moves_as_far_in_the_end(workers):
    rates = [0.5, 0.25, 0.0, 2.0, 0.0, 0.125]
    answers = workers.run(compressing.changing_rates, 2, training.new_name(), "topk:0.05", rates)
    for index in range(len(compressing.SHAPES)):
        wanted = sum(answer[0][index] for answer in answers)
        left = sum(answer[2][index] for answer in answers)
        assert np.abs(answers[0][1][index] - rates[-1] * left - wanted).max() < 1e-10


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("compress", ["topk:0.1", "onebit"])
def test_a_gradient_that_is_thrown_away_takes_nothing_with_it_and_leaves_nothing(workers, compress, to_none):
    answers = workers.run(compressing.critic, 2, training.new_name(), compress, to_none)
    wanted, left = (sum(answer[index] for answer in answers) for index in (0, 2))
    assert np.abs(left).sum() > 0
    assert np.array_equal(answers[0][1] - left, wanted)


def test_a_learning_rate_that_rises_again_does_not_blow_up_what_momentum_has_taken_in(workers):
    whole, some = (workers.run(compressing.restarts, 2, training.new_name(), way)[0] for way in (None, "topk:0.02"))
    assert some < 4 * whole


@pytest.fixture(scope="module")
def dense(workers):
    return workers.run(compressing.learn, 2, training.new_name(), None, "sgd", 30)[0]


@pytest.mark.parametrize("compress", ["fp16", "bf16", "int8", "onebit", "topk:0.05", "powersgd:4"])
def test_every_codec_learns_and_all_workers_are_alike(workers, dense, compress):
    answers = workers.run(compressing.learn, 2, training.new_name(), compress, "sgd", 30)
    losses, parameters, said, sent = answers[0]
    assert all(torch.equal(a, b) for a, b in zip(parameters, answers[1][1], strict=True))
    first, last = np.mean(dense[0][:3]), np.mean(dense[0][-5:])
    assert np.mean(losses[-5:]) < last + 0.3 * (first - last)
    assert said.startswith(f"{compress}: ")
    assert "MB a step to each worker instead of 1.63" in said
    assert sent[-1] < 0.55 * sum(p.nbytes for p in parameters)


def test_runs_are_repeatable(workers):
    one, two = (workers.run(compressing.learn, 2, training.new_name(), "int8", "adam", 4)[0] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one[1], two[1], strict=True))


def test_half_precision_parameters_are_compressed_too(workers):
    for compress in ("topk:0.2", "powersgd:2"):
        answers = workers.run(compressing.learn, 2, training.new_name(), compress, "sgd", 4, torch.bfloat16)
        assert all(torch.equal(a, b) for a, b in zip(answers[0][1], answers[1][1], strict=True))


def test_on_one_host_auto_says_none_and_why_and_parameters_may_be_shared(workers):
    losses, _, said, _ = workers.run(compressing.learn, 2, training.new_name(), "auto", "sgd", 6)[0]
    assert "compress='auto': none, since all workers are on one host" in said
    assert "parameters are shared" in said
    assert losses == workers.run(compressing.learn, 2, training.new_name(), None, "sgd", 6)[0][0]


@pytest.mark.parametrize(
    ("options", "optimizer", "said"),
    [
        ({"compress": "onebit"}, "adam", "compress='onebit' does not go with Adam"),
        ({"compress": "onebit"}, "adamw", "compress='onebit' does not go with AdamW"),
        ({"compress": "int8", "share_parameters": True}, "sgd", "leave share_parameters= out"),
        ({"compress": "powersgd", "sync": gradtide.Servers("bsp")}, "sgd", "which servers can't"),
        ({"compress": "int8", "sync": "ring"}, "sgd", "goes with sync='auto' alone"),
        ({"compress": "gzip"}, "sgd", "no codec is called that"),
        ({"compress": "rank"}, "sgd", "compress=Compress('topk')"),
    ],
)
def test_what_compression_does_not_go_with_is_refused_by_name(workers, options, optimizer, said):
    answers = workers.run(compressing.refused, 2, training.new_name(), options, optimizer)
    assert any(said in answer for answer in answers), answers
    assert "nothing was said" not in answers


def test_one_worker_has_nothing_to_compress():
    net = torch.nn.Linear(3, 2)
    model = gradtide.DataParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), compress="topk")
    model(torch.ones(1, 3)).sum().backward()
    model.step()
    assert "nothing to synchronise, nor to compress" in model.explain()

"""What compression leaves out counts once where gradients are thrown away, and steps, windows and weights differ."""

import warnings

import compressing_kept
import numpy as np
import pytest
import torch
import training

import gradtide
from gradtide.compress import Compress
from gradtide.sync import Local, Servers
from gradtide.sync.servers.smaller import Smaller
from gradtide.sync.trained import find_trained


def check(answers):
    """Over all workers: what was given is what moved the parameters and what is left."""
    for index in range(len(answers[0][0])):
        assert all(np.array_equal(answer[1][index], answers[0][1][index]) for answer in answers)
        given, left = (sum(answer[place][index] for answer in answers) for place in (0, 2))
        assert np.abs(answers[0][1][index] + left - given).max() < 1e-9, index
    assert any(one.any() for answer in answers for one in answer[2])


@pytest.mark.parametrize(("sync", "again"), [("auto", 6), (Local(3), 5)], ids=["every step", "local steps"])
@pytest.mark.parametrize("compress", ["topk:0.1", "powersgd:2"])
def test_what_is_kept_after_a_gradient_was_thrown_away_is_what_was_left_before_it(workers, sync, again, compress):
    options = {"sync": sync, "compress": compress}
    check(workers.run(compressing_kept.take_turns, 3, training.new_name(), options, again))


def test_over_servers_what_a_long_window_left_out_counts_no_more_after_a_short_one(workers, stores):
    local = Local(3, over=Servers("bsp", name=training.new_name()))
    options = {"sync": local, "compress": "topk:0.1"}
    check(workers.run(compressing_kept.meet_at_odd_times, 3, training.new_name(), options, stores))


def test_over_servers_what_a_large_batch_left_out_counts_no_more_after_a_small_one(workers, stores):
    options = {"sync": Servers("bsp", name=training.new_name()), "compress": "topk:0.1"}
    check(workers.run(compressing_kept.weigh_by_samples, 4, training.new_name(), options, stores))


def test_who_goes_leaves_what_it_left_out_of_frozen_parameters_too(workers):
    heir, gone, other = workers.run(compressing_kept.leave_frozen_ones, 3, training.new_name())
    assert heir == {"values.0": 3.0, "values.1": 3.0}
    assert gone == {}
    assert other == {"values.0": 3.0, "values.1": 3.0}


def test_who_goes_over_servers_says_what_it_could_not_send_any_more(stores):
    net = torch.nn.Linear(40, 1)
    with gradtide.connect(stores) as store:
        smaller = Smaller(store, Compress("topk", ratio=0.1), in_rounds=False, servers_step=True)
        name = training.new_name()
        smaller.follow(find_trained(net, torch.optim.SGD(net.parameters(), lr=1.0)), lambda key: f"{name}/{key}")
        store.init(f"{name}/weight", torch.zeros(1, 40), update=gradtide.update("sgd", lr=1.0), compress="topk:0.1")
        store.push(f"{name}/weight", torch.ones(1, 40), wait=True)
        with pytest.warns(UserWarning, match="with it what compression had left out of weight, of which"):
            smaller.leave()
        store.flush_residuals()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            smaller.leave()

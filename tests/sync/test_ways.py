"""What every way must answer, what DataParallel shows, and the buckets that ways share."""

import inspect

import pytest
import torch
from torch import nn

import gradtide
from gradtide.store.rules.updates import is_elementwise
from gradtide.sync.alone import Alone
from gradtide.sync.buckets import BucketMemory, Buckets
from gradtide.sync.compressed import CompressedReduce, LeftToOne
from gradtide.sync.local import LocalOverServers, LocalSteps, TogetherFirst
from gradtide.sync.reduce import Reduce
from gradtide.sync.servers import ServersWay
from gradtide.sync.shared.way import SharedParameters
from gradtide.sync.ways import Way


def public(kind):
    return {name for name in vars(kind) if not name.startswith("_")}


@pytest.mark.parametrize(
    "kind",
    [
        Alone,
        SharedParameters,
        Reduce,
        CompressedReduce,
        LeftToOne,
        ServersWay,
        LocalSteps,
        LocalOverServers,
        TogetherFirst,
    ],
)
def test_every_way_answers_everything_that_is_asked_of_one(kind):
    made_by_itself = {"store", "servers_step", "workers_step", "led"} if kind is ServersWay else set()
    made_by_itself |= {"store", "led"} if kind is LocalOverServers else set()
    for name in public(Way) - made_by_itself:
        found = getattr(kind, name)
        assert callable(found) == callable(getattr(Way, name)), name
        if callable(found):
            assert list(inspect.signature(found).parameters) == list(inspect.signature(getattr(Way, name)).parameters)


def test_data_parallel_shows_what_users_need_and_nothing_else():
    shown = {"close", "edit", "explain", "forward", "join", "load_state_dict", "meet", "no_sync", "state_dict", "step"}
    shown |= {"optimizer", "train"}
    shown |= {"epoch", "load_sync_state", "random_state", "state", "sync_state", "synchronise", "weigh"}
    shown |= {"abandon", "entered", "watch"}  # for trainers of others
    assert public(gradtide.DataParallel) == shown
    net = nn.Linear(2, 2)
    model = gradtide.DataParallel(net, torch.optim.SGD(net.parameters(), lr=0.1))
    own = set(vars(model)) - set(vars(nn.Module())) | set(model._modules)
    assert {name for name in own if not name.startswith("_")} == {"module"}


# --- buckets ---

SIZES = 300_000, 200_000, 10, 20, 300_000  # the first bucket is full from 262,144 elements on


def parameters():
    return [nn.Parameter(torch.zeros(size)) for size in SIZES]


def test_buckets_leave_in_order_whatever_order_they_fill_in():
    buckets = Buckets(parameters(), overlap=True)
    assert [bucket.indices for bucket in buckets.all] == [[4], [3, 2, 1, 0]]
    assert [buckets.put(index) for index in range(4)] == [[], [], [], []]
    assert buckets.missing() == [4]
    assert buckets.put(4) == buckets.all
    assert buckets.rest() == []


def test_what_has_not_left_leaves_at_the_end_of_the_step_and_the_next_one_begins_anew():
    for overlap in (True, False):
        buckets = Buckets(parameters(), overlap=overlap)
        for _step in range(2):
            assert buckets.put(4) == (buckets.all[:1] if overlap else [])
            assert buckets.put(0) == []
            assert buckets.missing() == [1, 2, 3]
            assert buckets.rest() == (buckets.all[1:] if overlap else buckets.all)
            buckets.restart()


def test_a_gradient_that_comes_again_when_its_bucket_has_left_is_told():
    buckets = Buckets(parameters(), overlap=True)
    assert buckets.put(3) == []
    assert buckets.put(3) == []
    assert buckets.put(4) == buckets.all[:1]
    assert buckets.put(4) is None


def test_gradients_are_gathered_side_by_side_as_much_as_they_count():
    trained = parameters()
    for index, parameter in enumerate(trained[1:], 1):
        parameter.grad = torch.full_like(parameter, index)
    buckets = Buckets(trained, overlap=True)
    memory = BucketMemory(buckets.all, trained, lambda count, dtype: torch.full((count,), 7, dtype=dtype))
    for index in range(5):
        memory.gather(index, 0.5)
    assert memory.flat[0].tolist() == [2.0] * SIZES[4]
    whole = torch.cat([torch.full((SIZES[index],), index / 2) for index in (3, 2, 1, 0)])
    assert torch.equal(memory.flat[1], whole)


# --- the elementwise test ---


def test_only_torchs_own_optimizers_are_taken_for_elementwise():
    class SGD(torch.optim.SGD):
        """The name does not say what it does."""

    trained = [torch.zeros(2, 2, requires_grad=True)]
    assert is_elementwise(torch.optim.SGD(trained))
    assert is_elementwise(torch.optim.AdamW(trained))
    assert not is_elementwise(SGD(trained))
    assert not is_elementwise(torch.optim.Adafactor(trained))

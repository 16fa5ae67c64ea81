"""What servers keep beside a key's value, and the value itself, read outside of rounds."""

import pytest
import torch

import gradtide
from gradtide.errors import StoreError, UnknownKey
from gradtide.store.wire.messages import KeySpec, UpdateRule
from gradtide.store.wire.placement import beside

LARGE = (5 << 20) // 4  # elements of float32: several blocks


@pytest.fixture
def store(forks):
    with (
        gradtide.local_servers(3, forks=forks) as servers,
        gradtide.connect(servers.address, worker=0, workers=1, consistency="bounded:1") as store,
    ):
        yield store


def test_the_state_of_an_optimizer_is_that_of_torch_in_one_process(store):
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, LARGE))
    rule = torch.optim.AdamW([parameter], lr=0.1, amsgrad=True)
    for key in ("large", "unused"):
        store.init(key, parameter.detach(), update=gradtide.update("adamw", lr=0.1, amsgrad=True))
    assert store.optimizer_state(["large", "unused"]) == {}
    for step in range(3):
        parameter.grad = torch.linspace(step, 2, LARGE)
        store.push("large", parameter.grad.clone(), wait=True)
        rule.step()
    state = store.optimizer_state(["large", "unused"])
    assert state.keys() == {"large"}
    wanted = rule.state_dict()["state"][0]
    assert list(state["large"]) == list(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(state["large"][name], value)
    assert store.keys() == ["large", "unused"]


def test_a_value_is_read_as_it_is_now_where_workers_are_given_less_of_it(store):
    store.init("w", torch.zeros(512), update=gradtide.update("sgd", lr=1.0), compress="topk:0.1")
    for _ in range(3):
        store.push("w", torch.linspace(1, 2, 512), wait=True)
    now = torch.empty(512)
    store.pull_now({"w": now})
    assert now.count_nonzero() > 100
    assert not torch.equal(now, store.pull("w"))
    other = torch.empty(512)
    store.pull_now({"w": other})
    assert torch.equal(now, other)


@pytest.mark.parametrize("name", ["nothing", ""])
def test_what_is_not_there_is_refused_and_nothing_of_it_can_be_pushed(store, name):
    store.init("w", torch.zeros(5), update=gradtide.update("sgd", lr=1.0))
    told = KeySpec(beside("w", name), (5,), "float32", UpdateRule("assign"))
    store._catalogue.know([told])
    if name:
        with pytest.raises(UnknownKey):
            store.pull(told.key)
    with pytest.raises((UnknownKey, StoreError)):
        store.push(told.key, torch.ones(5), wait=True)
    assert store.pull("w").tolist() == [0.0] * 5

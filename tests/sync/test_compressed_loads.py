"""What compression left out goes with the values that it was left out at, when a program loads another state."""

import compressing_loads
import pytest
import torch
import training

from gradtide.sync import Local, Servers

CODECS = ["topk:0.05", "onebit", "powersgd:1"]
SYNCS = {"every step": "auto", "local steps": Local(2)}


def check_alike(answers):
    for wanted, found in answers:
        for a, b in zip(wanted, found, strict=True):
            assert torch.equal(a, b)
    assert all(torch.equal(a, b) for _, found in answers for a, b in zip(answers[0][1], found, strict=True))


@pytest.mark.parametrize("how", ["model", "module", "parent", "part"])
@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("compress", CODECS)
def test_gradients_of_a_state_that_is_given_up_never_come(workers, compress, sync, how):
    options = {"compress": compress}
    size = 3 if how == "model" else 2
    name = training.new_name()
    check_alike(workers.run(compressing_loads.abandon, size, name, SYNCS[sync], options, None, how))


@pytest.mark.parametrize("compress", ["topk:0.05", "onebit"])
def test_nor_do_those_that_servers_or_their_clients_have_left_out(workers, stores, compress):
    options = {"compress": compress, "share_parameters": False}
    sync, name = Servers("bsp", name=training.new_name()), training.new_name()
    check_alike(workers.run(compressing_loads.abandon, 2, name, sync, options, stores, "model"))


@pytest.mark.parametrize("how", ["model", "module"])
@pytest.mark.parametrize("order", [("model", "sync"), ("sync", "model")], ids=" then ".join)
@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("compress", CODECS)
def test_with_what_was_left_out_then_a_state_goes_on_as_it_did(workers, compress, sync, order, how):
    options = {"compress": compress}
    check_alike(workers.run(compressing_loads.go_back, 2, training.new_name(), SYNCS[sync], options, order, how))


@pytest.mark.parametrize("between", ["an average takes their place", "an edit", "copies"])
@pytest.mark.parametrize("sync", [*SYNCS, "servers"])
def test_what_is_left_out_stays_where_values_do(workers, stores, sync, between):
    found = []
    for what in ("nothing", between):
        over = Servers("bsp", name=training.new_name())
        options = {"compress": "topk:0.05"} | ({"share_parameters": False} if sync == "servers" else {})
        way, name = SYNCS.get(sync, over), training.new_name()
        found.append(workers.run(compressing_loads.look_away, 2, name, way, options, stores, what))
    check_alike(list(zip(*found, strict=True)))


def test_a_state_is_not_loaded_where_each_worker_is_somewhere_else(workers):
    for said, same in workers.run(compressing_loads.load_apart, 2, training.new_name()):
        assert "each worker has taken 1 steps by itself" in said
        assert "\n" not in said
        assert same

"""What only servers could get wrong is what one process has, or is refused in one line, with 2 and 3 workers."""

import re
from functools import cache

import pytest
import served_programs
import torch
import training
from ranks import Ranks

import gradtide
from gradtide import Servers

ALL = [*served_programs.SERVED]
BY_HAND = "call model.step\\(\\) instead of optimizer.step\\(\\)"
CAN_NOT_GO_ON = "the servers step, and can't go on: "
REFUSED = {
    "sharpness_aware": BY_HAND,
    "scaled_gradients": BY_HAND,
    "pruned_for_a_while": "2.weight was changed, but the servers hold it and step it",
    "tied_in_mid_training": CAN_NOT_GO_ON + "0.bias and 2.bias lie in the same memory; close",
    "step_replaced_in_mid_training": CAN_NOT_GO_ON + "the program has put a function of its own in place",
    "saved_between_backward_and_step": "gradients have left for the next step already; call state_dict",
    "changes_a_saved_state": "the servers hold the optimizer's state: read it by",
}
alone = cache(served_programs.alone)


@pytest.fixture
def servers(forks):
    with gradtide.local_servers(2, forks=forks) as started:
        yield started.address


def check_alike(found, wanted=None):
    for of_worker in found:
        assert not isinstance(of_worker, str), of_worker
        assert len(of_worker) == len(found[0])
        for a, b in zip(of_worker, found[0], strict=True):
            assert torch.equal(a, b)
    if wanted is not None:
        assert len(found[0]) == len(wanted)
        for a, b in zip(found[0], wanted, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-10), f"off by {(a - b).abs().max()}"


def check_refused(found, refusal):
    for of_worker in found:
        assert isinstance(of_worker, str), "this was to be refused"
        assert re.search(refusal, of_worker), of_worker
        assert "\n" not in of_worker


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("program", ALL)
def test_where_servers_step_it_is_followed_or_refused(servers, workers, program, size):
    options = {"sync": Servers("bsp", servers)}
    found = workers.run(served_programs.run, size, training.new_name(), program, options)
    if program in REFUSED:
        check_refused(found, REFUSED[program])
    else:
        check_alike(found, alone(program))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("mode", ["bsp", "bounded:1"])
@pytest.mark.parametrize("program", sorted({*ALL} - {*served_programs.SAVED}))
def test_where_servers_average_it_is_followed(servers, workers, program, mode, size):
    options = {"sync": Servers(mode, servers), "share_parameters": False}
    check_alike(workers.run(served_programs.run, size, training.new_name(), program, options), alone(program))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("compress", [None, "topk:0.5"])
@pytest.mark.parametrize("program", ["with_buffers", "with_a_state_at_the_end"])
def test_in_bounded_all_end_with_the_same(servers, workers, program, compress, size):
    options = {"sync": Servers("bounded:2", servers), "compress": compress}
    check_alike(workers.run(served_programs.run, size, training.new_name(), program, options))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("program", ["complex_sgd", "complex_buffer", "pruned", "new_buffer", "larger_buffer"])
def test_local_steps_over_servers_follow_or_refuse_it(servers, workers, program, size):
    options = {"sync": gradtide.Local(1, over=Servers("bsp", servers))}  # exact, as SGD is linear in gradients
    found = workers.run(served_programs.run, size, training.new_name(), program, options)
    if program == "larger_buffer":
        check_refused(found, "the buffer seen has another shape than when the model was wrapped")
    else:
        check_alike(found, alone(program))


@pytest.mark.parametrize("size", [2, 3])
def test_workers_that_take_the_place_of_killed_ones_wait_until_it_is_free(servers, workers, size):
    killed, name = Ranks(size), training.new_name()
    killed.run(served_programs.run, size, name, "ends_without_a_word", {"sync": Servers("bsp", servers, name="first")})
    for process in killed.processes:
        process.kill()
    options = {"sync": Servers("bsp", servers, name="second")}
    found = workers.run(served_programs.run, size, training.new_name(), "with_buffers", options)
    killed.close()
    check_alike(found, alone("with_buffers"))

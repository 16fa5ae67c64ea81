"""What was left out is sent once, whatever becomes of a step."""

import numpy as np
import pytest

from gradtide.compress import Compress, Form, Residuals, pack

CODEC = Compress("topk", ratio=0.25).make()
FORM = Form(8, np.dtype(np.float64))


def gradient(step):
    return np.random.default_rng(step).integers(-50, 50, 8).astype(float)


def send(residuals, values, rate=None):
    """As a way does for one parameter."""
    residuals.begin()
    return pack(CODEC, residuals.correct("w", values, rate), FORM, 0).tobytes()


def left(residuals):
    return residuals.value("w", np.zeros(8)).copy()


def step(residuals, number):
    payload = send(residuals, gradient(number))
    residuals.end()
    residuals.stepped()
    return payload


def test_the_same_gradient_encoded_again_in_a_synchronisation_gives_the_same_bytes():
    residuals = Residuals()
    step(residuals, 0)
    first = send(residuals, gradient(1))
    after = left(residuals)
    assert send(residuals, gradient(1)) == first
    assert np.array_equal(left(residuals), after)
    residuals.end()
    assert send(residuals, gradient(1)) != first  # another backward of the same step: what was left out counts now


@pytest.mark.parametrize("backwards", [1, 2, 3])
@pytest.mark.parametrize("over", [False, True])
def test_a_step_that_is_undone_leaves_what_was_left_out_as_it_was(backwards, over):
    residuals, other = Residuals(), Residuals()
    for number in range(3):
        step(residuals, number)
        step(other, number)
    for number in range(backwards):
        send(residuals, gradient(10 + number))
        residuals.end()
    if over:
        residuals.stepped()
    residuals.settle(undone=False)  # as was thought at first
    residuals.settle(undone=True)
    assert step(residuals, 7) == step(other, 7)
    assert np.array_equal(left(residuals), left(other))


def test_a_step_that_others_finished_counts_though_this_one_did_not_end_it():
    residuals, other = Residuals(), Residuals()
    step(residuals, 0)
    step(other, 0)
    send(residuals, gradient(1))
    residuals.settle(undone=True)
    residuals.settle(undone=False)
    step(other, 1)
    send(residuals, gradient(2))
    residuals.settle(undone=True)  # the next one, and no more than that
    assert step(residuals, 3) == step(other, 3)


def test_a_parameter_that_had_no_part_in_a_step_is_not_undone_with_it():
    residuals = Residuals()
    step(residuals, 0)
    before = left(residuals)
    residuals.begin()
    residuals.correct("other", gradient(1), None)
    residuals.settle(undone=True)
    residuals.begin()
    assert np.array_equal(left(residuals), before)


def test_what_could_not_be_encoded_leaves_it_alone_and_rates_scale_it():
    residuals = Residuals()
    send(residuals, gradient(0), 0.5)
    residuals.end()
    residuals.stepped()
    before = left(residuals)
    residuals.begin()
    residuals.correct("w", np.full(8, np.nan), 2.0)
    residuals.leave("w")
    assert np.array_equal(left(residuals), before)
    residuals.end()
    residuals.stepped()
    residuals.begin()
    assert np.array_equal(residuals.correct("w", np.zeros(8), 0.25), 2 * before)


def test_what_is_left_to_one_who_stays_is_added_and_a_converted_model_keeps_its_own():
    residuals = Residuals()
    step(residuals, 0)
    before = left(residuals)
    residuals.add("w", np.ones(8), None)
    assert np.array_equal(left(residuals), before + 1)
    assert np.array_equal(residuals.value("w", np.zeros(8, np.float32)), (before + 1).astype(np.float32))

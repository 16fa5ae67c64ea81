"""How long steps take: bubbles to the last digit, bytes to the byte, and who shares a wire with whom."""

from dataclasses import replace

import pytest
from step_shapes import BACKWARD, FORWARD, mixed, pipeline

from gradtide.errors import DeviceError, ScheduleError
from gradtide.schedule.step.build import build_step
from gradtide.schedule.step.predict import simulate_step
from gradtide.schedule.step.proof import verify_step
from gradtide.schedule.step.shape import (
    Crossing,
    ExchangeShape,
    Handling,
    Overheads,
    Seconds,
    SegmentShape,
    StageShape,
    StepShape,
    UnitMemory,
)
from gradtide.topology.model import Link, Node, NodeKind, Topology
from gradtide.topology.presets import preset


def bubble(rows: int, micros: int, order: str, per_row: int = 1) -> float:
    return simulate_step(build_step(pipeline(rows, micros, order, per_row)), None).bubble


def wired(speed: float, latency: float = 0.0, count: int = 2) -> Topology:
    """Devices a, b, c, ... with a link each way between any two."""
    names = "abcdefgh"[:count]
    links = [Link(x, y, speed, latency) for x in names for y in names if x != y]
    return Topology("pairs", tuple(Node(name, NodeKind.DEVICE) for name in names), tuple(links))


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
def test_bubble_of_equal_stages_is_the_textbooks(order):
    for rows in range(2, 9):
        for micros in range(1, 17):
            assert bubble(rows, micros, order) == pytest.approx((rows - 1) / (micros + rows - 1), abs=1e-9)


def test_bubble_of_interleaved_stages_is_smaller_by_their_number():
    for rows in (2, 3, 4):
        for per_row in (1, 2, 3):
            for micros in (rows, 2 * rows, 4 * rows):
                textbook = (rows - 1) / (per_row * micros + rows - 1)
                assert bubble(rows, micros, "interleaved", per_row) == pytest.approx(textbook, abs=1e-9)


def test_zero_bubble_idles_less_than_1f1b_and_keeps_no_more():
    for rows in (2, 3, 5, 8):
        for micros in (1, 2, rows, 2 * rows):
            assert bubble(rows, micros, "zero-bubble") < bubble(rows, micros, "1f1b") - 1e-9
            halves = verify_step(build_step(pipeline(rows, micros, "zero-bubble"))).memory
            whole = verify_step(build_step(pipeline(rows, micros, "1f1b"))).memory
            assert max(m.activations for m in halves) <= max(m.activations for m in whole)


def test_zero_bubble_of_equal_thirds_waits_for_forwards_alone():
    """Where forward, inputs and weights take equally long, a row waits (K - 1) forwards: a third of 1f1b's."""
    third = SegmentShape(forward=Seconds(0, 1), backward=Seconds(0, 2), for_weights=0.5)
    for rows in (2, 4):
        shape = pipeline(rows, 3 * rows, "zero-bubble")
        shape = replace(shape, stages=tuple(replace(stage, segments=(third,)) for stage in shape.stages))
        assert simulate_step(build_step(shape), None).seconds == pytest.approx(9 * rows + rows - 1)


def test_messages_and_exchanges_send_the_bytes_of_the_closed_form():
    plan = build_step(pipeline(3, 4, samples=5))
    sent = [task for task in plan.tasks if task.kind == "message"]
    assert sum(task.bytes for task in sent if not task.back) == 2 * 12 * 20
    assert sum(task.bytes for task in sent if task.back) == 2 * 20 * 20
    assert verify_step(plan).sent_bytes == 2 * (12 + 20) * 20
    topology = wired(1e3, count=3)
    run = simulate_step(build_step(pipeline(3, 4, samples=5), "abc"), topology)
    names = [f"{link.source}{link.target}" for link in topology.links]
    there = dict(zip(names, run.link_bytes.tolist(), strict=True))
    assert there == {"ab": 240, "bc": 240, "ba": 400, "cb": 400, "ac": 0, "ca": 0}
    assert (run.busiest_link, run.busiest_seconds) == ("b->a", pytest.approx(0.4))


def test_copies_send_only_the_rows_that_the_other_side_has():
    """Two copies to three: 6 samples go over 0-1-2|3-4-5 to 0-1|2-3|4-5, each once."""
    segment = SegmentShape(forward=Seconds(0, 1), backward=Seconds(0, 1))
    shape = StepShape(
        (StageShape((0, 1), 1, (segment,)), StageShape((2, 3, 4), 1, (segment,))), (Crossing(0, 1, ("v",), 1, 1),), (6,)
    )
    sent = {(task.devices, task.first, task.last) for task in build_step(shape).tasks if task.kind == "message"}
    there = {((0, 2), 0, 2), ((0, 3), 2, 3), ((1, 3), 3, 4), ((1, 4), 4, 6)}
    assert sent == there | {((target, source), first, last) for (source, target), first, last in there}


def test_a_message_and_its_latency_delay_the_next_stage():
    shape = pipeline(2, 1)
    run = simulate_step(build_step(shape, "ab"), wired(speed=4.0, latency=0.5))
    assert run.seconds == pytest.approx(2 * (FORWARD + BACKWARD) + 12 / 4 + 20 / 4 + 2 * 0.5)
    without = simulate_step(build_step(shape, "ab"), wired(speed=4.0, latency=0.5), latency=False)
    assert run.seconds - without.seconds == pytest.approx(1.0)


def test_what_devices_do_beside_their_layers_takes_their_time():
    """Two stages, one micro-batch of one sample: there, then back, each with a message of 12 and 20 bytes."""
    own = Overheads(task_s=0.1, send=Handling(0.2, 0.01), receive=Handling(0.3, 0.02), update_s=0.4, step_s=0.5)
    plain = pipeline(2, 1)
    shape = replace(plain, overheads=own, stages=tuple(replace(one, gradient_bytes=1) for one in plain.stages))
    run = simulate_step(build_step(shape, "ab"), wired(speed=4.0))
    alone = 2 * (FORWARD + BACKWARD) + 12 / 4 + 20 / 4
    assert run.seconds == pytest.approx(alone + 4 * 0.1 + 2 * (0.2 + 0.3) + 32 * 0.03 + 0.4 + 0.5)
    faster = simulate_step(build_step(replace(shape, speeds=(2.0, 2.0)), "ab"), wired(speed=8.0))
    assert faster.seconds == pytest.approx(run.seconds / 2)


def test_gradients_are_put_together_before_they_are_added_up_and_added_to_those_before():
    own = Overheads(gather=Handling(0.5, 0.01), add_s_per_byte=0.02, exchange=Handling(9.0))
    unit = UnitMemory(0.0, gradient_bytes=100)
    segment = SegmentShape(forward=Seconds(0, 1), backward=Seconds(0, 1), units=(unit,))
    shape = StepShape((StageShape((0, 1), 1, (segment,), gradient_bytes=100),), (), (2, 2, 2), overheads=own)
    run = simulate_step(build_step(shape, "ab"), wired(speed=100.0))
    assert run.seconds == pytest.approx(3 * 2 + 2 * 100 * 0.02 + 0.5 + 100 * 0.01 + 1.0)


def test_messages_meet_sums_on_the_wire():
    """Stage 1's gradients are summed while stage 0 is still at it: the same wire carries both."""
    segment = SegmentShape(forward=Seconds(0, 1), backward=Seconds(0, 1))
    stages = tuple(StageShape((0, 1), 1, (segment,), gradient_bytes=size) for size in (0, 100))
    shape = StepShape(stages, (Crossing(0, 1, ("v",), 1, 1),), (2,))
    plan = build_step(shape, "ab")
    run = simulate_step(plan, wired(speed=100.0))
    (summed,) = (task.id for task in plan.tasks if task.kind == "sum")
    last = max(task.id for task in plan.tasks if task.kind == "backward")
    assert run.start_s[summed] == pytest.approx(3.0)  # two forwards, and the backward of stage 1
    assert run.end_s[summed] == pytest.approx(4.0)
    assert run.end_s[last] == pytest.approx(4.0)  # beside it


def test_an_exchange_keeps_its_shards_from_computing():
    before = (ExchangeShape("gather", "v", 10, 20),)
    segments = (SegmentShape(forward=Seconds(0, 1), backward=Seconds(0, 1)),)
    segments += (SegmentShape(before, Seconds(0, 1), Seconds(0, 1)),)
    plan = build_step(StepShape((StageShape((0, 1), 2, segments),), (), (1,)), "ab")
    run = simulate_step(plan, wired(speed=10.0))
    assert run.seconds == pytest.approx(4 + 1 + 2)
    assert run.idle == (pytest.approx(3 / 7), pytest.approx(3 / 7))


def test_a_slow_device_takes_longer():
    shape = replace(pipeline(2, 1), speeds=(1.0, 0.5))
    assert simulate_step(build_step(shape), None).seconds == pytest.approx(3 * (FORWARD + BACKWARD))


def test_recomputation_takes_a_forward_more_and_keeps_inputs_alone():
    shape = pipeline(1, 3, "gpipe", samples=2)
    again = replace(shape, stages=tuple(replace(stage, recompute=True) for stage in shape.stages))
    plain, frugal = build_step(shape), build_step(again)
    extra = simulate_step(frugal, None).seconds - simulate_step(plain, None).seconds
    assert extra == pytest.approx(6 * FORWARD)
    assert verify_step(plain).memory[0].activations == 6 * 4
    assert verify_step(frugal).memory[0].activations == 6 * 1 + 2 * 4


def test_devices_without_a_link_are_reached_through_others():
    topology = preset("dgx1-v100")
    names = [node.name for node in topology.nodes if node.kind == "device"]
    segment = SegmentShape(forward=Seconds(0, 1e-3), backward=Seconds(0, 1e-3))
    stages = (StageShape((0, 5), 1, (segment,), gradient_bytes=1000), StageShape((1, 2, 3, 4, 6, 7), 1, (segment,)))
    plan = build_step(StepShape(stages, (Crossing(0, 1, ("v",), 1e6, 1e6),), (12,), clip=True), names)
    run = simulate_step(plan, topology)
    assert run.seconds > simulate_step(plan, None).seconds
    assert sum(run.link_bytes) > verify_step(plan).sent_bytes  # some of it goes over two links


def test_memory_is_told_apart_and_held_to_a_budget():
    shape = mixed()
    proof = verify_step(build_step(shape))
    first = proof.memory[0]
    assert (first.gradients, first.buffers) == (30 + 30, 1 * 8 + 1 * 4)  # a sample there, a sample back: from device 2
    assert verify_step(build_step(shape), memory_bytes=max(proof.peak_bytes)) == proof
    with pytest.raises(ScheduleError, match=r"needs \d+ bytes, but has 10"):
        verify_step(build_step(shape), memory_bytes=10)


def test_a_device_that_the_topology_lacks_is_refused():
    with pytest.raises(DeviceError, match="pairs has no device 'z'; its devices are a, b"):
        simulate_step(build_step(pipeline(2, 1), "az"), wired(1.0))

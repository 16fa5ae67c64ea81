import time
from collections import deque

import pytest

from clock import at_most
from gradtide.errors import ScheduleError
from gradtide.schedule import strategies
from gradtide.schedule.model import Op, Schedule
from gradtide.schedule.request import STRATEGIES, Request
from gradtide.schedule.verify import verify
from gradtide.topology.presets import preset
from gradtide.topology.what_if import degraded

pytestmark = pytest.mark.quick

assert strategies.__all__

PAIR = (Op(0, 0, 1, 0, "reduce"), Op(1, 1, 0, 0, "copy", (0,)))


def schedule(*ops: Op, ranks: int = 2, contributors: int | None = None, **other: object) -> Schedule:
    names = tuple(f"gpu{i}" for i in range(ranks))
    fields = {"collective": "all_reduce", "weights": (1,), "owners": ()} | other
    return Schedule("mine", ranks=names, contributors=contributors or ranks, ops=ops, **fields)  # type: ignore[arg-type]


def test_two_ranks_that_reduce_and_copy_back_are_right():
    proof = verify(schedule(*PAIR))
    assert proof.steps == 2
    assert proof.scratch == (0.0, 1.0)  # the reduce arrives in a slot of rank 1
    assert proof.scratch_bytes(100) == (0, 100)


def test_a_helper_needs_room_for_what_it_aggregates():
    ops = (
        Op(0, 0, 2, 0, "copy"),
        Op(1, 1, 2, 0, "reduce", (0,)),
        Op(2, 2, 0, 0, "copy", (1, 0)),
        Op(3, 2, 1, 0, "copy", (1,)),
    )
    assert verify(schedule(*ops, ranks=3, contributors=2)).scratch == (0.0, 0.0, 2.0)


@pytest.mark.parametrize(
    ("ops", "fault"),
    [
        (PAIR[:1], "at the end rank 0 lacks rank 1 in chunk 0, which no op writes"),
        ((PAIR[0], Op(1, 1, 0, 0, "copy")), "op 1 .*touches chunk 0 of rank 1 as op 0 does.*add 0 to its deps"),
        ((PAIR[0], Op(0, 1, 0, 0, "copy", (0,))), "two ops have the id 0"),
        ((PAIR[0], Op(1, 1, 0, 0, "reduce", (0,))), r"op 1 \(reduce of chunk 0 from rank 1 to rank 0\).*rank 0 twice"),
        ((PAIR[0], Op(1, 1, 0, 1, "copy", (0,))), "op 1 .*no such place"),
        ((PAIR[0], Op(1, 1, 2, 0, "copy", (0,))), "op 1 .*no such place"),
        ((PAIR[0], Op(1, 1, 1, 0, "copy", (0,))), "op 1 .*two different ranks"),
        ((PAIR[0], Op(1, 1, 0, 0, "copy", (7,))), "op 1 .*depends on op 7, which does not exist"),
        ((PAIR[1], PAIR[0]), "op 1 .*depends on op 0, which comes later in the list; move op 0 before it"),
        ((Op(0, 0, 1, 0, "reduce", (0,)), PAIR[1]), "op 0 .*circle, 0 -> 0"),
    ],
)
def test_a_wrong_schedule_is_refused_by_op_rank_and_chunk(ops: tuple[Op, ...], fault: str):
    with pytest.raises(ScheduleError, match=fault):
        verify(schedule(*ops))


def test_an_unordered_pair_is_refused_even_if_the_list_happens_to_work():
    reduces = (Op(0, 1, 0, 0, "reduce"), Op(1, 2, 0, 0, "reduce"))
    with pytest.raises(ScheduleError, match=r"op 1 .*chunk 0 of rank 0 as op 0"):
        verify(schedule(*reduces, ranks=3, collective="reduce", owners=(0,)))
    ordered = (reduces[0], Op(1, 2, 0, 0, "reduce", (0,)))
    assert verify(schedule(*ordered, ranks=3, collective="reduce", owners=(0,))).steps == 2


def test_order_through_a_chain_of_deps_counts():
    ops = (Op(0, 0, 1, 0, "reduce"), Op(1, 1, 2, 0, "reduce", (0,)), Op(2, 2, 0, 0, "copy", (1,)))
    last = Op(3, 2, 1, 0, "copy", (2,))  # op 1 wrote what it reads: it waits for it through op 2
    assert verify(schedule(*ops, last, ranks=3)).steps == 4


def test_reading_memory_that_nobody_wrote_is_refused():
    with pytest.raises(ScheduleError, match=r"op 0 .*rank 0 holds nothing yet in chunk 0"):
        verify(schedule(Op(0, 0, 1, 0, "copy"), collective="broadcast", owners=(1,)))
    with pytest.raises(ScheduleError, match=r"op 0 .*rank 2 holds nothing to add to; copy first"):
        verify(schedule(Op(0, 0, 2, 0, "reduce"), ranks=3, contributors=2))


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        ({"weights": ()}, "one chunk or more"),
        ({"weights": (0,)}, "weight 1 or more"),
        ({"owners": (0,)}, "all_reduce has no owners"),
        ({"collective": "reduce"}, "has 1 chunks but 0 owners"),
        ({"collective": "reduce", "owners": (2,)}, "chunk 0 is owned by rank 2"),
        ({"collective": "reduce", "owners": (0, 1), "weights": (1, 1)}, "reduce has one root"),
        ({"contributors": 3}, "1 to 2 contribute"),
    ],
)
def test_a_frame_that_makes_no_sense_is_refused(other: dict[str, object], fault: str):
    with pytest.raises(ScheduleError, match=fault):
        verify(schedule(*PAIR, **other))  # type: ignore[arg-type]


def test_a_ring_of_64_is_verified_in_well_under_a_second():
    ring = STRATEGIES["ring"](Request(preset("ring:64"), tuple(f"gpu{i}" for i in range(64)), 1 << 20))
    assert len(ring.ops) == 8064
    start = time.process_time()  # not what others on this machine take of its time
    assert verify(ring).steps == 126
    assert time.process_time() - start < at_most(1)


def test_fifty_thousand_ops_with_indirect_deps_are_verified_in_seconds():
    """Each op waits for the one before it and nothing else, so every order must be found through the chain."""
    ring = STRATEGIES["ring"](Request(preset("ring:160"), tuple(f"gpu{i}" for i in range(160)), 1 << 20))
    chained = tuple(op._replace(deps=(op.id - 1,) if op.id else ()) for op in ring.ops)
    assert len(chained) == 50_880
    start = time.process_time()
    proof = verify(Schedule(ring.name, ring.collective, ring.ranks, ring.contributors, ring.weights, chained))
    assert proof.steps == 50_880
    assert time.process_time() - start < at_most(10)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_one_slot_a_lane_is_enough_for_every_strategy(name: str):
    """The proof in verify's docstring, run: ranks issue in list order, a lane holds one op that nobody has taken."""
    topology = preset("ethernet-cluster:2x2@25" if name.startswith("hierarchical") else "pcie-4gpu")
    if name == "balanced-rails":
        topology = degraded(preset("rail:2x2x2@100"), "host1.nic0", 0.5)
    devices = tuple(node.name for node in topology.nodes if node.kind == "device")
    plan = STRATEGIES[name](Request(topology, devices, 64_000_000))
    queues: dict[tuple[int, int], deque[Op]] = {}
    for op in plan.ops:
        for rank in (op.src, op.dst):
            queues.setdefault((rank, op.channel), deque()).append(op)
    lanes: dict[tuple[int, int, int], int] = {}
    sent, done = set(), set()
    moved = True
    while moved:
        moved = False
        for (rank, channel), queue in queues.items():
            op = queue[0] if queue else None
            if op is None or not done.issuperset(op.deps):
                continue
            lane = (channel, op.src, op.dst)
            if rank == op.src and lanes.get(lane, -1) == -1:
                lanes[lane] = op.id
                sent.add(op.id)
            elif rank == op.dst and lanes.get(lane, -1) == op.id:
                lanes[lane] = -1
                done.add(op.id)
            else:
                continue
            queue.popleft()
            moved = True
    assert len(done) == len(plan.ops)

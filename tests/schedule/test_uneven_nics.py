"""Clusters in which NICs differ: one is dead, one is slow, or machines are of two generations."""

import pytest

from gradtide.schedule.build.exits import exits_of
from gradtide.schedule.build.rail_streams import RailStream, StreamChoice, choices_of, sliced
from gradtide.schedule.build.rails import RailTree, halved, leaf_trees, least_trees, needed
from gradtide.schedule.classes.sliced import SlicedSchedule
from gradtide.schedule.cuts.crossing import cut_seconds_per_byte
from gradtide.schedule.plan import plan, request_for
from gradtide.schedule.request import STRATEGIES, NotApplicable, Request
from gradtide.schedule.verify import verify
from gradtide.topology.files import topology_named
from gradtide.topology.model import Topology
from gradtide.topology.what_if import altered

SIZE = 100_000_000


def cluster(name: str, missing: str = "", degrade: str = "") -> Topology:
    return altered(topology_named(name), [missing] if missing else [], [degrade] if degrade else [])


def one_stream(request: Request, trees: list[RailTree], slices: int) -> SlicedSchedule:
    choice = StreamChoice((RailStream(tuple(trees)),), by_rail=False)
    return sliced(request, exits_of(request), choice, slices * len(trees))


def test_with_a_dead_nic_strategies_without_a_route_are_left_out_and_the_rest_is_planned() -> None:
    found = plan(cluster("leaf-spine:3x2x2@100/1", missing="host2.nic0"), SIZE)
    assert "without passing through a device" in found.skipped["hierarchical-halving"]
    assert "balanced-rails" in {row.name for row in found.table}
    assert found.best.ratio < 1.5
    assert found.bound_seconds >= SIZE * cut_seconds_per_byte(found.request)
    assert all(row.bandwidth_seconds >= found.bound_seconds * (1 - 1e-9) for row in found.table)


def test_machines_that_differ_are_not_called_alike_where_a_strategy_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gradtide.schedule.candidates.NEEDLESS", 4)  # devices; so many that few are "so many"
    left_out = plan(cluster("rail:3x2x2@100", degrade="host1.nic1=0.5"), SIZE).skipped
    assert left_out["double-tree"] == "with so many devices, in machines of equal size, hierarchical-* takes its place"
    assert not [why for why in left_out.values() if "alike" in why]


def test_a_dead_nics_device_sends_to_its_neighbours_alone() -> None:
    request = request_for(cluster("superpod:3", missing="host2.nic0"), SIZE // 100)
    schedule = STRATEGIES["balanced-rails"](request)
    verify(schedule)
    dead = request.devices.index("host2.gpu0")
    partners = {op.dst for op in schedule.ops if op.src == dead} | {op.src for op in schedule.ops if op.dst == dead}
    assert partners
    assert all(request.devices[rank].startswith("host2.") for rank in partners)


@pytest.mark.parametrize(
    ("name", "degrade"), [("rail:3x2x2@100", "host1.nic1=0.5"), ("mixed:2+1", ""), ("rail:2x4x2@100", "host0.nic0=0.1")]
)
def test_parts_make_a_whole_and_the_schedule_is_proven(name: str, degrade: str) -> None:
    request = request_for(cluster(name, degrade=degrade), SIZE)
    for trees in (leaf_trees(request, exits_of(request)), least_trees(request, exits_of(request))):
        assert sum(tree.part for tree in trees) == pytest.approx(1.0)
    verify(STRATEGIES["balanced-rails"](request))


def test_the_slow_nic_carries_less() -> None:
    request = request_for(cluster("rail:4x2x2@100", degrade="host1.nic1=0.5"), SIZE)
    parts = {0: 0.0, 1: 0.0}
    for tree in least_trees(request, exits_of(request)):
        parts[tree.trunk[0].place] += tree.part
    assert parts[1] < 0.8 * parts[0]


def test_equal_nics_leave_nothing_to_balance() -> None:
    with pytest.raises(NotApplicable, match="nothing to balance"):
        STRATEGIES["balanced-rails"](request_for("superpod:2", SIZE))


def test_children_are_gathered_just_before_their_parent_and_the_deepest_first() -> None:
    places = range(8)
    found = needed(halved(places), 0)
    assert sorted(places, key=found.__getitem__) == [7, 3, 5, 1, 6, 2, 4, 0]


def test_the_root_hears_from_slower_machines_last() -> None:
    request = request_for("mixed:1+3", SIZE // 100)
    machines = exits_of(request)
    schedule = one_stream(request, leaf_trees(request, machines), slices=2).listed()
    into: dict[tuple[int, int], list[str]] = {}
    for op in schedule.ops:
        if op.kind == "reduce":
            into.setdefault((op.dst, op.chunk), []).append(request.devices[op.src].partition(".")[0])
    roots = [sources for (rank, _), sources in into.items() if "host0" in sources and rank >= 8]
    assert len(roots) == len(schedule.weights)
    assert all(sources[-1] == "host0" and sources.count("host0") == 1 for sources in roots)


def test_where_rails_meet_inside_machines_alone_a_neighbour_hands_the_leafs_part_to_the_root() -> None:
    request = request_for(cluster("rail:4x2x2@100", missing="host3.nic0"), SIZE // 100)
    machines = exits_of(request)
    trees = leaf_trees(request, machines)
    assert {tree.trunk[0].place for tree in trees} == {0, 1}, "the dead NIC's rail is used by the others"
    relayed = [tree for tree in trees if tree.leaves[0][1] is not tree.trunk[0]]
    assert {tree.trunk[0].place for tree in relayed} == {0}
    assert all(leaf.place == to.place == 1 for tree in relayed for leaf, to in tree.leaves)
    verify(one_stream(request, trees, slices=2).listed())


def test_the_last_slices_are_smaller() -> None:
    request = request_for("mixed:1+1", SIZE // 5)
    weights = one_stream(request, leaf_trees(request, exits_of(request)), slices=16).weights
    assert weights[0] == 4 * weights[-1]
    assert sorted(set(weights), reverse=True) == list(dict.fromkeys(weights)), "never larger again"


@pytest.mark.parametrize(
    ("name", "degrade"), [("mixed:4+4", ""), ("superpod:4", "host1.nic2=0.5"), ("rail:8x8x4@400", "host3.nic0=0.1")]
)
def test_streams_share_the_buffer_so_that_no_nic_is_busy_for_longer_than_with_any_of_them_alone(
    name: str, degrade: str
) -> None:
    request = request_for(cluster(name, degrade=degrade), SIZE)
    machines = exits_of(request)
    rates = {way.number: way.bytes_per_s for machine in machines for way in machine.exits}

    def busiest(streams: tuple[RailStream, ...]) -> float:
        busy = dict.fromkeys(rates, 0.0)
        for stream, tree in [(each, tree) for each in streams for tree in each.trees]:
            for pair in (*tree.leaves, *(pair for level in halved(tree.trunk) for pair in level)):
                for way in pair:
                    busy[way.number] += stream.share * tree.part / rates[way.number]
        return max(busy.values())

    found = {choice.streams for choice in choices_of(request, machines)}
    assert all(sum(stream.share for stream in streams) == pytest.approx(1.0) for streams in found)
    mixtures = [streams for streams in found if len(streams) > 1]
    alone = min(busiest(streams) for streams in found if len(streams) == 1)
    assert min(busiest(streams) for streams in mixtures) < 0.99 * alone


def test_chunks_of_all_streams_are_about_as_large_and_streams_have_channels_of_their_own() -> None:
    request = request_for("mixed:4+4", SIZE)
    machines = exits_of(request)
    choice = next(choice for choice in choices_of(request, machines) if len(choice.streams) == 2)
    schedule = sliced(request, machines, choice, 4_000)
    first, second = ({op.channel for op in stream.ops} for stream in schedule.streams)
    assert not first & second
    largest = sorted(set(schedule.weights))[-2:]
    assert largest[0] > 0.8 * largest[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixed:2+2", "mixed:2+6", "mixed:4+4", "mixed:6+2"])
def test_two_generations_are_planned_near_the_bound(name: str) -> None:
    assert plan(cluster(name), 10**9).best.ratio < 1.1


@pytest.mark.slow
@pytest.mark.parametrize(("missing", "degrade"), [("host3.nic0", ""), ("", "host3.nic0=0.1"), ("", "host3.nic0=0.5")])
def test_64_devices_with_one_bad_nic_are_planned_near_the_bound(missing: str, degrade: str) -> None:
    found = plan(cluster("superpod:8", missing, degrade), 10**9)
    assert found.best.name == "balanced-rails"
    assert found.best.ratio < 1.1

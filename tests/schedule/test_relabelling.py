"""The relabelling that turning a cluster is: an automorphism of wiring, routes and schedule, or it is noticed."""

from dataclasses import replace

import numpy as np
import pytest
from test_classes import composed, halving

from gradtide.errors import ScheduleError
from gradtide.schedule.classes.folded import fold
from gradtide.schedule.classes.generated import GeneratedSchedule
from gradtide.schedule.classes.grids import grid_of
from gradtide.schedule.classes.pair_routes import PairRoutes
from gradtide.schedule.classes.proof import check_turned, prove, replay
from gradtide.schedule.classes.relabelling import check_ops, difference, relabelled, units, why_not_alike
from gradtide.schedule.classes.turns import Turns
from gradtide.schedule.plan import request_for
from gradtide.topology.model import Topology
from gradtide.topology.presets import preset

ALIKE = ("ethernet-cluster:3x4@100", "rail:4x2x2@200", "fat-tree:4@100", "torus:3x4", "superpod:2", "superpod:64")


def routes_of(topology: Topology | str) -> tuple[PairRoutes, list[int]]:
    """The routes of a cluster's halving (of a torus' rings), and the distances that it sends over."""
    request = request_for(topology, 1_000_000)
    grid = grid_of(request)
    schedule = composed(request, "hierarchical-rings" if grid.torus else "hierarchical-halving", 1)
    ends = np.array([(op.src, op.dst) for op in schedule.seed.ops])
    return grid.routes, np.unique(grid.turns.subtract(ends[:, 1], ends[:, 0])).tolist()


@pytest.mark.parametrize("name", ALIKE)
def test_turning_a_cluster_whose_machines_are_alike_is_an_automorphism_of_its_wiring(name: str):
    routes, distances = routes_of(name)
    assert why_not_alike(routes, distances) == ""
    assert fold(routes, distances).exact


def test_gpus_that_share_nics_in_pairs_are_not_alike_when_turned_by_one_but_their_links_are():
    routes, distances = routes_of("rail:4x4x2@200")
    assert "does not come to a route" in why_not_alike(routes, distances)
    machines = relabelled(routes, distances, 4)
    assert difference(routes, distances, machines) == ""
    assert fold(routes, distances).exact


@pytest.mark.parametrize("name", ["ethernet-cluster:3x4@100", "superpod:2", "fat-tree:4@100"])
def test_a_permutation_with_any_two_things_exchanged_is_noticed(name: str):
    routes, distances = routes_of(name)
    chance = np.random.default_rng(1)
    for turn in units(routes.turns):
        right = relabelled(routes, distances, turn)
        for what in ("ranks", "links", "nodes"):
            image = getattr(right, what)
            used = np.flatnonzero(image >= 0)
            for _ in range(20):
                wrong, (a, b) = image.copy(), chance.choice(used, 2, replace=False)
                wrong[a], wrong[b] = wrong[b], wrong[a]
                assert difference(routes, distances, replace(right, **{what: wrong}))
                wrong[a] = wrong[b]
                assert "come to one place" in difference(routes, distances, replace(right, **{what: wrong}))


def changed(topology: Topology, at: int, **changes: float | str) -> Topology:
    links = topology.links
    return replace(topology, links=(*links[:at], replace(links[at], **changes), *links[at + 1 :]))


@pytest.mark.parametrize("name", ["ethernet-cluster:3x2@100", "rail:3x2x2@200", "torus:3x3"])
def test_one_link_that_is_slower_farther_or_on_a_wire_of_its_own_makes_a_class_that_is_none(name: str):
    topology = preset(name)
    routes, distances = routes_of(topology)
    for at in np.flatnonzero(relabelled(routes, distances, 1).links[: len(topology.links)] >= 0).tolist():
        link = topology.links[at]
        slower = changed(topology, at, bytes_per_s=link.bytes_per_s * 0.999)
        farther = changed(topology, at, latency_s=link.latency_s * 1.001)
        shared = changed(topology, at, wire="a wire of its own")
        for other in (slower, farther, *([] if grid_of(request_for(topology, 1)).torus else [shared])):
            found = routes_of(other)
            assert why_not_alike(*found), f"{link} has changed"
            assert other.links[at].wire != link.wire or not fold(*found).exact


def test_racks_turned_as_if_they_were_one_row_of_machines_are_no_class():
    request = request_for("superpod:64", 1_000_000)
    grid = grid_of(request)
    row = PairRoutes(request.topology, request.routes, grid.ranks, Turns((64, 8)))
    assert why_not_alike(row, [8])
    assert not fold(row, [8]).exact


def test_a_permutation_of_ranks_that_is_no_turn_is_refused():
    schedule, everyone = halving((32, 8)), np.arange(256)
    for turn in (1, 8, 77):
        check_ops(schedule, schedule.turns.add(everyone, turn), everyone)
    swapped = schedule.turns.add(everyone, 8)
    swapped[[200, 201]] = swapped[[201, 200]]
    for wrong in (everyone[::-1], np.roll(everyone, 1), np.random.default_rng(2).permutation(256), swapped):
        with pytest.raises(ScheduleError, match="not alike"):
            check_ops(schedule, wrong, everyone)
    with pytest.raises(ScheduleError, match="one place"):
        check_ops(schedule, np.where(everyone == 9, 10, everyone), everyone)


def turned_wrong(one: int, other: int, *, both: bool) -> Turns:
    """Turned by 3, two ranks exchange their places, or one takes the other's."""

    class TurnedWrong(Turns):
        def _each(self, a, b, sign):
            there = super()._each(a, b, sign)
            wrong = np.where(there == one, other, np.where((there == other) & both, one, there))
            return np.where(np.asarray(b) == 3, wrong, there)

    return TurnedWrong((32, 8))


class TurnedOtherwise(GeneratedSchedule):
    """Tells one rank something else than all others."""

    def _ops(self, ats, owners):
        for op in super()._ops(ats, owners):
            yield op._replace(channel=9) if op.id == 2 * self.turns.count + 3 else op


def test_a_turn_that_is_none_is_noticed_among_256_ranks():
    right = halving((32, 8))
    prove(right)
    with pytest.raises(ScheduleError, match="not alike"):
        prove(GeneratedSchedule(right.seed, turned_wrong(5, 6, both=True)))
    with pytest.raises(ScheduleError, match="two ranks in one place"):
        prove(GeneratedSchedule(right.seed, turned_wrong(5, 6, both=False)))
    with pytest.raises(ScheduleError, match="two ranks in one place"):
        replay(GeneratedSchedule(right.seed, turned_wrong(5, 6, both=False)), np.arange(256))
    with pytest.raises(ScheduleError, match="don't fill a grid"):
        prove(GeneratedSchedule(right.seed, Turns((32, 9))))


def test_a_rank_that_is_told_something_else_than_the_others_is_noticed():
    small = halving((4, 2))
    with pytest.raises(ScheduleError, match="not alike"):
        prove(TurnedOtherwise(small.seed, small.turns))
    large = halving((32, 8))
    with pytest.raises(ScheduleError, match="not alike"):
        check_turned(TurnedOtherwise(large.seed, large.turns), np.array([large.op(2, 3).src]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["superpod:128", "fat-tree:16@100", "torus:16x8x8", "leaf-spine:128x8x8@100/4"])
def test_turning_a_thousand_devices_is_an_automorphism_and_any_slow_link_is_found(name: str):
    topology = preset(name)
    routes, distances = routes_of(topology)
    assert why_not_alike(routes, distances) == ""
    used = np.flatnonzero(relabelled(routes, distances, 1).links[: len(topology.links)] >= 0)
    for at in np.random.default_rng(4).choice(used, 3, replace=False).tolist():
        found = routes_of(changed(topology, at, bytes_per_s=topology.links[at].bytes_per_s * 0.9))
        assert why_not_alike(*found)  # a slower spine also changes who is routed over it


@pytest.mark.slow
def test_every_turn_of_256_ranks_is_checked_and_every_exchange_of_two_ranks_in_one_is_caught():
    schedule, everyone = halving((32, 8)), np.arange(256)
    for turn in range(256):
        check_ops(schedule, schedule.turns.add(everyone, turn), everyone)
    check_turned(schedule, everyone)
    chance = np.random.default_rng(5)
    for _ in range(100):
        one, other = chance.choice(256, 2, replace=False).tolist()
        with pytest.raises(ScheduleError):
            prove(GeneratedSchedule(schedule.seed, turned_wrong(one, other, both=True)))

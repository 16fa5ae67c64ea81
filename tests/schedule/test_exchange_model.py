"""Predictions of collectives between hosts: how much moves is what the layouts say, how long is what was measured."""

import pytest

from gradtide.collective.host.extents import Adding
from gradtide.collective.links import row_stages, stages
from gradtide.collective.links.parts import Exchange
from gradtide.collective.links.place import RankPlace
from gradtide.errors import ConfigError
from gradtide.schedule.predict.exchange_model import ExchangeModel, busiest_bytes

PLACES = [(1, 1), (2, 2), (1, 1, 1), (2, 1, 1), (1, 3), (1,) * 7]
OPERATIONS = ["all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter"]
SIZE_BYTES = 64 * 84 * 1000
pytestmark = pytest.mark.quick


def planned(operation, place):
    row, adding = SIZE_BYTES // sum(place.counts), Adding(1, 1, 4)
    return {
        "all_reduce": lambda: stages.all_reduce(place, SIZE_BYTES, adding, adding),
        "broadcast": lambda: stages.broadcast(place, SIZE_BYTES, (0, 0)),
        "reduce": lambda: stages.reduce(place, SIZE_BYTES, (0, 0), adding, adding),
        "all_gather": lambda: row_stages.all_gather(place, row),
        "reduce_scatter": lambda: row_stages.reduce_scatter(place, row, adding, adding),
        "gather": lambda: row_stages.gather(place, row, (0, 0)),
        "scatter": lambda: row_stages.scatter(place, row, (0, 0)),
    }[operation]()


@pytest.mark.parametrize("ranks", PLACES, ids=str)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_busiest_host_moves_what_the_stages_between_hosts_say(operation, ranks):
    if operation in ("gather", "scatter") and len(set(ranks)) > 1:
        pytest.skip("goes as all_gather and broadcast do")
    moved = []
    for host, here in enumerate(ranks):
        made = [planned(operation, RankPlace(host, local, ranks)) for local in range(here)]
        parts = [part for one in made for stage in one if isinstance(stage, Exchange) for part in stage.parts]
        moved.append(sum(part.first.size_bytes + part.second_bytes for part in parts))
        moved.append(sum(part.arriving.size_bytes + part.result.size_bytes for part in parts))
    assert busiest_bytes(operation, ranks, SIZE_BYTES) == pytest.approx(max(moved), rel=1e-3)


def test_of_an_all_to_all_every_row_for_another_host_leaves_its_host_once():
    assert busiest_bytes("all_to_all", (2, 2), 4000) == 2 * 2 * 1000
    assert busiest_bytes("all_to_all", (1, 3), 4000) == 3 * 1 * 1000


def test_between_measured_sizes_a_line_counts_and_it_goes_on_beyond_them():
    model = ExchangeModel((1, 1), ((64, 1e-5), (4096, 3e-5), (1 << 20, 1e-2), (1 << 22, 4e-2)))
    assert model.seconds("all_reduce", 0) == model.seconds("all_reduce", 64) == 1e-5
    assert model.seconds("all_reduce", 1 << 20) == pytest.approx(1e-2)
    assert model.seconds("all_reduce", 5 << 19) == pytest.approx(2.5e-2)
    assert model.seconds("all_reduce", 1 << 24) == pytest.approx(16e-2, rel=1e-3)
    assert model.bytes_per_s == pytest.approx((1 << 22) / 4e-2, rel=1e-3)
    assert model.seconds("all_gather", 1 << 21) == pytest.approx(1e-2)  # each host sends half
    assert model.seconds("gather", 64) == 1e-5
    with pytest.raises(ConfigError, match="no prediction for 'sort'"):
        model.seconds("sort", 64)


def test_one_size_that_was_held_up_does_not_change_the_rate():
    held_up = ExchangeModel((1, 1), ((64, 1e-4), (4096, 4e-4), (65_536, 9.9e-3), (262_144, 22e-3)))
    assert held_up.bytes_per_s == pytest.approx(12e6, rel=0.02)


def test_other_operations_are_corrected_by_what_they_took():
    model = ExchangeModel((1, 1), ((64, 1e-5), (4096, 5e-5), (1 << 20, 1e-2), (1 << 22, 4e-2)), flows=4)
    found = [("broadcast", 4096, 1e-4), ("all_gather", 4096, 9e-5)]
    small = model.corrected(found)
    assert small.flows == 4
    assert small.seconds("all_reduce", 4096) == pytest.approx(5e-5)
    assert small.seconds("broadcast", 4096) == small.seconds("reduce", 4096) == pytest.approx(1e-4)
    assert small.seconds("broadcast", 1 << 20) == pytest.approx(1e-2)  # it may be what each takes besides
    both = model.corrected([*found, ("broadcast", 1 << 20, 5e-3)])
    assert both.seconds("broadcast", 1 << 22) == pytest.approx(2e-2)
    assert both.seconds("broadcast", 1 << 16) / both.seconds("all_reduce", 1 << 16) == pytest.approx(1.25)
    assert both.seconds("all_to_all", 1 << 22) == model.seconds("all_to_all", 1 << 22)


def test_what_was_measured_while_a_burst_passed_takes_what_the_wire_takes_in_the_long_run():
    model = ExchangeModel((1, 1), ((64, 1e-5), (4096, 1.1e-5), (1 << 20, 1e-2), (1 << 22, 4e-2)))
    assert model.seconds("all_reduce", 4096) == pytest.approx(4096 * 1e-2 / (1 << 20), rel=0.02)
    assert model.seconds("all_reduce", 64) == 1e-5

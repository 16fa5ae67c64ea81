"""Predictions of collectives between hosts: how much moves is what the layouts say, how long is what was measured."""

import pytest

from gradtide.collective.links import operations
from gradtide.collective.links.parts import Adding, Base, Extent
from gradtide.errors import ConfigError
from gradtide.schedule.predict.exchange_model import ExchangeModel, busiest_bytes

PLACES = [(1, 1), (2, 2), (1, 1, 1), (2, 1, 1), (1, 3), (1,) * 7]
pytestmark = pytest.mark.quick


def cut(ranks, row_bytes, base=Base.TENSOR):
    return [Extent(base, sum(ranks[:host]) * row_bytes, here * row_bytes) for host, here in enumerate(ranks)]


def layout(operation, ranks, me, size_bytes):
    hosts, row = len(ranks), size_bytes // sum(ranks)
    rows = cut(ranks, row)
    return {
        "all_reduce": lambda: operations.all_reduce(me, hosts, size_bytes, 4, Adding(1, 1, 4)),
        "broadcast": lambda: operations.broadcast(me, hosts, 0, size_bytes),
        "all_gather": lambda: operations.all_gather(me, rows[me], rows),
        "reduce_scatter": lambda: operations.reduce_scatter(me, rows, rows[me], Adding(1, 1, 4)),
        "all_to_all": lambda: operations.all_to_all(
            me, cut(ranks, row * ranks[me]), cut(ranks, row * ranks[me], Base.OUT)
        ),
    }[operation]()


@pytest.mark.parametrize("ranks", PLACES, ids=str)
@pytest.mark.parametrize("operation", ["all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("size_bytes", [64 * 84, 64 * 84 * 1000])
def test_the_busiest_host_moves_what_the_layouts_of_the_links_say(operation, ranks, size_bytes):
    moved = []
    for me in range(len(ranks)):
        parts = layout(operation, ranks, me, size_bytes).parts
        moved.append(sum(part.first.size_bytes + part.second_bytes for part in parts))
        moved.append(sum(part.arriving.size_bytes + part.result.size_bytes for part in parts))
    assert busiest_bytes(operation, ranks, size_bytes) == pytest.approx(max(moved), rel=1e-3)


def test_between_measured_sizes_a_line_counts_and_it_goes_on_beyond_them():
    model = ExchangeModel((1, 1), ((64, 1e-5), (4096, 3e-5), (1 << 20, 1e-2), (1 << 22, 4e-2)), call_s=1e-4)
    assert model.seconds("all_reduce", 0) == model.seconds("all_reduce", 64) == 1e-5
    assert model.seconds("all_reduce", 1 << 20) == pytest.approx(1e-2)
    assert model.seconds("all_reduce", 5 << 19) == pytest.approx(2.5e-2)
    assert model.seconds("all_reduce", 1 << 24) == pytest.approx(16e-2, rel=1e-3)
    assert model.bytes_per_s == pytest.approx((1 << 22) / 4e-2, rel=1e-3)
    assert model.seconds("all_gather", 1 << 21) == pytest.approx(1e-2)  # each host sends half
    assert model.seconds("gather", 64) == 1e-4
    with pytest.raises(ConfigError, match="no prediction for 'sort'"):
        model.seconds("sort", 64)


def test_one_size_that_was_held_up_does_not_change_the_rate():
    held_up = ExchangeModel((1, 1), ((64, 1e-4), (4096, 4e-4), (65_536, 9.9e-3), (262_144, 22e-3)))
    assert held_up.bytes_per_s == pytest.approx(12e6, rel=0.02)

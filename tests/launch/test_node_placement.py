import pytest

from gradtide.errors import ConfigError
from gradtide.launch.nodes.placement import NodeRoom, place_workers, room_on, slots_of

pytestmark = pytest.mark.quick


def test_neighbours_by_rank_are_neighbours_by_node():
    rooms = [NodeRoom("a", 2), NodeRoom("b", 3), NodeRoom("c", 2)]
    assert place_workers(6, rooms) == ["a", "a", "b", "b", "b", "c"]


def test_a_cluster_that_is_too_small_is_told_what_it_has():
    with pytest.raises(ConfigError, match=r"4 workers need 4 slots, and there are 3 \(a 2, b 1\)"):
        place_workers(4, [NodeRoom("a", 2), NodeRoom("b", 1)])


def test_one_more_worker_goes_where_there_is_most_room():
    rooms = [NodeRoom("a", 2), NodeRoom("b", 4)]
    assert room_on(rooms, {"a": 1}) == "b"
    assert room_on(rooms, {"a": 1, "b": 3}) == "a"
    assert room_on(rooms, {"a": 2, "b": 4}) is None
    assert room_on([], {}) is None


def test_a_node_takes_what_it_offers_and_never_more_than_the_job_lets_it():
    assert slots_of(0, None, workers=8, nodes=3) == 3
    assert slots_of(0, 2, workers=8, nodes=3) == 2
    assert slots_of(4, 2, workers=8, nodes=3) == 2
    assert slots_of(1, 2, workers=8, nodes=3) == 1
    assert slots_of(5, None, workers=8, nodes=3) == 5

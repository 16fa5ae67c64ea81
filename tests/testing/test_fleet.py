"""Jobs on many nodes, on a virtual clock: nodes die, stand still, are cut off alone or together; messages are late."""

import pytest

from gradtide.testing.fleet.simulation import simulate_fleet
from gradtide.testing.fleet.trouble import Mishap, Scene, scene_of


def deaf(world, head):
    """Workers go on when their lease is over."""
    world.heed_lease = False


def hasty(world, head):
    """The head gives a worker's place away before its lease is over."""
    head.lines.may_live_until_s = lambda rank: 0.0


class Anything(dict):
    """Equal to every incarnation."""

    def get(self, key, default=None):
        return self

    def __ne__(self, other):
        return False


def gullible(world, head):
    """The registrar listens to workers of an earlier incarnation."""
    known = head.lines
    known._incarnations = Anything()
    known.began = lambda rank, incarnation: (
        known._dead.discard(rank),
        known._condemned.discard(rank),
        known._lines.pop(rank, None),
    )


def check(seeds, **sizes):
    runs = [simulate_fleet(scene_of(seed, **sizes)) for seed in seeds]
    assert {run.scene.seed: run.violation for run in runs if run.violation} == {}
    return runs


def test_jobs_on_16_nodes_keep_their_promises():
    runs = check([2, 3, 49, 55, 583])
    assert max(run.scene.workers for run in runs) == 64
    assert sum(run.generations for run in runs) > 8


@pytest.mark.parametrize("needed", [1, 2])
def test_who_dies_at_the_end_and_is_started_again_before_it_is_heard_of_does_not_train_alone(needed):
    dies = Mishap(10.55003, "kill worker", (0,))  # 0.1 ms before the other has finished the last step
    scene = Scene(0, nodes=2, workers=2, slots=1, needed=needed, max_restarts=4, steps=40, mishaps=(dies,))
    run = simulate_fleet(scene)
    assert run.violation == ""
    assert "worker 0 is started again" in "".join(run.log)
    assert run.finished == (needed == 1)


@pytest.mark.slow
def test_a_thousand_jobs_on_16_nodes_keep_their_promises():
    runs = check(range(1000))
    assert sum(run.finished for run in runs) > 800


@pytest.mark.parametrize(("change", "seed"), [(deaf, 49), (hasty, 49), (gullible, 228)])
def test_what_is_put_in_on_purpose_is_noticed(change, seed):
    assert "had stepped" in simulate_fleet(scene_of(seed), change).violation
    assert simulate_fleet(scene_of(seed)).violation == ""

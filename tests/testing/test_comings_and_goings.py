"""Simulated stores that grow and shrink lose nothing; and the checker can tell when moving is done wrongly."""

from collections.abc import Callable
from typing import Any

import pytest

from gradtide.store.shard import image, replication
from gradtide.testing.elastic import elastic_scenario_of, main, run_elastic_seed, run_elastic_seeds

SEEDS = 40


def test_seeds_of_servers_and_workers_that_come_and_go_keep_every_promise() -> None:
    failed = run_elastic_seeds(0, SEEDS)
    assert failed is None, f"replay: python -m gradtide.testing.elastic --seed {failed.scenario.seed}"


@pytest.mark.slow
def test_a_thousand_seeds_of_comings_and_goings_keep_every_promise() -> None:
    failed = run_elastic_seeds(SEEDS, 1000)
    assert failed is None, f"replay: python -m gradtide.testing.elastic --seed {failed.scenario.seed}"


def test_the_seeds_reach_every_kind_of_coming_and_going() -> None:
    outcomes = [run_elastic_seed(seed) for seed in range(12)]
    happened = [fault.kind for outcome in outcomes for fault in outcome.happened]
    assert happened.count("join") > 5
    assert happened.count("leave") > 5
    assert {"kill", "stop"} <= set(happened)
    scenarios = [elastic_scenario_of(seed) for seed in range(60)]
    assert {scenario.replicas for scenario in scenarios} == {0, 1, 2}
    assert any(comer.goes_after and not comer.says_goodbye for scenario in scenarios for comer in scenario.comers)
    joined = [first for outcome in outcomes for first in outcome.history.joined.values()]
    assert max(joined) > 1, "a worker joined when rounds had begun"
    moved = [outcome for outcome in outcomes if len({t.owners for t in outcome.history.tables.values()}) > 2]
    assert len(moved) > 5, "shards went to other primaries"


def test_one_seed_is_replayed_by_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3"]) == 0
    assert "Fault(kind='join'" in capsys.readouterr().out


# --- breaking the code on purpose ---


def move_without_the_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    restore = image.restore

    def forgetful(*arguments: Any) -> Any:
        shard = restore(*arguments)
        shard.filter.records.clear()
        return shard

    monkeypatch.setattr(replication, "restore", forgetful)


def move_before_it_has_caught_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradtide.store.shard.log.Log.is_close", lambda *_: True)
    monkeypatch.setattr("gradtide.store.shard.log.Log.has_caught_up", lambda *_: True)


def believe_an_old_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that begins when a shard moves says that nothing happened before."""
    monkeypatch.setattr(
        replication.Replication,
        "_begin_log",
        lambda self, shard: replication.Log(self.epoch, shard.position, self.arithmetic),
    )


@pytest.mark.parametrize(
    "mutation",
    [move_without_the_filter, move_before_it_has_caught_up, believe_an_old_copy],
    ids=lambda value: value.__name__,
)
def test_the_checker_sees_what_was_broken_in_moving_on_purpose(
    monkeypatch: pytest.MonkeyPatch, mutation: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mutation(monkeypatch)
    assert any(is_broken(seed) for seed in range(100))


def is_broken(seed: int) -> bool:
    try:
        return bool(run_elastic_seed(seed).violations)
    except KeyError:  # a replica is told to update what it does not have
        return True

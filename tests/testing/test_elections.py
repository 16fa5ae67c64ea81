"""Several coordinators on one register, in the simulator."""

from functools import partial

import pytest

from gradtide.store.coordinator.election import leadership
from gradtide.store.coordinator.election.leadership import Leadership
from gradtide.testing.elections import main, run_election_seed, run_election_seeds


def test_a_dozen_seeds_of_several_coordinators_keep_every_promise() -> None:
    assert run_election_seeds(0, 12) is None


@pytest.mark.slow
def test_five_thousand_seeds_of_several_coordinators_keep_every_promise() -> None:
    assert run_election_seeds(0, 5000) is None


def test_the_same_seed_gives_the_same_history_with_several_coordinators() -> None:
    assert run_election_seed(4).digest == run_election_seed(4).digest


def _too_soon(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(leadership, "TAKE_OVER_S", 0.4)


def _without_a_proof(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(Leadership, "leads", lambda self, now_s: self.seat is not None)


def _without_waiting(patched: pytest.MonkeyPatch) -> None:
    hear = Leadership.hear
    patched.setattr(Leadership, "hear", lambda self, word, now_s: None if hear(self, word, now_s) is None else 0.0)


@pytest.mark.parametrize(("mutate", "seed"), [(_too_soon, 6), (_without_a_proof, 2), (_without_waiting, 12)])
def test_two_leaders_at_once_are_caught(mutate, seed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not run_election_seed(seed).violations
    mutate(monkeypatch)
    assert "one leader" in {violation.promise for violation in run_election_seed(seed).violations}


def test_a_register_that_does_not_compare_who_leads_is_caught() -> None:
    run = partial(run_election_seed, 21)
    assert not run().violations
    assert run(fenced=False).violations


def test_a_seed_is_replayed_by_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3"]) == 0
    assert "history" in capsys.readouterr().out

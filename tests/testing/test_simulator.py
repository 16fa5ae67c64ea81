"""The store's machines keep their promises on a bad network, and the checker can tell when they don't."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gradtide.store.client import session
from gradtide.store.shard import filter as filters
from gradtide.store.shard import rounds, shard
from gradtide.store.wire.messages import Decree, Noted, Pushed
from gradtide.testing.simulate import Outcome, Scenario, main, run_scenario, run_seed, run_seeds, scenario_of
from gradtide.testing.simulator.network import Faults

SEEDS = 400


@pytest.mark.quick
def test_hundreds_of_seeds_keep_every_promise() -> None:
    failed = run_seeds(0, SEEDS)
    assert failed is None, f"replay: python -m gradtide.testing.simulate --seed {failed.scenario.seed}"


@pytest.mark.slow
def test_twenty_thousand_seeds_keep_every_promise() -> None:
    failed = run_seeds(SEEDS, 20_000)
    assert failed is None, f"replay: python -m gradtide.testing.simulate --seed {failed.scenario.seed}"


@pytest.mark.quick
def test_the_same_seed_gives_the_same_history() -> None:
    assert [run_seed(seed).digest for seed in range(40)] == [run_seed(seed).digest for seed in range(40)]
    assert len({run_seed(seed).digest for seed in range(40)}) == 40


def test_the_seeds_reach_every_kind_of_trouble() -> None:
    outcomes = [run_seed(seed) for seed in range(120)]
    drawn = [outcome.scenario for outcome in outcomes]
    assert {scenario.delay for scenario in drawn} == {0, 1, 4}
    assert {scenario.goer for scenario in drawn} == {"", "leaves", "dies"}
    assert any(scenario.newcomer for scenario in drawn)
    assert any(outcome.history.left for outcome in outcomes)
    assert any(o.staleness for outcome in outcomes for o in outcome.history.operations)
    late = [max(outcome.history.joined.values(), default=0) for outcome in outcomes]
    assert max(late) > 1, "somebody joined when rounds had begun"


def test_a_failing_seed_is_replayed_by_one_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--seed", "3"]) == 0
    assert "history" in capsys.readouterr().out
    forget_the_filter(monkeypatch)
    assert main(["--seeds", "200"]) == 1
    replay = capsys.readouterr().out.splitlines()[-1]
    seed = replay.rsplit(maxsplit=1)[1]
    assert replay == f"replay: python -m gradtide.testing.simulate --seed {seed}"
    assert main(["--seed", seed]) == 1
    assert f"seed {seed} broke" in capsys.readouterr().out


# --- breaking the code on purpose ---


def forget_the_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters.Filter, "judge", lambda *_: "new")


def forget_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "ANSWERS_KEPT", 0)
    monkeypatch.setattr(filters.Filter, "judge", judge_without_highest(filters.Filter.judge))


def judge_without_highest(judge: Callable[..., str]) -> Callable[..., str]:
    return lambda *arguments: "new" if judge(*arguments) == "forgotten" else judge(*arguments)


def acknowledge_on_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    push = shard.Shard._push

    def hasty(self: Any, event: Any) -> Any:
        return [
            replace(a, message=Pushed(a.message.sequence, a.message.shard, self.version, event.request.round))
            if isinstance(a.message, Noted) and not event.request.pull
            else a
            for a in push(self, event)
        ]

    monkeypatch.setattr(shard.Shard, "_push", hasty)


def add_in_order_of_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsorted(items: Any, key: Any = None) -> Sequence[Any]:
        return list(items)

    monkeypatch.setattr(rounds, "sorted", unsorted, raising=False)


def gate_one_round_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = rounds.Block.may_start
    monkeypatch.setattr(rounds.Block, "may_start", lambda self, step: allowed(self, step - 1))


def admit_pushes_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.Session, "_after", lambda *_: ())
    judge = filters.Filter.judge
    monkeypatch.setattr(filters.Filter, "judge", judge_without_highest(judge))


def resend_under_a_new_number(monkeypatch: pytest.MonkeyPatch) -> None:
    request = session.Session._request

    def renumbered(self: Any, operation: Any, flight: Any, *rest: Any) -> Any:
        message = request(self, operation, flight, *rest)
        again = flight.tries > 1 and operation.kind == "push" and not operation.round
        return shift(message) if again else message

    def shift(message: Any) -> Any:
        from msgspec.structs import replace as change

        return change(message, sequence=message.sequence + 1_000_000)

    monkeypatch.setattr(session.Session, "_request", renumbered)


def close_without_waiting_for_the_decree(monkeypatch: pytest.MonkeyPatch) -> None:
    def promise(self: Any, proposal: Any) -> int:
        return 1

    monkeypatch.setattr(shard.Shard, "promise", promise)


def forget_who_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    take = shard.Shard._take_decree
    monkeypatch.setattr(
        shard.Shard, "_take_decree", lambda self, d: take(self, Decree(d.term, d.number, d.members[:1]))
    )


@pytest.mark.parametrize(
    ("mutation", "promises"),
    [
        (forget_the_filter, {"exactly once", "order"}),
        (forget_the_answers, {"exactly once", "order"}),
        (acknowledge_on_receipt, {"ack"}),
        (add_in_order_of_arrival, {"deterministic rounds", "bound"}),
        (gate_one_round_too_early, {"bound"}),
        (admit_pushes_out_of_order, {"order", "reads own writes", "exactly once"}),
        (resend_under_a_new_number, {"exactly once", "progress", "order"}),
        (close_without_waiting_for_the_decree, {"exactly once", "progress", "ack", "bound"}),
        (forget_who_joined, {"exactly once", "ack", "progress"}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_the_checker_sees_what_was_broken_on_purpose(
    monkeypatch: pytest.MonkeyPatch, mutation: Callable[[pytest.MonkeyPatch], None], promises: set[str]
) -> None:
    mutation(monkeypatch)
    failed = run_seeds(0, 300)
    assert failed is not None
    assert {violation.promise for violation in failed.violations} & promises


# --- bounded delay ---

CALM = Faults(mean_delay_s=0.004)


def bounded(delay: int, seed: int, rounds_: int) -> Scenario:
    return replace(
        scenario_of(0), seed=seed, script_seed=5, servers=2, workers=4, clients=0, delay=delay, rounds=rounds_,
        faults=replace(CALM, drop=0.02, duplicate=0.05, heals_s=1e9), slow_s=0.05, newcomer=False, goer="",
        configures=False, credit_bytes=64 << 20,
    )  # fmt: skip


def test_no_step_starts_before_its_round_allows_in_a_hundred_thousand_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "REMEMBERED_ROUNDS", 1000)  # the checker wants to see them all
    events, staleness = 0, {}
    for delay in (0, 1, 4, 16):
        outcome = run_scenario(bounded(delay, seed=delay, rounds_=280))
        assert outcome.violations == ()
        events += outcome.events
        staleness[delay] = max(o.staleness for o in outcome.history.operations if o.kind == "pull")
    assert staleness[0] == 0
    assert staleness[1] == 1
    assert 1 < staleness[4] <= 4 < staleness[16] <= 16
    assert events > 100_000


def test_bsp_gives_the_same_bits_whatever_the_arrival_order() -> None:
    outcomes = [run_scenario(bounded(0, seed, rounds_=5)) for seed in range(8)]
    assert len({final_values(outcome) for outcome in outcomes}) == 1
    assert len({outcome.digest for outcome in outcomes}) == 8


def test_bounded_delay_ends_with_the_bits_of_bsp_when_pushes_do_not_depend_on_pulls() -> None:
    assert len({final_values(run_scenario(bounded(delay, 3, rounds_=5))) for delay in (0, 1, 4, 16)}) == 1


def final_values(outcome: Outcome) -> tuple[tuple[object, int], ...]:
    return tuple((place, final.value) for place, final in sorted(outcome.history.finals.items()))

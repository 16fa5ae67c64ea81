"""Simulated stores on several machines keep their promises whatever happens there; and the checker can tell."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gradtide.errors import StoreError
from gradtide.store.client.session import Session
from gradtide.store.coordinator.clerk import Clerk
from gradtide.store.coordinator.membership import Membership
from gradtide.store.shard.cut import Cut, Cutting
from gradtide.store.shard.filter import Filter
from gradtide.store.shard.shard import Shard
from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.wire.messages import Absent, Pulled, Version
from gradtide.testing.hardship import hard_scenario_of, main, run_hard_seed, run_hard_seeds
from gradtide.testing.simulator import checkpoints
from gradtide.testing.simulator.history import Operated, SimulationHistory, check

SEEDS = 16


def test_seeds_of_hardship_keep_every_promise() -> None:
    failed = run_hard_seeds(0, SEEDS)
    assert failed is None, f"replay: python -m gradtide.testing.hardship --seed {failed.scenario.seed}"


@pytest.mark.slow
def test_thousands_of_seeds_of_hardship_keep_every_promise() -> None:
    failed = run_hard_seeds(SEEDS, 2000)
    assert failed is None, f"replay: python -m gradtide.testing.hardship --seed {failed.scenario.seed}"


def test_the_seeds_reach_every_kind_of_hardship() -> None:
    drawn = [hard_scenario_of(seed) for seed in range(200)]
    faults = [fault for scenario in drawn for fault in scenario.mishaps]
    clients = [fault for fault in faults if fault.who.startswith(("client", "worker"))]
    assert {(fault.kind, fault.silent) for fault in clients} >= {("kill", True), ("kill", False), ("stop", False)}
    assert {"full", "slow", "reset", "stall"} <= {fault.kind for fault in faults}
    assert any(fault.torn for fault in faults)
    assert any(fault.entries for fault in faults)
    assert {scenario.drift for scenario in drawn} == {0.0, 0.01}
    assert {scenario.forget_leases for scenario in drawn} == {0.0, 1.5, 3.0}
    assert {scenario.rejoin for scenario in drawn} == {True, False}
    outcomes = [run_hard_seed(seed) for seed in range(20)]
    names = {operated.client for outcome in outcomes for operated in outcome.history.operations}
    assert any(name.startswith("client") and "-" in name for name in names), "a client was started again"
    assert any(name.startswith("worker") and "-" in name for name in names), "and a worker"
    refused = {operated.refused for outcome in outcomes for operated in outcome.history.operations}
    assert "not_member" in refused, "somebody hung for too long"


def test_the_seeds_have_checkpoints_that_are_complete_and_some_that_say_why_they_are_not() -> None:
    savers = [seed for seed in range(60) if hard_scenario_of(seed).savers]
    assert 10 < len(savers) < 40, "most seeds have none"
    cuts = [cut for seed in savers for cut in run_hard_seed(seed).history.cuts]
    committed = [cut for cut in cuts if cut.committed_s is not None]
    assert any(cut.round > 1 and cut.client.startswith("worker") for cut in committed)
    assert any(cut.round > 1 and cut.client.startswith("client") for cut in committed)
    assert any(not cut.round and len(cut.shards) > 1 for cut in committed)
    assert all(cut.shards for cut in committed)
    assert any("table of servers has changed" in cut.failed for cut in cuts)


def test_one_seed_of_hardship_is_replayed_by_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3"]) == 0
    first = capsys.readouterr().out
    assert main(["--seed", "3"]) == 0
    assert capsys.readouterr().out == first


def test_a_read_that_misses_what_another_client_was_told_is_in_breaks_the_order_in_real_time() -> None:
    push = Operated("client0", -1, 1, "push", 1.0, (), done_s=2.0, versions={5: Version(1, 7)})
    old = Operated("client1", -1, 1, "pull", 2.5, (), done_s=3.0, versions={5: Version(1, 6)})
    assert [violation.promise for violation in check(SimulationHistory([push, old]))] == ["real time"]
    for fine in (
        replace(old, asked_s=1.5),
        replace(old, versions={5: Version(1, 7)}),
        replace(old, versions={4: Version(1)}),
    ):
        assert check(SimulationHistory([push, fine])) == []
    twice = replace(old, kind="push", versions={5: Version(1, 7)})
    assert [violation.promise for violation in check(SimulationHistory([push, twice]))] == ["real time"]


# --- breaking the code on purpose ---


def never_drop_who_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Filter, "forget", lambda *_: None)


def never_refuse_who_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    tell = ShardSet._tell

    def credulous(self: Any, *arguments: Any) -> Any:
        absent, self.absent = self.absent, Absent()
        try:
            return tell(self, *arguments)
        finally:
            self.absent = absent

    monkeypatch.setattr(ShardSet, "_tell", credulous)


def believe_an_old_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Membership, "_knows_more", lambda *_: False)


def tell_before_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    tellable = Clerk.tellable

    def hasty(self: Any, told: Any, now_s: float) -> Any:
        tellable(self, told, now_s)
        return told

    monkeypatch.setattr(Clerk, "tellable", hasty)


def believe_a_late_refusal_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that hung is told that it is in no rounds when it is in them again, and never learns better."""
    monkeypatch.setattr(Session, "_first_news", property(lambda self: self.decree.number + 1 if self.decree else 0))


def keep_what_a_client_read_until_it_pushes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that nobody else's push empties: each client for itself sees nothing wrong."""
    pull, push = Shard._pull, Shard._push
    cache: dict[tuple[int, str], tuple[Any, Any]] = {}

    def cached_pull(self: Any, event: Any) -> Any:
        return [from_cache(self, event, answer) for answer in pull(self, event)]

    def from_cache(shard: Any, event: Any, answer: Any) -> Any:
        if not isinstance(answer.message, Pulled) or event.request.round or answer.client != event.request.client:
            return answer
        _, known = cache.setdefault((id(shard), answer.client), (shard, answer))
        if known.message.version.epoch < shard.version.epoch or known.message.version < event.at_least:
            return answer
        return replace(known, message=msgspec.structs.replace(known.message, sequence=answer.message.sequence))

    def emptying_push(self: Any, event: Any) -> Any:
        cache.pop((id(self), event.request.client), None)
        return push(self, event)

    monkeypatch.setattr(Shard, "_pull", cached_pull)
    monkeypatch.setattr(Shard, "_push", emptying_push)


def never_copy_before_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cut, "goes_beyond", lambda *_: False)


def cut_wherever_a_shard_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(cls: Any, shard: Any, round_: int, copy: Any) -> Any:
        in_rounds = [name for name, block in shard.blocks.items() if block.spec.delay is not None]
        return cls(shard, round_, copy, dict.fromkeys(in_rounds))

    monkeypatch.setattr(Cut, "of", classmethod(begin))


def copy_the_filter_before_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Cut.of.__func__  # type: ignore[attr-defined]
    image = Cut.image

    def with_records(cls: Any, *arguments: Any) -> Any:
        cut = begin(cls, *arguments)
        early[id(cut)] = cut.shard.filter.images()
        return cut

    def with_early_records(self: Any) -> Any:
        self.records = early.pop(id(self))
        return image(self)

    early: dict[int, Any] = {}
    monkeypatch.setattr(Cut, "of", classmethod(with_records))
    monkeypatch.setattr(Cut, "image", with_early_records)


def go_on_with_a_cut_when_the_table_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On both sides: servers keep the cut, and clients take what they get."""
    monkeypatch.setattr(checkpoints, "agreed_answers", lambda done, _: done.told if done.refused is None else refuse())
    monkeypatch.setattr(Cutting, "epoch", property(lambda _: Anything(), lambda *_: None), raising=False)


def refuse() -> Any:
    raise StoreError("refused")


class Anything:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("mutation", "promises"),
    [
        (never_copy_before_the_next_round, {"one cut"}),
        (cut_wherever_a_shard_is, {"one cut"}),
        pytest.param(copy_the_filter_before_the_values, {"exact cut"}, marks=pytest.mark.slow),
        (go_on_with_a_cut_when_the_table_changes, {"whole cut", "one cut", "exact cut"}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_the_checker_sees_a_checkpoint_that_is_not_one_cut(
    monkeypatch: pytest.MonkeyPatch, mutation: Callable[[pytest.MonkeyPatch], None], promises: set[str]
) -> None:
    mutation(monkeypatch)
    savers = (seed for seed in range(1000) if hard_scenario_of(seed).savers)
    broken = (violation.promise for seed in savers for violation in run_hard_seed(seed).violations)
    assert any(promise in promises for promise in broken)


@pytest.mark.parametrize(
    ("mutation", "promises"),
    [
        (never_drop_who_is_gone, {"forgotten"}),
        (tell_before_writing, {"written first"}),
        (keep_what_a_client_read_until_it_pushes, {"real time"}),
        pytest.param(believe_an_old_journal, {"journal"}, marks=pytest.mark.slow),
        pytest.param(never_refuse_who_is_gone, {"exactly once"}, marks=pytest.mark.slow),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_the_checker_sees_what_was_put_back_on_purpose(
    monkeypatch: pytest.MonkeyPatch, mutation: Callable[[pytest.MonkeyPatch], None], promises: set[str]
) -> None:
    mutation(monkeypatch)
    broken = (violation.promise for seed in range(400) for violation in run_hard_seed(seed).violations)
    assert any(promise in promises for promise in broken)


def test_a_worker_that_hung_and_is_never_let_in_again_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_hard_seed(780).violations == ()
    believe_a_late_refusal_for_ever(monkeypatch)
    assert [violation.promise for violation in run_hard_seed(780).violations] == ["progress"]

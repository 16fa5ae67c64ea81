"""In simulated stores with compressed keys everything that was pushed counts once; and the checker can tell."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch

from gradtide.store.client.session import Session
from gradtide.store.client.tensors import compressed as client_side
from gradtide.store.client.tensors.residuals import Change, PushResiduals
from gradtide.store.rules.codecs import BlockCodec
from gradtide.store.rules.published import Published
from gradtide.store.shard import cut
from gradtide.store.shard.filter import Filter
from gradtide.store.shard.image import image_of
from gradtide.store.shard.rounds import Block
from gradtide.store.shard.shard import Shard
from gradtide.testing import elastic, hardship, simulate
from gradtide.testing.simulate import Outcome

SEEDS = 8  # of each kind, in every run
MANY = 500  # of each kind


def plain(seed: int) -> Outcome:
    return simulate.run_seed(seed, compress=True)


def replicated(seed: int) -> Outcome:
    return simulate.run_seed(seed, replicas=True, compress=True)


def elastic_one(seed: int) -> Outcome:
    return elastic.run_elastic_seed(seed, compress=True)


def hard(seed: int) -> Outcome:
    return hardship.run_hard_seed(seed, compress=True)


@cache
def outcome_of(kind: Callable[[int], Outcome], seed: int) -> Outcome:
    """Of the code as it is: several tests look at the same run."""
    return kind(seed)


COMMANDS = {
    plain: "simulate",
    replicated: "simulate --replicas",
    elastic_one: "elastic",
    hard: "hardship",
}
KINDS = pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)


def keep_every_promise(kind: Callable[[int], Outcome], run: Callable[[int], Outcome], first: int, count: int) -> None:
    failed = simulate.first_broken(run, first, count, lambda seed: None)
    assert failed is None, (
        f"replay: python -m gradtide.testing.{COMMANDS[kind]} --compress --seed {failed.scenario.seed}"
    )


@KINDS
def test_seeds_with_compressed_keys_keep_every_promise(kind: Callable[[int], Outcome]) -> None:
    keep_every_promise(kind, partial(outcome_of, kind), 0, SEEDS)


@pytest.mark.slow
@KINDS
def test_two_thousand_seeds_with_compressed_keys_keep_every_promise(kind: Callable[[int], Outcome]) -> None:
    keep_every_promise(kind, kind, SEEDS, MANY)


def test_one_seed_in_eight_has_compressed_keys_unless_said() -> None:
    chosen = [seed for seed in range(16) if simulate.run_seed(seed).ledger is not None]
    assert chosen == [5, 13]
    assert simulate.run_seed(5, compress=False).ledger is None
    assert simulate.run_seed(4, compress=True).ledger is not None
    assert simulate.main(["--seed", "5", "--no-compress"]) == 0
    assert hardship.main(["--seeds", "2", "--compress"]) == 0


def test_the_same_seed_with_compressed_keys_gives_the_same_history() -> None:
    assert [elastic_one(seed).digest for seed in range(3)] == [
        outcome_of(elastic_one, seed).digest for seed in range(3)
    ]


def test_the_seeds_have_all_that_compressed_keys_can_meet() -> None:
    outcomes = [outcome_of(kind, seed) for kind in (elastic_one, hard) for seed in range(12)]
    ledgers = [outcome.ledger for outcome in outcomes if outcome.ledger is not None]
    assert sum(ledger.sends for ledger in ledgers) > 1.5 * sum(len(ledger.pushes) for ledger in ledgers), "sent again"
    assert sum(ledger.encoded for ledger in ledgers) > 50, "rounds came back encoded"
    assert sum(ledger.whole for ledger in ledgers) > 20, "and to some whole"
    left = [(ledger, client) for ledger in ledgers for client, blocks in ledger.residuals.items() if blocks]
    assert any(ledger.lost for ledger in ledgers), "something was lost with a client that died, and is counted"
    assert any(client not in ledger.gone for ledger, client in left), "and something is left out"
    assert any(client.startswith("worker") for ledger in ledgers for client, _ in ledger.flushed), (
        "a worker took all along"
    )
    assert any(client.startswith("client") for ledger in ledgers for client, _ in ledger.flushed)
    cuts = [cut for outcome in outcomes for cut in outcome.history.cuts if cut.committed_s is not None]
    assert any(block.tensors for taken in cuts for part in taken.shards for block in part.blocks.values())
    assert {outcome.scenario.delay for outcome in outcomes} == {0, 1, 4}
    assert any(len({t.owners for t in outcome.history.tables.values()}) > 2 for outcome in outcomes), "shards moved"


def test_a_push_outside_of_rounds_waits_for_no_pull() -> None:
    asked = [operated for operated in outcome_of(plain, 0).history.operations if not operated.round]
    pulls = [operated for operated in asked if operated.kind == "pull"]
    pushes = [operated for operated in asked if operated.kind == "push"]
    assert any(
        pull.client == push.client and pull.sequence < push.sequence and push.asked_s < (pull.done_s or 0.0)
        for pull in pulls
        for push in pushes
    )


# --- breaking the code on purpose ---


def use_the_memory_of_encoded_bytes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    encode, kept = BlockCodec.encode, dict[int, torch.Tensor]()

    def into_the_same(self: Any, values: Any, draw: int) -> Any:
        body = encode(self, values, draw)
        return None if body is None else kept.setdefault(id(self), body.clone()).copy_(body)

    monkeypatch.setattr(BlockCodec, "encode", into_the_same)


def leave_residuals_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was left out is sent with every push again."""
    put = PushResiduals.put

    def stubborn(self: Any, name: Any, change: Any) -> None:
        put(self, name, change if change.before is None else Change(change.before, change.before))

    monkeypatch.setattr(PushResiduals, "put", stubborn)


def give_nothing_back_for_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Change, "undone", property(lambda self: Change(self.after, self.after)))


def give_back_what_some_shards_have_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    push = Session.push
    monkeypatch.setattr(Session, "push", lambda *a, **options: push(*a, **{**options, "settles": False}))


def keep_what_is_left_out_when_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink = client_side.shrink
    monkeypatch.setattr(client_side, "shrink", lambda *a, **options: shrink(*a, **{**options, "flush": False}))


def move_without_what_workers_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Published, "beside", lambda self: {})


def move_without_what_averages_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Published.take

    def forgetful(self: Any, beside: Any) -> None:
        take(self, {name: value for name, value in beside.items() if name != "published residual"})

    monkeypatch.setattr(Published, "take", forgetful)


def let_replicas_publish_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def replay(self: Any, step: Any, combined: Any) -> None:
        self._take_changes(step.round)
        self.state.apply(combined)
        if step.round:
            self._note(step.round, step.workers)
            self.closed = step.round

    monkeypatch.setattr(Block, "replay", replay)


def checkpoint_without_what_workers_have(monkeypatch: pytest.MonkeyPatch) -> None:
    def bare(number: int, block: Any) -> Any:
        image, values = image_of(number, block)
        return type(image)(*(getattr(image, name) for name in image.__struct_fields__[:6]), (), 1), values[:1]

    monkeypatch.setattr(cut, "image_of", bare)


def encode_for_every_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(self: Any, round_: int) -> Any:
        kept = self._rounds[round_]
        if round_ == self._closed and self._differences:
            self._rounds[round_] = self._codec.encode(self._value() - self._tip, round_)
            self._put(self._tip, round_)
        return kept

    monkeypatch.setattr(Published, "encoded", again)


def give_newcomers_the_exact_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Published, "whole", lambda self, round_: self._value().clone())


def add_to_what_was_there_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shard, "_begins", lambda *_: False)


def admit_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Filter, "judge", lambda *_: "new")


def forget_what_a_round_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next difference is to the value, not to what workers have."""
    close = Published.close

    def forgetful(self: Any, round_: int) -> None:
        close(self, round_)
        if self._differences and self._delay:
            self._tip.copy_(self._value())

    monkeypatch.setattr(Published, "close", forgetful)


MUTATIONS = [
    (use_the_memory_of_encoded_bytes_again, {"the same bytes"}, plain, 0),
    (leave_residuals_as_they_were, {"residuals"}, plain, 0),
    (give_nothing_back_for_what_is_refused, {"residuals"}, hard, 46),
    (give_back_what_some_shards_have_not_refused, {"exactly once"}, replicated, 5),
    (keep_what_is_left_out_when_leaving, {"flush"}, elastic_one, 0),
    (move_without_what_workers_have, {"one answer", "newcomers"}, elastic_one, 0),
    (move_without_what_averages_left_out, {"one answer", "newcomers", "progress"}, elastic_one, 0),
    (let_replicas_publish_nothing, {"one answer", "newcomers", "progress"}, replicated, 0),
    (checkpoint_without_what_workers_have, {"newcomers"}, hard, 7),
    (encode_for_every_pull, {"one answer"}, plain, 0),
    (give_newcomers_the_exact_value, {"one answer"}, plain, 0),
    (add_to_what_was_there_before_the_first_step, {"one answer"}, hard, 3483),
    (admit_duplicates, {"exactly once"}, plain, 0),
    (forget_what_a_round_left_out, {"one answer", "newcomers"}, plain, 0),
]


@pytest.mark.parametrize(
    ("mutation", "promises", "kind", "first"), MUTATIONS, ids=[mutation.__name__ for mutation, *_ in MUTATIONS]
)
def test_the_checker_sees_what_is_lost_or_counts_twice(
    monkeypatch: pytest.MonkeyPatch,
    mutation: Callable[[pytest.MonkeyPatch], None],
    promises: set[str],
    kind: Callable[[int], Outcome],
    first: int,
) -> None:
    mutation(monkeypatch)
    broken = ((seed, violation) for seed in range(first, first + 100) for violation in kind(seed).violations)
    assert any(violation.promise in promises for _, violation in broken)

"""One shard, event by event: compare what it says with what it should."""

from collections.abc import Sequence

import pytest

from gradtide.store.shard.filter import Filter
from gradtide.store.shard.rounds import EARLY_ROUNDS
from gradtide.store.shard.shard import Shard
from gradtide.store.shard.shard_events import Answer, ConfigurePart, Forget, InitPart, PullPart, PushPart
from gradtide.store.wire.credit import ANSWERS_KEPT
from gradtide.store.wire.messages import (
    Absent,
    Configure,
    Decree,
    Init,
    Initialised,
    KeySpec,
    Member,
    Noted,
    Part,
    Piece,
    Propose,
    Pull,
    Pulled,
    Push,
    Pushed,
    Refused,
    Settled,
    UpdateRule,
    Version,
)
from gradtide.testing.simulator.numbers import ExactArithmetic, Number, fold, fold_round

pytestmark = pytest.mark.quick

PART = Part(5, (Piece("k", 0, 0, 4, 32),))
Said = list[Answer[Number]]


def spec(rule: str = "add", delay: int | None = None, *, reject_nan: bool = False) -> KeySpec:
    return KeySpec("k", (4,), "int64", UpdateRule(rule), delay, reject_nan)


def shard_with(key: KeySpec, workers: Sequence[int] = ()) -> Shard[Number]:
    shard = Shard(5, ExactArithmetic(), Version(1, 0))
    init(shard, key)
    if workers:
        shard.handle(decree(1, workers))
    return shard


def decree(number: int, workers: Sequence[int], first: int = 1, incarnation: int = 1) -> Decree:
    return Decree(1, number, tuple(Member(w, first, f"w{w}", incarnation) for w in workers))


def init(shard: Shard[Number], key: KeySpec, value: int = 0, client: str = "w0") -> Said:
    return shard.handle(InitPart(Init(1, client, 1, 1, key, (PART,)), PART, [Number(value, 4)]))


def push(
    shard: Shard[Number], who: int, sequence: int, value: int, round_: int = 0, *, after: int = 0, incarnation: int = 1,
    pull: bool = False, known: int = 0,
) -> Said:  # fmt: skip
    request = Push(1, f"w{who}", incarnation, sequence, b"", round=round_, worker=who, pull=pull, decree=known)
    return shard.handle(PushPart(request, PART, after, [Number(value, 4)]))


def pull(
    shard: Shard[Number], who: int, sequence: int, round_: int = 0, *, after: int = 0, at_least: Version | None = None
) -> Said:
    request = Pull(1, f"w{who}", 1, sequence, b"", round=round_, worker=who)
    return shard.handle(PullPart(request, PART, after, at_least or Version()))


def refusal(said: Said) -> Refused:
    assert isinstance(said[0].message, Refused)
    return said[0].message


def value(shard: Shard[Number]) -> int:
    return shard.blocks["k", 0].state.value().number


# --- exactly once ---


def test_an_async_push_is_applied_on_arrival_and_a_duplicate_gets_the_original_answer() -> None:
    shard = shard_with(spec())
    first = push(shard, 0, 2, 10)
    push(shard, 1, 1, 5)
    assert first == [Answer("w0", Pushed(2, 5, Version(1, 1)))]
    assert push(shard, 0, 2, 10) == first
    assert value(shard) == 15


def test_gaps_are_allowed_but_a_push_that_overtook_another_comes_back_later() -> None:
    shard = shard_with(spec())
    push(shard, 0, 3, 1)
    assert refusal(push(shard, 0, 9, 1, after=7)).reason == "early"
    assert value(shard) == 1
    push(shard, 0, 7, 1)
    assert isinstance(push(shard, 0, 9, 1, after=7)[0].message, Pushed)
    assert value(shard) == 3


def test_what_is_older_than_the_window_is_refused_not_applied_again() -> None:
    shard = shard_with(spec())
    for sequence in range(1, ANSWERS_KEPT + 3):
        push(shard, 0, sequence, 1)
    assert refusal(push(shard, 0, 1, 1)).reason == "forgotten"
    assert value(shard) == ANSWERS_KEPT + 2
    assert len(shard.filter.records["w0"].answers) == ANSWERS_KEPT


@pytest.mark.parametrize("by_image", [False, True])
def test_what_waits_for_its_round_is_not_forgotten_however_much_is_answered_meanwhile(by_image: bool) -> None:
    primary, replica = Filter(), Filter()

    def answer(sequence: int) -> None:
        pushed = Pushed(sequence, 5, Version(1, sequence))
        primary.settle("w0", 1, pushed)
        replica.replay(Settled("w0", 1, sequence, pushed, primary.waiting_below("w0")))

    primary.admit("w0", 1, 1)  # for a round that stays open
    for sequence in range(2, 2 * ANSWERS_KEPT):
        primary.admit("w0", 1, sequence)
        answer(sequence)
    assert len(primary.records["w0"].answers) == ANSWERS_KEPT
    for _ in range(2):  # one failover after the other
        heir = Filter.from_images(primary.images()) if by_image else replica
        heir.take_over()
        assert heir.judge("w0", 1, 1, 0) == "new"
        assert heir.judge("w0", 1, 2, 0) == "forgotten"
        assert heir.judge("w0", 1, 2 * ANSWERS_KEPT - 1, 0) == "answered"
        primary, replica = heir, Filter.from_images(heir.images())
        primary.admit("w0", 1, 1)
    answer(1)
    assert primary.judge("w0", 1, 1, 0) == replica.judge("w0", 1, 1, 0) == "answered"


def test_a_later_start_of_a_client_counts_anew_and_fences_the_earlier() -> None:
    shard = shard_with(spec())
    push(shard, 0, 4, 1)
    assert isinstance(push(shard, 0, 1, 1, incarnation=2)[0].message, Pushed)
    assert refusal(push(shard, 0, 5, 1)).reason == "incarnation"
    assert refusal(pull(shard, 0, 6)).reason == "incarnation"
    assert isinstance(push(shard, 0, 1, 1, incarnation=3)[0].message, Pushed)
    shard.handle(Forget(Absent(3)))
    assert shard.filter.records["w0"].incarnation == 3
    shard.handle(Forget(Absent(4)))
    assert shard.filter.records == {}


def test_a_push_is_all_or_nothing() -> None:
    shard = shard_with(spec())
    both = Part(5, (*PART.pieces, Piece("missing", 0, 0, 4, 32)))
    said = shard.handle(PushPart(Push(1, "w0", 1, 2, b""), both, 0, [Number(1, 4), Number(1, 4)]))
    assert refusal(said).reason == "unknown_key"
    assert "'missing'" in refusal(said).text
    assert value(shard) == 0
    assert shard.handle(PushPart(Push(1, "w0", 1, 2, b""), both, 0, [Number(1, 4), Number(1, 4)])) == said


# --- rounds ---


def test_contributions_are_added_in_worker_order_whatever_the_arrival() -> None:
    values = []
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        shard = shard_with(spec("fold", 0), (0, 1, 2))
        for who in order:
            push(shard, who, 1, 100 + who, 1)
        values.append(value(shard))
    assert values == [fold_round(0, fold([(1.0, 100), (1.0, 101), (1.0, 102)]), 1)] * 3


def waiting_bytes(shard: Shard[Number]) -> int:
    """What the contributions to open rounds hold."""
    return sum(len(slots) * block.size_bytes for block in shard.blocks.values() for slots in block.open.values())


def test_nothing_is_acknowledged_before_its_round_is_closed() -> None:
    shard = shard_with(spec("fold", 0), (0, 1))
    assert push(shard, 1, 1, 7, 1) == [Answer("w1", Noted(1, 5))]
    assert push(shard, 1, 1, 7, 1) == [Answer("w1", Noted(1, 5))], "a duplicate waits too"
    assert waiting_bytes(shard) == 32
    said = push(shard, 0, 1, 8, 1)
    assert [(answer.client, type(answer.message)) for answer in said] == [("w1", Pushed), ("w0", Pushed)]
    assert waiting_bytes(shard) == 0
    assert shard.version == Version(1, 1)


@pytest.mark.parametrize("delay", [0, 1, 4])
def test_a_step_may_start_once_the_round_that_its_delay_allows_is_closed(delay: int) -> None:
    shard = shard_with(spec("fold", delay), (0, 1))
    for step in range(1, delay + 2):
        answer = pull(shard, 0, 2 * step, step)[0]
        assert isinstance(answer.message, Pulled)
        assert answer.message.staleness == step - 1
        push(shard, 0, 2 * step + 1, step, step)
    assert pull(shard, 0, 99, delay + 2) == []
    said = push(shard, 1, 1, 1, 1)
    assert [type(answer.message) for answer in said] == [Pushed, Pushed, Pulled]
    assert said[-1].message.round == 1


def test_who_skips_a_key_in_a_step_holds_nobody_up() -> None:
    shard = shard_with(spec("fold", 0), (0, 1))
    push(shard, 0, 1, 3, 1)
    said = pull(shard, 1, 1, 2)
    assert {type(answer.message) for answer in said} == {Pushed, Pulled}
    assert value(shard) == fold_round(0, fold([(1.0, 3)]), 1)


def test_a_restarted_worker_counts_once() -> None:
    shard = shard_with(spec("fold", 0), (0, 1))
    push(shard, 0, 4, 3, 1)
    shard.handle(Decree(1, 2, (Member(0, 1, "w0", 2), Member(1, 1, "w1", 1))))
    push(shard, 0, 1, 99, 1, incarnation=2)
    said = push(shard, 1, 1, 5, 1)
    assert value(shard) == fold_round(0, fold([(1.0, 3), (1.0, 5)]), 1)
    assert Answer("w0", Pushed(1, 5, Version(1, 1), 1)) in said
    assert isinstance(push(shard, 0, 2, 99, 1, incarnation=2)[0].message, Pushed), "closed, and it was in it"
    assert value(shard) == fold_round(0, fold([(1.0, 3), (1.0, 5)]), 1)


def test_a_worker_that_left_is_not_waited_for_and_what_it_pushed_counts() -> None:
    shard = shard_with(spec("fold", 0), (0, 1, 2))
    push(shard, 2, 1, 9, 1)
    push(shard, 0, 1, 3, 1)
    said = shard.handle(decree(2, (0, 2)))
    assert [answer.client for answer in said] == ["w2", "w0"]
    assert refusal(push(shard, 1, 1, 4, 1)).reason == "not_member"
    shard.handle(decree(3, (0,)))
    assert push(shard, 0, 2, 4, 2)[0].message == Pushed(2, 5, Version(1, 2), 2)


def test_a_promised_round_waits_for_the_decree() -> None:
    shard = shard_with(spec("fold", 0), (0,))
    push(shard, 0, 1, 1, 1)
    first = shard.promise(Propose(1, 2))
    assert first == 4
    for round_ in (2, 3):
        assert isinstance(push(shard, 0, round_, 1, round_)[-1].message, Pushed)
    assert push(shard, 0, 4, 1, 4) == [Answer("w0", Noted(4, 5))]
    shard.handle(Decree(1, 3, (Member(0, 1, "w0", 1), Member(1, first, "w1", 1))))
    assert shard.blocks["k", 0].closed == 3
    assert refusal(push(shard, 1, 1, 1, 3)).reason == "stale"
    push(shard, 1, 2, 1, 4)
    assert shard.blocks["k", 0].closed == 4


def test_who_begins_a_step_is_told_which_decree_says_who_is_in_it() -> None:
    shard = shard_with(spec("fold", 0), (0,))

    def told(step: int) -> tuple[object, ...]:
        push(shard, 0, 2 * step, 1, step - 1)
        (answer,) = pull(shard, 0, 2 * step + 1, step)
        return answer.message.round, answer.message.decree

    assert told(2) == (1, 1)
    assert shard.promise(Propose(1, 2)) == 4
    assert told(3) == (2, 1), "nobody can be in it who was not decreed before"
    assert told(4) == (3, 2), "somebody may be"
    shard.handle(Decree(1, 3, (Member(0, 1, "w0", 1), Member(1, 5, "w1", 1))))
    assert told(5) == (4, 3)
    assert shard.promise(Propose(1, 4)) > 5, "whoever comes after a step was begun is not in it"


def test_all_who_begin_a_step_are_told_the_same_decree_whoever_dies_meanwhile() -> None:
    shard = shard_with(spec("fold", 0), (0, 1, 2))
    for worker in range(3):
        push(shard, worker, 1, 1, 1)
    assert pull(shard, 0, 2, 2)[0].message.decree == 1
    shard.handle(decree(2, (0, 1)))
    assert pull(shard, 1, 2, 2)[0].message.decree == 1
    for worker in range(2):
        push(shard, worker, 3, 1, 2)
    assert pull(shard, 1, 4, 3)[0].message.decree == 2


def test_a_decree_that_the_client_knows_and_the_shard_does_not_is_waited_for() -> None:
    shard = shard_with(spec("fold", 0))
    assert refusal(push(shard, 0, 1, 1, 1, known=1)).reason == "early"
    shard.handle(decree(1, (0,)))
    assert isinstance(push(shard, 0, 1, 1, 1, known=1)[0].message, Pushed)


def test_who_runs_ahead_is_told_to_come_back_and_memory_stays_bounded() -> None:
    shard = shard_with(spec("fold", 0), (0, 1))
    for round_ in range(1, EARLY_ROUNDS + 2):
        push(shard, 0, round_, 1, round_)
    assert refusal(push(shard, 0, 50, 1, EARLY_ROUNDS + 2)).reason == "busy"
    assert waiting_bytes(shard) == 32 * (EARLY_ROUNDS + 1)
    push(shard, 1, 1, 1, 1)
    assert push(shard, 0, 50, 1, EARLY_ROUNDS + 2) == [Answer("w0", Noted(50, 5))]


def test_outsiders_may_read_rounds_but_not_push() -> None:
    shard = shard_with(spec("fold", 0), (0,))
    push(shard, 0, 1, 1, 1)
    assert pull(shard, 7, 1)[0].values == (shard.blocks["k", 0].state.value(),)
    assert refusal(push(shard, 7, 2, 1, 2)).reason == "not_member"


# --- pull, init, configure ---


def test_a_pull_waits_for_the_version_and_for_the_own_push_it_must_see() -> None:
    shard = shard_with(spec())
    assert pull(shard, 0, 2, after=1) == []
    assert pull(shard, 1, 1, at_least=Version(1, 2)) == []
    assert [type(a.message) for a in push(shard, 0, 1, 5)] == [Pushed, Pulled]
    said = push(shard, 0, 3, 6)
    assert said[1] == Answer("w1", Pulled(1, 5, Version(1, 2)), (Number(11, 4),))


def test_push_and_pull_in_one_trip_and_again_when_the_answer_is_lost() -> None:
    shard = shard_with(spec())
    said = push(shard, 0, 1, 5, pull=True)
    assert said == [Answer("w0", Pushed(1, 5, Version(1, 1)), (Number(5, 4),))]
    push(shard, 1, 1, 1)
    assert push(shard, 0, 1, 5, pull=True) == [Answer("w0", Pushed(1, 5, Version(1, 1)), (Number(6, 4),))]


def test_equal_inits_agree_and_different_ones_are_told_apart() -> None:
    shard = shard_with(spec())
    push(shard, 0, 2, 5)
    assert init(shard, spec(), client="w1") == [Answer("w1", Initialised(1, 5, Version(1, 1)))]
    assert value(shard) == 5
    assert "other values" in refusal(init(shard, spec(), value=3, client="w1")).text
    text = refusal(init(shard, spec("last"), client="w1")).text
    assert text == (
        "w1 initialises 'k' with update last() of the mean, but it was first initialised with add() of the mean; "
        "make them equal"
    )
    assert refusal(init(shard_with(spec()), spec(delay=0))).reason == "mismatch"
    other = Shard(5, ExactArithmetic())
    assert refusal(init(other, spec("unheard"))).reason == "rule"
    assert other.blocks == {}


def test_a_wrong_size_is_refused() -> None:
    shard = shard_with(spec())
    part = Part(5, (Piece("k", 0, 0, 3, 24),))
    said = shard.handle(PushPart(Push(1, "w0", 1, 2, b""), part, 0, [Number(1, 3)]))
    assert refusal(said).reason == "mismatch"
    far = Part(5, (Piece("k", 0, 2, 3, 24),))
    assert refusal(shard.handle(PullPart(Pull(1, "w0", 1, 3, b""), far, 0, Version()))).reason == "mismatch"


def test_nan_is_refused_where_the_key_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExactArithmetic, "has_nan", lambda self, value: value.number < 0)
    shard = shard_with(spec(reject_nan=True))
    assert refusal(push(shard, 0, 2, -1)).reason == "nan"
    assert isinstance(push(shard, 0, 3, 1)[0].message, Pushed)
    assert isinstance(push(shard_with(spec()), 0, 2, -1)[0].message, Pushed)


def test_a_change_of_the_rule_counts_once_and_from_its_round() -> None:
    shard = shard_with(spec("fold", 0), (0,))

    def configure(sequence: int, rate: int, first: int) -> Said:
        return shard.handle(ConfigurePart(Configure(1, "w0", 1, sequence, "k", {"rate": rate}, (5,), (), first), 0))

    assert isinstance(configure(1, 7, 2)[0].message, Pushed)
    push(shard, 0, 2, 3, 1)
    push(shard, 0, 3, 3, 2)
    one = fold([(1.0, 3)])
    assert value(shard) == fold_round(fold_round(0, one, 1), one, 7)
    configure(4, 9, 0)
    assert isinstance(configure(1, 7, 2)[0].message, Pushed), "a late duplicate is answered and changes nothing"
    push(shard, 0, 5, 3, 3)
    assert value(shard) == fold_round(fold_round(fold_round(0, one, 1), one, 7), one, 9)
    assert refusal(configure(6, 1, 3)).reason == "stale"
    unknown = Configure(1, "w0", 1, 7, "k", {"speed": 1}, (5,))
    assert refusal(shard.handle(ConfigurePart(unknown, 0))).reason == "rule"

"""Which of several coordinators leads, without sockets: what follows from a register's answers."""

import pytest

from gradtide.store.coordinator.clerk import LateClerk
from gradtide.store.coordinator.election.leadership import PROOF_S, TAKE_OVER_S, Leadership
from gradtide.store.coordinator.election.office import Office
from gradtide.store.coordinator.election.register import (
    Campaign,
    Deposed,
    Elected,
    Kept,
    LeaderSeat,
    Renew,
    Sighting,
    Unreachable,
    Write,
    Written,
)
from gradtide.store.coordinator.membership import Membership
from gradtide.store.wire.messages import Beat, Join, Table, Welcome

pytestmark = pytest.mark.quick

SEAT = LeaderSeat(b"mark", 1)
OTHER = Sighting("tcp:other:1", "other-1", 7)


def elected(clear: bool = True) -> Elected:
    return Elected(SEAT, None, 0, clear)


def test_a_proof_counts_from_before_it_was_asked_for() -> None:
    leadership = Leadership("tcp:me:1", "me")
    assert isinstance(leadership.question(10.0), Campaign)
    assert leadership.hear(elected(), 11.0) == 0.0
    assert leadership.leads(10.0 + PROOF_S - 0.01)
    assert not leadership.leads(10.0 + PROOF_S)
    assert leadership.question(11.0) == Renew(SEAT)
    assert leadership.question(11.1) is None, "one question at a time"
    leadership.hear(Kept(), 12.5)
    assert not leadership.leads(11.0 + PROOF_S), "from when it was asked, not from when it was answered"
    assert leadership.leads(11.0 + PROOF_S - 0.01)


def test_who_stands_by_takes_over_from_who_has_not_proven_himself_for_long_enough() -> None:
    leadership = Leadership("tcp:me:1", "me")
    asked = leadership.question(0.0)
    assert asked == Campaign("tcp:me:1", "me-1")
    leadership.hear(OTHER, 0.5)
    assert leadership.leader == "tcp:other:1"
    for now_s in (1.0, 2.0, 3.0):
        assert leadership.question(now_s).instead_of is None
        leadership.hear(OTHER, now_s)
    late_s = 0.5 + TAKE_OVER_S + 0.1
    assert leadership.question(late_s).instead_of == OTHER
    leadership.hear(Sighting(OTHER.leader, OTHER.token, 8), late_s)  # he has proven himself in between
    assert leadership.question(late_s + 1).instead_of is None


def test_an_empty_seat_is_waited_out_and_one_that_was_left_is_not() -> None:
    for clear, wait_s in ((True, 0.0), (False, TAKE_OVER_S)):
        leadership = Leadership("tcp:me:1", "me")
        leadership.question(0.0)
        assert leadership.hear(elected(clear), 0.1) == wait_s


def test_its_own_old_seat_is_taken_again_at_once() -> None:
    leadership = Leadership("tcp:me:1", "me")
    leadership.question(0.0)
    own = Sighting("tcp:me:1", "me-1", 3)
    leadership.hear(own, 0.1)  # the answer that it was elected was lost
    assert leadership.question(1.0).instead_of == own


def started() -> tuple[Office, LeaderSeat]:
    office = Office("tcp:me:1", "me", lambda record, now_s: Membership())
    (campaign,) = office.questions(0.0)
    office.answered(campaign, elected(), 0.1)
    return office, SEAT


def test_a_decision_is_told_when_it_is_written_and_a_beat_is_answered_meanwhile() -> None:
    office, seat = started()
    told = office.hear(Join("server", "s0", 1, "s0:1", expected=1), 0.2)
    assert not [tell for tell in told if isinstance(tell.message, Table)]
    (write,) = [question for question in office.questions(0.2) if isinstance(question, Write)]
    assert write.seat == seat
    assert [type(tell.message) for tell in office.hear(Beat("s0", 1), 0.3)] == [Welcome]
    told = office.answered(write, Written(5), 0.4)
    assert "Table" in {type(tell.message).__name__ for tell in told}


def test_a_leader_that_can_not_prove_itself_answers_no_beat_and_stands_by() -> None:
    office, _ = started()
    office.hear(Join("server", "s0", 1, "s0:1", expected=1), 0.2)
    assert office.hear(Beat("s0", 1), 0.3)
    assert office.hear(Beat("s0", 1), PROOF_S) == []
    assert not office.leads(PROOF_S)
    office.questions(PROOF_S)
    assert office.membership is None


@pytest.mark.parametrize("answer", [Deposed(), Unreachable("no answer")])
def test_what_was_not_written_is_not_told(answer) -> None:
    office, _ = started()
    office.hear(Join("server", "s0", 1, "s0:1", expected=1), 0.2)
    (write,) = [question for question in office.questions(0.2) if isinstance(question, Write)]
    assert office.answered(write, answer, 0.4) == []
    assert (office.membership is None) == isinstance(answer, Deposed)


def test_what_was_decided_while_something_was_written_is_held_until_that_is_written_too() -> None:
    membership = Membership()
    clerk = LateClerk(membership)
    clerk.tellable(membership.hear(Join("server", "s0", 1, "s0:1", expected=2, replicas=1), 0.0), 0.0)
    assert clerk.take() is not None
    told = clerk.tellable(membership.hear(Join("server", "s1", 1, "s1:1", expected=2, replicas=1), 0.1), 0.1)
    assert clerk.take() is None, "one at a time"
    told += clerk.wrote()
    assert not [tell for tell in told if isinstance(tell.message, Table)]
    assert clerk.take() is not None
    assert {tell.name for tell in clerk.wrote() if isinstance(tell.message, Table)} == {"s0", "s1"}


def test_a_new_leader_replaces_nobody_while_leases_of_the_last_one_may_stand() -> None:
    membership = Membership(lease_s=1.0)
    for name in ("s0", "s1"):
        membership.hear(Join("server", name, 1, f"{name}:1", expected=2, replicas=1), 0.0)
    record = membership.take_unwritten()
    assert record is not None
    heir = Membership.restore(record, 10.0, 1.0)
    heir.inherit(10.0, 3.0)
    heir.hear(Beat("s1", 1, 1, 1), 10.1)
    heir.hear(Beat("s0", 1, 1, 1), 10.1)
    heir.lost("s0", 1)  # to who led before, perhaps
    now_s, epoch = 10.0, heir.epoch
    while now_s < 13.8:
        now_s += 0.1
        heir.hear(Beat("s1", 1, 2, heir.epoch), now_s)
        heir.tick(now_s)
        assert heir.epoch == epoch
    for _ in range(10):
        now_s += 0.1
        heir.hear(Beat("s1", 1, 2, heir.epoch), now_s)
        heir.tick(now_s)
    assert heir.epoch > epoch

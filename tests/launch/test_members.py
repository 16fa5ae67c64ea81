import pytest

from gradtide.launch.members import Members
from gradtide.processes.job_protocol import Ask, Notice, Roster

pytestmark = pytest.mark.quick


def test_nobody_is_told_before_all_who_live_have_asked():
    members = Members()
    members.asked(Ask(1, 0), 0.0)
    assert members.decree({0, 1}) is None
    members.asked(Ask(0, 0), 1.0)
    decree = members.decree({0, 1})
    assert decree is not None
    assert (decree.generation, decree.ranks) == (1, (0, 1))
    assert members.decree({0, 1}) is None


def test_survivors_come_before_newcomers():
    members = Members(generation=3)
    for rank, generation in ((0, 0), (2, 3), (1, 3)):
        members.asked(Ask(rank, generation), 0.0)
    decree = members.decree({0, 1, 2})
    assert decree is not None
    assert (decree.generation, decree.ranks) == (4, (1, 2, 0))


def test_one_that_dies_after_asking_is_not_waited_for():
    members = Members()
    members.asked(Ask(0, 1), 0.0)
    members.asked(Ask(1, 1), 0.0)
    members.gone(1)
    decree = members.decree({0})
    assert decree is not None
    assert decree.ranks == (0,)


def test_who_keeps_the_others_waiting_is_named_at_the_deadline_and_not_before():
    members = Members()
    assert members.deadline_s() is None
    members.asked(Ask(0, 1), 10.0)
    members.asked(Ask(1, 1), 20.0)
    assert members.late({0, 1, 2}, 10.0 + members.patience_s - 0.1) == ()
    assert members.late({0, 1, 2}, 10.0 + members.patience_s) == (2,)
    members.gone(0)
    members.gone(1)
    assert members.deadline_s() is None


def test_for_whom_the_others_wait_is_said_once_before_anybody_is_ended():
    members = Members(notice_s=30.0, patience_s=100.0)
    members.asked(Ask(0, 1), 10.0)
    assert members.deadline_s() == 40.0
    assert members.slow({0, 1}, 39.0) == ()
    assert members.slow({0, 1}, 40.0) == (1,)
    assert members.slow({0, 1}, 41.0) == ()
    assert members.deadline_s() == 110.0
    assert members.late({0, 1}, 109.0) == ()
    assert members.late({0, 1}, 110.0) == (1,)


def test_who_was_added_is_not_waited_for_and_is_in_once_the_others_have_asked():
    members = Members(generation=1)
    members.added.add(2)
    members.asked(Ask(0, 1), 0.0)
    assert members.decree({0, 1, 2}) is None, "worker 1 works, and has not heard"
    members.asked(Ask(2, 0), 0.0)
    assert members.notice() == Notice(1, ())
    assert members.notice() is None, "told once"
    members.asked(Ask(1, 1), 0.0)
    decree = members.decree({0, 1, 2})
    assert decree is not None
    assert (decree.generation, decree.ranks) == (2, (0, 1, 2))
    members.added.add(3)
    members.asked(Ask(0, 2), 0.0)
    members.asked(Ask(1, 2), 0.0)
    members.asked(Ask(2, 2), 0.0)
    decree = members.decree({0, 1, 2, 3})
    assert decree is not None
    assert decree.ranks == (0, 1, 2), "worker 3 has not asked yet"


def test_who_is_to_go_is_not_in_the_next_generation():
    members = Members(generation=1)
    members.going.add(1)
    assert members.notice() == Notice(1, (1,))
    members.asked(Ask(0, 1), 0.0)
    members.asked(Ask(1, 1), 0.0)
    decree = members.decree({0, 1})
    assert decree is not None
    assert decree.ranks == (0,)
    assert members.notice() is None


def test_who_was_added_when_nobody_is_left_who_knows_is_let_go():
    members = Members(generation=3)
    members.added.add(4)
    members.asked(Ask(4, 0), 0.0)
    decree = members.decree({4})
    assert decree is not None
    assert decree.ranks == ()


def test_who_was_started_again_is_stranded_only_when_all_have_asked_and_nobody_knows():
    members = Members(generation=3)
    members.added.add(4)
    members.asked(Ask(1, 0), 0.0)
    members.asked(Ask(4, 0), 0.0)
    assert members.stranded({1, 2, 4}) == (), "worker 2 is still at work"
    assert members.stranded({1, 4}) == (1,), "worker 4 was added, and is let go"
    members.asked(Ask(2, 3), 0.0)
    assert members.stranded({1, 2, 4}) == (), "worker 2 knows"
    assert Members().stranded(set()) == ()


def test_who_is_to_go_and_keeps_something_is_in_the_next_generation_and_told_again():
    members = Members(generation=1)
    members.going.add(1)
    members.asked(Ask(0, 1), 0.0)
    members.asked(Ask(1, 1, keeps=True), 0.0)
    decree = members.decree({0, 1})
    assert decree is not None
    assert decree.ranks == (0, 1)
    assert members.notice() == Notice(2, (1,))
    members.asked(Ask(0, 2, keeps=True), 0.0)
    members.asked(Ask(1, 2), 0.0)
    decree = members.decree({0, 1})
    assert decree is not None
    assert decree.ranks == (0,)
    assert members.notice() is None


def test_who_is_in_the_middle_of_a_batch_goes_on_with_those_who_were_there_and_whoever_came_waits():
    members = Members(generation=3, together={0, 1, 2}, going={1})
    members.gone(2)
    members.asked(Ask(2, 0), 0.0)  # started again
    members.asked(Ask(0, 3, busy=True), 0.0)
    assert members.decree({0, 1, 2}) is None
    members.asked(Ask(1, 3), 0.0)
    assert members.decree({0, 1, 2}) == Roster(4, (0, 1), busy=True)  # who is to go has not gone yet
    assert members.notice() == Notice(4, (1,))
    members.asked(Ask(1, 4), 1.0)
    members.asked(Ask(0, 4), 1.0)
    assert members.decree({0, 1, 2}) == Roster(5, (0, 2))


def test_of_those_who_know_where_the_job_stands_the_furthest_comes_first():
    members = Members(generation=1, together={0, 1, 2})
    members.asked(Ask(0, 1, done=(6, 6)), 0.0)
    members.asked(Ask(1, 1, done=(7, 7)), 0.0)
    members.asked(Ask(2, 1, done=(7, 8)), 0.0)
    members.asked(Ask(3, 0), 0.0)
    assert members.decree({0, 1, 2, 3}) == Roster(2, (2, 1, 0, 3))

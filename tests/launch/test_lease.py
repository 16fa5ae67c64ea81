"""A worker has stopped before the registrar gives its place away, whatever is late; and who is given away stays so."""

import msgspec
import pytest

from gradtide.launch.members import Members
from gradtide.launch.nodes.node import CLOSED
from gradtide.launch.nodes.worker_lines import WorkerLines
from gradtide.launch.registrar import Registrar
from gradtide.processes.job_protocol import Ask, LeaseAnswer, Lost, Question, Roster, Watch, WorkerBeat
from gradtide.processes.lease import WorkerLease

pytestmark = pytest.mark.quick


class Guest:
    """A worker's end of its line."""

    def __init__(self):
        self.hear, self.lost, self.patient, self.told = None, None, False, []

    def name(self, name):
        pass

    def tell(self, message):
        self.told.append(msgspec.json.decode(message, type=LeaseAnswer | Roster | Lost))

    def hang_up(self):
        self.told.append("hung up")

    def say(self, *questions: Question):
        for question in questions:
            self.hear(msgspec.json.encode(question))


@pytest.fixture
def office():
    """Two workers, 0 and 1, who work together."""
    time = {"now": 0.0}
    registrar = Registrar(lambda workers: "ok: ", Members(), lambda: time["now"])
    lines = WorkerLines(registrar, 2.0, lambda: time["now"])
    guests = [Guest(), Guest()]
    for rank, guest in enumerate(guests):
        lines.began(rank, 0)
        lines.greet(guest)
        guest.say(Watch(rank), WorkerBeat(1), Ask(rank, 0))
    registrar.answer({0, 1})
    return time, registrar, lines, guests


def test_a_lease_counts_from_when_the_answered_beat_was_sent():
    lease = WorkerLease()
    assert lease.is_good(100.0), "it was told of none yet"
    first = lease.begin(100.0)
    second = lease.begin(100.5)
    lease.answered(first, 2.0)
    assert lease.is_good(102.0)
    assert not lease.is_good(102.01)
    lease.answered(second, 2.0)
    assert lease.is_good(102.5)
    lease.answered(first, 2.0)
    assert not lease.is_good(102.51), "an old answer does not prolong it"


def test_one_that_stood_still_asks_before_it_goes_on_and_ends_if_nobody_answers():
    lease = WorkerLease()
    lease.answered(lease.begin(10.0), 2.0)
    assert not lease.is_over(10.2)
    assert not lease.is_over(30.0), "it gets a chance"
    assert not lease.is_good(30.0), "and does nothing meanwhile"
    assert [lease.is_over(now_s) for now_s in (30.5, 31.0, 31.5, 32.0, 32.1)] == [False, False, False, False, True]


def test_workers_of_a_lost_node_hear_nothing_and_have_stopped_a_lease_later(office):
    time, _, lines, guests = office
    assert isinstance(guests[1].told[0], LeaseAnswer)
    assert lines.may_live_until_s(1) == 2.0
    time["now"] = 1.5
    lines.condemn([1])
    told = len(guests[1].told)
    guests[1].say(WorkerBeat(2))
    assert len(guests[1].told) == told
    assert lines.may_live_until_s(1) == 2.0
    guests[0].say(WorkerBeat(2))
    assert lines.may_live_until_s(0) == 3.5


def test_one_whose_process_has_closed_its_line_is_not_waited_for(office):
    _, _, lines, guests = office
    guests[1].lost(CLOSED)
    assert lines.may_live_until_s(1) < 0
    guests[0].lost("its connection broke")
    assert lines.may_live_until_s(0) == 2.0


def test_the_living_are_told_who_died_but_not_who_came_to_its_end(office):
    _, registrar, _, guests = office
    registrar.gone(1, died=False)
    assert not any(isinstance(word, Lost) for word in guests[0].told)
    registrar.gone(1)
    assert guests[0].told[-1] == Lost(1, (1,))


def test_a_worker_of_an_earlier_incarnation_is_not_listened_to(office):
    _, registrar, lines, _ = office
    lines.ended(1)
    lines.began(1, 1)
    late = Guest()
    lines.greet(late)
    late.say(Watch(1, 0), WorkerBeat(1), Ask(1, 0))
    assert late.told == []
    assert 1 not in registrar.members.asking


def test_one_that_asks_again_over_a_new_line_gets_the_answer_that_it_missed(office):
    _, registrar, lines, guests = office
    guests[1].lost("its connection broke")
    again = Guest()
    lines.greet(again)
    again.say(Watch(1), Ask(1, 0, again=True))
    assert again.told == [Roster(1, (0, 1))]
    assert registrar.members.asking == {}

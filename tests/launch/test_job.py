"""What becomes of a job: decisions without processes."""

import msgspec
import pytest

from gradtide.launch.job import Again, GoOn, JobState, Show, Stop
from gradtide.launch.messages import Failure
from gradtide.launch.wording import aftermath

pytestmark = pytest.mark.quick


def failure(rank, at_s=1.0, kind="ValueError", fell=False):
    return Failure(rank, at_s, kind, "boom", fell=fell)


def test_the_first_failure_ends_the_job_and_gives_the_exit_code():
    job, first = JobState(3, 3, 0), failure(1)
    assert job.reported(first) == [Show(first), Stop((0, 2))]
    assert job.ended(0, -15, 1.1) == []
    assert job.ended(2, -15, 1.1) == []
    assert job.ended(1, 1, 1.2) == []
    assert not job.running
    assert job.exit_code() == 1
    assert job.failures == [first]


def test_one_that_fell_with_a_peer_is_not_the_first_though_heard_of_first():
    job, fallen = JobState(3, 3, 0), failure(0, kind="PeerLost", fell=True)
    assert job.reported(fallen) == []
    show, stop = job.ended(1, -9, 1.01)
    assert show.failure.rank == 1
    assert "SIGKILL" in show.failure.message
    assert stop == Stop((0, 2))
    assert job.exit_code() == 137
    assert aftermath(job)[0].startswith("worker 0 fell after it: PeerLost")


def test_one_that_fell_is_believed_when_nobody_else_is_to_blame():
    job, fallen = JobState(2, 2, 0), failure(0, at_s=5.0, kind="PeerTimeout", fell=True)
    assert job.reported(fallen) == []
    assert job.later(5.9) == []
    assert job.later(job.deadline_s()) == [Show(fallen), Stop((1,))]


def test_when_all_have_fallen_the_first_of_them_is_shown():
    job, fallen = JobState(2, 2, 0), [failure(0, fell=True), failure(1, fell=True)]
    assert job.reported(fallen[0]) == job.reported(fallen[1]) == job.ended(0, 1, 1.1) == []
    assert job.ended(1, 1, 1.1) == [Show(fallen[0]), Stop(())]


@pytest.mark.parametrize("needed", [1, 2])
def test_a_program_that_was_refused_ends_with_its_line_and_is_not_started_again(needed):
    job, refused = JobState(2, needed, 3), msgspec.structs.replace(failure(1, fell=True), refused=True)
    assert job.reported(refused) == [Show(refused), Stop((0,))]
    assert job.ended(1, 1, 1.1) == job.ended(0, -15, 1.2) == []
    assert not job.running
    assert job.exit_code() == 1


def test_a_dead_worker_is_started_again_once_it_is_gone():
    job, first = JobState(2, 2, 1), failure(1)
    assert job.reported(first) == [Show(first)]
    assert job.ended(1, 1, 1.1) == [Again(1, 1, 1)]
    assert job.running == {0, 1}
    show, stop = job.ended(1, 3, 2.0)
    assert show.failure.exit_code == 3
    assert stop == Stop((0,))


def test_nobody_is_started_again_when_another_has_come_to_the_end():
    enough, short = JobState(2, 1, 5), JobState(2, 2, 5)
    for job in (enough, short):
        job.finished = True
        job.ended(0, 0, 1.0)
    show, go_on = enough.ended(1, -9, 1.1)
    assert (show.failure.rank, go_on) == (1, GoOn(1, 1))
    assert not enough.running
    assert aftermath(enough) == ["done, without worker 1"]
    assert enough.exit_code() == 0
    short.ended(1, -9, 1.1)
    assert not short.running
    assert short.exit_code() == 137, "both were needed"


def test_two_that_fail_at_once_need_two_restarts():
    job, first, second = JobState(3, 3, 1), failure(0), failure(1)
    assert job.reported(first) == [Show(first)]
    assert job.reported(second) == [Show(second), Stop((0, 2))]
    assert job.ended(0, -15, 1.2) == []
    assert job.exit_code() == 1


def test_the_job_goes_on_while_enough_live():
    job, first, second = JobState(4, 3, 0), failure(0), failure(1)
    assert job.reported(first) == [Show(first), GoOn(0, 3)]
    assert job.reported(second) == [Show(second), Stop((0, 2, 3))]


def test_a_refusal_ends_a_job_that_could_go_on_without_that_worker_or_start_it_again():
    for job in (JobState(3, 1, 0), JobState(3, 3, 2)):
        refusal = Failure(1, 1.0, "ConfigError", "say it otherwise", refused=True)
        assert job.reported(refusal) == [Show(refusal), Stop((0, 2))]


def test_a_job_that_lost_some_and_has_enough_left_succeeds_and_says_so():
    job = JobState(2, 1, 0)
    job.ended(0, -9, 1.0)
    job.ended(1, 0, 2.0)
    assert job.exit_code() == 0
    assert aftermath(job) == ["done, without worker 0"]


def test_a_signal_gives_the_exit_code_unless_all_workers_took_it_well():
    gracious, harsh = JobState(1, 1, 0), JobState(1, 1, 0)
    for job, status in ((gracious, 0), (harsh, -2)):
        job.interrupted(2)
        assert job.ended(0, status, 1.0) == []
    assert gracious.exit_code() == 0
    assert harsh.exit_code() == 130


def test_failures_that_are_the_same_are_told_in_one_line():
    job = JobState(3, 3, 0)
    for rank in range(3):
        job.reported(failure(rank))
    assert aftermath(job) == ["workers 1, 2 failed in the same way"]


def test_who_failed_in_the_same_way_somewhere_else_is_told_where():
    job = JobState(3, 3, 0)
    for rank, where in enumerate(("train.py:7", "train.py:7", "train.py:9")):
        job.reported(Failure(rank, 1.0, "Mismatch", "apart", where, fell=rank > 0))
    assert aftermath(job) == ["worker 1 failed in the same way", "worker 2 failed in the same way (train.py:9)"]


def test_a_worker_that_ends_as_it_was_asked_to_has_not_failed_and_another_has():
    job = JobState(4, 4, 0)
    job.reported(failure(1))
    job.ended(0, -15, 1.1)
    job.reported(Failure(2, 1.1, "", "ended with exit code 143", exit_code=143))
    job.ended(3, 5, 1.1)
    assert aftermath(job) == ["worker 3 failed as well: ended with exit code 5"]

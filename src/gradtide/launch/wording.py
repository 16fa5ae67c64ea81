"""How failures are told: the first one in full, those that followed from it in a line."""

import signal

from gradtide.launch.job import Again, GoOn, JobState
from gradtide.launch.messages import Failure

__all__ = ["aftermath", "again", "also_failed", "asked_to_go", "come", "did", "go_on", "in_a_line", "lost"]


def in_a_line(failure: Failure) -> str:
    """`ValueError: boom (script.py:7)`, or how it died."""
    if not failure.kind:
        return failure.message
    first, *_ = failure.message.splitlines() or [""]
    where = f" ({failure.where})" if failure.where else ""
    return f"{failure.kind}: {first}{where}" if first else f"{failure.kind}{where}"


def again(action: Again, max_restarts: int) -> str:
    return f"worker {action.rank} is started again: restart {action.restarts} of {max_restarts}"


def go_on(action: GoOn, needed: int) -> str:
    return f"the job goes on without worker {action.rank}: {action.left} left, {needed} needed"


def come(ranks: list[int]) -> str:
    return f"{_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} started, and will join the others"


def asked_to_go(ranks: list[int]) -> str:
    return f"{_ranks(ranks)} will go at the end of a step"


def lost(failure: Failure) -> str:
    """Of a worker whose job goes on."""
    return f"worker {failure.rank} {did(failure)}"


def also_failed(job: JobState) -> list[Failure]:
    """Those that failed for another reason than the first, and not because it did."""
    if job.cause is None:
        return []
    first = in_a_line(job.cause)
    return [other for other in job.failures if other.kind and not other.fell and in_a_line(other) != first]


def aftermath(job: JobState) -> list[str]:
    """What is said when all is over: who fell after the first, and last of all what that was."""
    if job.cause is not None:
        return [*_others(job, job.cause), f"worker {job.cause.rank} {did(job.cause)}"]
    if job.signalled:
        stopped = [f"worker {failure.rank}: {in_a_line(failure)}" for failure in job.failures if failure.kind]
        return [*stopped, f"ended by {signal.Signals(job.signalled).name}"]
    return [f"done, without {_ranks(sorted(job.lost))}"] if job.lost else []


def did(failure: Failure) -> str:
    return f"failed: {in_a_line(failure)}" if failure.kind else failure.message


def _others(job: JobState, cause: Failure) -> list[str]:
    others = [failure for failure in job.failures if failure is not cause and failure.rank != cause.rank]
    same = sorted({failure.rank for failure in others if in_a_line(failure) == in_a_line(cause)})
    fell = [failure for failure in others if failure.fell and failure.rank not in same]
    lines = [f"{_ranks(same)} failed in the same way"] if same else []
    return lines + [f"worker {failure.rank} fell after it: {in_a_line(failure)}" for failure in fell]


def _ranks(ranks: list[int]) -> str:
    return f"worker {ranks[0]}" if len(ranks) == 1 else f"workers {', '.join(map(str, ranks))}"

"""How failures are told: the first one in full, those that followed from it in a line."""

import signal

from gradtide.launch.job import Again, GoOn, JobState
from gradtide.launch.messages import Failure

__all__ = ["IN_THE_SAME_WAY", "aftermath", "again", "asked_to_go", "come", "failed", "go_on", "in_a_line"]

IN_THE_SAME_WAY = "failed in the same way"


def in_a_line(failure: Failure) -> str:
    """`ValueError: boom (script.py:7)`, or how it died."""
    where = f" ({failure.where})" if failure.where else ""
    if not failure.kind:
        return f"{failure.message}{where}"
    first, *_ = failure.message.splitlines() or [""]
    return f"{failure.kind}: {first}{where}" if first else f"{failure.kind}{where}"


def again(action: Again, max_restarts: int) -> str:
    return f"worker {action.rank} is started again: restart {action.restarts} of {max_restarts}"


def go_on(action: GoOn, needed: int) -> str:
    return f"the job goes on without worker {action.rank}: {action.left} left, {needed} needed"


def come(ranks: list[int]) -> str:
    return f"{_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} started, and will join the others"


def asked_to_go(ranks: list[int]) -> str:
    return f"{_ranks(ranks)} will go at the end of a step"


def failed(failure: Failure, last_line: str) -> str:
    """Who, with which exit code, and the last that it said: its error, or else the last line that it wrote."""
    if failure.kind:
        return f"worker {failure.rank} failed with exit code {failure.exit_code}: {in_a_line(failure)}"
    said = last_line and last_line not in failure.message
    return f"worker {failure.rank} {in_a_line(failure)}{f'; its last line: {last_line}' if said else ''}"


def aftermath(job: JobState) -> list[str]:
    """What is said when all is over, a line each: who failed besides the first."""
    if job.cause is not None:
        return _others(job, job.cause)
    if job.signalled:
        stopped = [f"worker {failure.rank}: {in_a_line(failure)}" for failure in job.failures if failure.kind]
        return [*stopped, f"ended by {signal.Signals(job.signalled).name}"]
    return [f"done, without {_ranks(sorted(job.lost))}"] if job.lost else []


def _others(job: JobState, cause: Failure) -> list[str]:
    others = [failure for failure in job.failures if failure is not cause and failure.rank != cause.rank]
    same = [one for one in others if (one.kind, one.message) == (cause.kind, cause.message)]
    lines = []
    for where in dict.fromkeys(one.where for one in same):
        ranks = sorted({one.rank for one in same if one.where == where})
        lines.append(f"{_ranks(ranks)} {IN_THE_SAME_WAY}{f' ({where})' if where not in ('', cause.where) else ''}")
    for failure in others:
        if failure not in same:
            how = "fell after it" if failure.fell else "failed as well"
            lines.append(f"worker {failure.rank} {how}: {in_a_line(failure)}")
    return lines


def _ranks(ranks: list[int]) -> str:
    return f"worker {ranks[0]}" if len(ranks) == 1 else f"workers {', '.join(map(str, ranks))}"

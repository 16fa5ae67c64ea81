"""Bytes that torch allocates on the CPU while something runs, as torch.profiler saw them."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile

__all__ = ["peak_bytes"]


def peak_bytes(action: Callable[[], object]) -> int:
    """The most that was allocated at once, beside what was there before, by the thread that calls.

    torch.profiler sees no other: what another thread allocates is missing, and what one frees seems to stay for ever.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        action()
    results = seen.profiler.kineto_results if seen.profiler is not None else None
    assert results is not None
    changes = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    now = most = 0
    for _, change in sorted(changes, key=lambda one: one[0]):
        now += change
        most = max(most, now)
    return most

"""Which steps stay in a trace of bounded size: the first, the last, and every k-th in between."""

from dataclasses import dataclass

__all__ = ["KeptSteps", "keep_steps"]


@dataclass(frozen=True, slots=True)
class KeptSteps:
    """Steps are numbered from `first` to `last`."""

    first: int
    last: int
    edge: int  # how many are kept at each end
    stride: int  # a power of two, as in the logs of servers (bounded_log.py), so that arrows find both their ends

    def __contains__(self, step: int) -> bool:
        return step < self.first + self.edge or step > self.last - self.edge or step % self.stride == 0

    def describe(self) -> str:
        if self.stride == 1:
            return f"all steps, {self.first} to {self.last}"
        ends = f"the first {self.edge} and the last {self.edge} of steps {self.first} to {self.last}"
        return f"{ends}, and one of {self.stride} in between"


def keep_steps(first: int, last: int, most: int) -> KeptSteps:
    """No more than so many, but for one at each end: a third at the beginning, a third at the end, the rest between."""
    count = last - first + 1
    if count <= most:
        return KeptSteps(first, last, count, 1)
    edge = max(1, most // 3)
    stride = 2
    while (count - 2 * edge) / stride > max(1, most - 2 * edge):
        stride *= 2
    return KeptSteps(first, last, edge, stride)

"""Who takes how much of a batch: shares that follow measured speed, and don't follow noise.

Everybody is told everybody's estimate and draws the same conclusion from it: no shares are sent. They are changed only
where that saves more than could be an error of the estimates.
"""

from collections.abc import Sequence
from statistics import median

from gradtide.fair_share import Cost, even_shares, fair_shares, longest_s
from gradtide.parallel.part_costs import Estimate

__all__ = ["OFTEN", "SELDOM", "Balance"]

OFTEN, SELDOM = 10, 8  # measurements after which, and how many batches apart, estimates are compared less often
_YOUNG = 3  # batches left out between looks when a speed has changed: what noise looks like now and then
_KNOWN_SIZES = 256
_SHOWN = 0.01  # of a part's time: less that is fixed is not worth a word
_FIRST = 2  # measurements of everybody, before the first shares that are not even
_WORTH = 0.02  # what a change of shares has to save
_SURE, _SURER = 2.5, 3.0  # and in standard errors of the estimates: from shares that are not even, and from even ones


class _Cut:
    """Batches cut by these costs: most are of the same size."""

    def __init__(self, costs: tuple[Cost, ...]) -> None:
        self.costs = costs
        self._known: dict[tuple[int, int], tuple[int, ...]] = {}

    def of(self, samples: int, least: int) -> tuple[int, ...]:
        found = self._known.get((samples, least))
        if found is None:
            if len(self._known) >= _KNOWN_SIZES:
                self._known = {}
            found = self._known[samples, least] = fair_shares(self.costs, samples, least)
        return found


class Balance:
    """The shares of some workers, or of the devices of one: what was decided last, and why."""

    def __init__(self, who: str = "worker") -> None:
        self._who = who
        self._cut: _Cut | None = None  # by which batches are cut; None: evenly
        self._estimates: tuple[Estimate | None, ...] = ()
        self._batch = (0, 1)  # samples and the least part of the batch that was decided for
        self._looks = 0  # decisions so far, with those who are there
        self.wait = 0  # batches until estimates are compared again

    def shares(self, samples: int, parts: int, least: int = 1) -> tuple[int, ...]:
        """How a batch is cut, in the order of the workers or devices."""
        cut = self._cut  # a thread that reads ahead may ask while another decides
        return even_shares(samples, parts) if cut is None or len(cut.costs) != parts else cut.of(samples, least)

    def forget(self) -> None:
        """Others work on it from now on: even shares, until their estimates are compared."""
        self._cut, self._estimates, self.wait, self._looks = None, (), 0, 0

    def decide(self, estimates: Sequence[Estimate | None], samples: int, least: int = 1) -> bool:
        """Takes everybody's estimates before a batch: whether the shares are others now. Who has none is taken for an
        average one."""
        known = [estimate for estimate in estimates if estimate is not None]
        young = len(known) < len(estimates) or min(one.measurements for one in known) < OFTEN
        self._looks += 1
        self.wait = (0 if self._looks <= OFTEN else _YOUNG) if young else SELDOM - 1
        self._estimates, self._batch = tuple(estimates), (samples, least)
        if not known or min(one.measurements for one in known) < _FIRST:
            return False
        costs = _costs(estimates, known)
        now, then = self.shares(samples, len(costs), least), fair_shares(costs, samples, least)
        saved = 1.0 - longest_s(costs, then) / longest_s(costs, now)
        sure = _SURER if self._cut is None else _SURE
        if saved <= max(_WORTH, sure * max(one.doubt for one in known)):
            return False
        self._cut, self.wait = _Cut(costs), self.wait if young else SELDOM // 2
        return then != now

    @property
    def measured(self) -> int:
        """How many workers or devices have been compared."""
        return len(self._estimates)

    def explain(self) -> str:
        """Who takes what, and why, in a sentence."""
        if not any(self._estimates):
            return f"balance: each {self._who} takes an equal share, until it is measured"
        samples, least = self._batch
        shares = self.shares(samples, len(self._estimates), least)
        took = [
            _took(self._who, *one, samples) for one in zip(range(len(shares)), shares, self._estimates, strict=True)
        ]
        return f"balance: {', '.join(took)}"


def _costs(estimates: Sequence[Estimate | None], known: Sequence[Estimate]) -> tuple[Cost, ...]:
    usual = Cost(median(one.cost.fixed_s for one in known), median(one.cost.sample_s for one in known))
    return tuple(usual if one is None else one.cost for one in estimates)


def _took(who: str, number: int, share: int, estimate: Estimate | None, samples: int) -> str:
    each = "not measured yet"
    if estimate is not None:
        cost = estimate.cost
        each = f"{cost.sample_s * 1e3:.3g} ms a sample"
        if cost.fixed_s > _SHOWN * cost.of(share):
            each += f" and {cost.fixed_s * 1e3:.3g} ms"
    return f"{who} {number} takes {share} of {samples} samples ({each})"

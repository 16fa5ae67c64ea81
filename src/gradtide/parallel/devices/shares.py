"""Parts of a batch that follow the measured speed of the devices of one process."""

from collections.abc import Sequence

from gradtide.events import Emit, Event, GradientsReady, SharesChanged
from gradtide.parallel.balance import Balance
from gradtide.parallel.devices.batches import DeviceBatch
from gradtide.parallel.devices.pool import DevicePool
from gradtide.parallel.part_costs import CostMeter

__all__ = ["DeviceShares"]


class DeviceShares:
    """What each device takes of a batch. Batches are cut by it as they are read, and that may be a batch ahead."""

    def __init__(self, pool: DevicePool, least: int = 1) -> None:
        self._pool, self._least = pool, least
        self._meters = [CostMeter() for _ in pool.devices]
        self._balance = Balance("device")

    def sizes(self, samples: int) -> tuple[int, ...] | None:
        """Of the parts of a batch; None for one that is too small to be cut by speed."""
        if samples < self._least * len(self._meters):
            return None
        return self._balance.shares(samples, len(self._meters), self._least)

    def watch(self, parts: Sequence[DeviceBatch], emit: Emit) -> Emit:
        """An observer of one step, which is on these parts: when backward is done the pool knows how long each took."""
        done = len(parts) < len(self._meters)

        def observe(event: Event) -> None:
            nonlocal done
            if isinstance(event, GradientsReady) and not done:
                done = True
                self._measured([len(part.inputs) for part in parts], emit)
            emit(event)

        return observe

    def _measured(self, sizes: Sequence[int], emit: Emit) -> None:
        for meter, samples, seconds in zip(self._meters, sizes, self._pool.seconds, strict=True):
            meter.add(samples, seconds)
        balance, samples = self._balance, sum(sizes)
        if balance.wait:
            balance.wait -= 1
        elif balance.decide([meter.estimate() for meter in self._meters], samples, self._least):
            emit(SharesChanged("device", list(balance.shares(samples, len(sizes), self._least)), balance.explain()))

    def explain(self) -> str:
        return self._balance.explain()

"""What a step takes when workers meet at every step, every so many, or never.

A step that is taken together is its computation and what of the synchronisation is not hidden behind backward.
Gradients that leave while backward goes on have its time, two thirds of a step's computation: backward computes two
gradients of every layer where forward computes one result. Who meets every so many steps hides nothing, and pays once
for all of them.
"""

from dataclasses import dataclass

from gradtide.errors import ConfigError
from gradtide.schedule.explain import short_seconds, short_size

__all__ = ["NOT_WORTH", "StepForecast", "forecast_step"]

NOT_WORTH = 0.05  # a smaller share of a step than that is nothing to save
_BACKWARD = 2 / 3


@dataclass(frozen=True, slots=True)
class StepForecast:
    """Seconds and bytes of a step."""

    every: int
    alone_s: float  # of workers that never meet
    together_s: float
    local_s: float  # on average over a window
    together_bytes: float
    local_bytes: float

    @property
    def share(self) -> float:
        """What synchronising takes of a step that is taken together."""
        return 1 - self.alone_s / self.together_s

    @property
    def is_worth_it(self) -> bool:
        return self.share >= NOT_WORTH and self.local_s < self.together_s

    def explain(self) -> str:
        """In one sentence: what is saved, or why it is not worth it."""
        share = "less than 1 %" if self.share < 0.01 else f"{100 * self.share:.0f} %"
        takes = f"synchronising takes {share} of a step ({short_seconds(self.together_s)})"
        local = (
            f"Local({self.every}) {short_seconds(self.local_s)} and {short_size(_three(self.local_bytes))} a step "
            f"instead of {short_seconds(self.together_s)} and {short_size(_three(self.together_bytes))}"
        )
        if not self.is_worth_it:
            return f"{takes}, so meeting less often is not worth it: {local}"
        return f"{takes}: {local}, {self.together_s / self.local_s:.2f} times as fast"


def forecast_step(compute_s: float, sync_s: float, sync_bytes: float, every: int, *, overlap: bool) -> StepForecast:
    """`sync_s` and `sync_bytes`: of one synchronisation of all gradients, or of all parameters, which are as many;
    `overlap`: whether gradients leave while backward goes on."""
    if every < 1:
        raise ConfigError(f"every {every} steps makes no sense; workers meet every 1 step or more")
    if compute_s <= 0:
        raise ConfigError("a step computes for some time; give it, as 30ms")
    hidden_s = min(sync_s, _BACKWARD * compute_s) if overlap else 0.0
    together_s = compute_s + sync_s - hidden_s
    return StepForecast(every, compute_s, together_s, compute_s + sync_s / every, sync_bytes, sync_bytes / every)


def _three(size: float) -> float:
    return float(f"{size:.3g}")

"""Whole gradients, smaller messages, fewer rounds, or both: what a step takes with each, and which is worth it.

Bandwidth alone counts: what workers send each other at one host's rate, and what codecs compute. Whole and compressed
gradients leave while backward goes on; who meets every few steps hides nothing.
"""

from dataclasses import dataclass

from gradtide.schedule.predict.less_often import forecast_step

__all__ = ["FrugalChoice", "frugal_choice"]

WHOLE, SMALLER, FEWER, BOTH = "whole gradients", "int8", "Local(8)", "Local(8) and int8"
EVERY = 8
_NEAR = 1.5  # times the fastest: what is simpler is good enough
_CODEC_BYTES_PER_S = 1.25e9  # of gradients, by one core: the least that codecs are held to


@dataclass(frozen=True, slots=True)
class FrugalChoice:
    """Seconds of a step with each, from the simplest on, and the one to take."""

    seconds: dict[str, float]
    take: str

    def explain(self) -> str:
        return f"{self.take}: {self.seconds[self.take]:.3g} s a step, and {self.seconds[WHOLE]:.3g} with {WHOLE}"


def frugal_choice(gradient_bytes: float, wire_bytes_per_s: float, compute_s: float, workers: int = 2) -> FrugalChoice:
    """On so many hosts of one worker each. Of those whose step is at most half as long again as the fastest's, it takes
    the simplest.

    >>> frugal_choice(80e6, 12.5e6, 0.16).explain()
    'Local(8) and int8: 0.384 s a step, and 6.45 with whole gradients'
    """
    whole_s = 2 * (workers - 1) / workers * gradient_bytes / wire_bytes_per_s
    codec_s = (1 + workers) * gradient_bytes / _CODEC_BYTES_PER_S  # our own encoded, everybody's decoded
    smaller_s = (workers - 1) * gradient_bytes / 4 / wire_bytes_per_s + codec_s
    whole = forecast_step(compute_s, whole_s, gradient_bytes, EVERY, overlap=True)
    smaller = forecast_step(compute_s, smaller_s, gradient_bytes / 4, EVERY, overlap=True)
    seconds = {
        WHOLE: whole.together_s,
        SMALLER: smaller.together_s,
        FEWER: whole.local_s,
        BOTH: smaller.local_s,
    }
    fastest_s = min(seconds.values())
    return FrugalChoice(seconds, next(name for name, step_s in seconds.items() if step_s <= _NEAR * fastest_s))

"""What compressed gradients save of a synchronisation, or cost: bytes against the time that codecs take."""

from dataclasses import dataclass

__all__ = ["CODEC_BYTES_PER_S", "CompressForecast", "codec_seconds"]

CODEC_BYTES_PER_S = 1.25e9  # of gradients, by one core: the least that codecs are held to
_WORTH = 0.8  # of the time without


def codec_seconds(size_bytes: float, workers: int, *, added_up: bool) -> float:
    """That a worker encodes and decodes: its own gradients and those of all; or, where they are added up compressed,
    the sum."""
    return size_bytes * (2 if added_up else 1 + workers) / CODEC_BYTES_PER_S


@dataclass(frozen=True, slots=True)
class CompressForecast:
    """One synchronisation of all gradients, whole and compressed."""

    codec: str
    whole_s: float
    whole_bytes: float  # on the wire
    links_s: float  # compressed, what links take
    codec_s: float  # and what encoding and decoding takes
    small_bytes: float

    @property
    def small_s(self) -> float:
        return self.links_s + self.codec_s

    @property
    def is_worth_it(self) -> bool:
        return self.small_s <= _WORTH * self.whole_s

    def explain(self) -> str:
        times = f"{self.small_s / self.whole_s:.2g} times as long as whole gradients"
        if self.is_worth_it:
            return f"{self.codec} takes {times}"
        why = "codecs take longer than the links" if self.codec_s > self.whole_s else "it saves too few bytes"
        return f"{self.codec} is not worth it: it takes {times}, since {why}"

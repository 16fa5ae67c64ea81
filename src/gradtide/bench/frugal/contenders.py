"""Who takes part in `bench frugal --compress`."""

from collections.abc import Sequence
from dataclasses import dataclass

from gradtide.bench.frugal.hooks import HOOKS

__all__ = ["DENSE", "NEVER", "SmallerContender", "contenders_of"]

NEVER, DENSE = "never synchronised", "whole gradients"
_OVER_SERVERS = ("int8", "topk")


@dataclass(frozen=True, slots=True)
class SmallerContender:
    """One way to send gradients."""

    name: str
    codec: str | None = None
    over_servers: bool = False
    hook: bool = False  # torch's own


def contenders_of(codecs: Sequence[str]) -> list[SmallerContender]:
    """Those who never meet come first: they are the measure. torch's hooks stand beside the codecs that they are."""
    found = [SmallerContender(NEVER), SmallerContender(DENSE)]
    for codec in codecs:
        kind = codec.partition(":")[0]
        found.append(SmallerContender(codec, codec))
        if kind in _OVER_SERVERS:
            found.append(SmallerContender(f"{codec} over servers", codec, over_servers=True))
        found += [SmallerContender(name, codec, hook=True) for name, (_, like) in HOOKS.items() if like == kind]
    return found

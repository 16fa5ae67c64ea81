"""What happens in a run, by its seed: pure data."""

from dataclasses import dataclass
from random import Random

__all__ = ["Mishap", "Scene", "scene_of"]

KINDS = ("kill node", "kill agent", "cut", "cut together", "stall", "late", "kill worker", "new node", "orphans")


@dataclass(frozen=True, slots=True)
class Mishap:
    """At that time, to those nodes; for so long, where it ends by itself."""

    at_s: float
    kind: str
    nodes: tuple[int, ...]
    for_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Scene:
    """A job of `workers` on `nodes`, of which each takes `slots`."""

    seed: int
    nodes: int
    workers: int
    slots: int
    needed: int
    max_restarts: int
    steps: int
    mishaps: tuple[Mishap, ...]


def scene_of(seed: int, nodes: int = 16, workers: int = 64) -> Scene:
    """Some jobs are packed on few of the nodes, so that all who know where the job stands can be cut off together."""
    draw = Random(f"fleet {seed}")
    packed = draw.random() < 0.4
    if packed:
        workers = draw.choice((1, 2, 4, 8))
    slots = draw.choice((workers, -(-workers // 2))) if packed else -(-workers // nodes) + draw.choice((0, 0, 1, 2))
    restarts = draw.choice((0, 4, 1000))
    mishaps = []
    for _ in range(draw.randrange(1, 9)):
        kind = draw.choice(KINDS)
        used = max(1, -(-workers // slots))
        pool = range(min(nodes, used + 1)) if draw.random() < 0.7 else range(nodes)
        count = min(len(pool), draw.choice((2, 3, 4, 16))) if kind == "cut together" else 1
        hit = tuple(sorted(draw.sample(list(pool), count)))
        mishaps.append(Mishap(draw.uniform(0.0, 25.0), kind, hit, draw.choice((0.5, 1.5, 2.5, 4.0, 15.0))))
    needed = 1 if draw.random() < 0.8 else max(1, workers // 2)
    if needed == workers and not restarts:
        restarts = 4  # else the first mishap is the end
    steps = draw.randrange(40, 120)
    return Scene(seed, nodes, workers, slots, needed, restarts, steps, tuple(sorted(mishaps, key=lambda one: one.at_s)))

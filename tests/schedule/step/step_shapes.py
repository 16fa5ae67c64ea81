"""Shapes of steps: plain pipelines, and random ones of every kind."""

import random
from dataclasses import replace

from gradtide.schedule.step.shape import (
    Crossing,
    ExchangeShape,
    Seconds,
    SegmentShape,
    StageShape,
    StepShape,
    Tie,
)

FORWARD, BACKWARD = 1.0, 2.0
KINDS = ("gather", "collect", "sum", "spread", "slice", "halo")


def pipeline(rows: int, micros: int, order: str = "1f1b", per_row: int = 1, samples: int = 1) -> StepShape:
    """Identical stages, dealt round-robin over rows of one device each."""
    segment = SegmentShape(forward=Seconds(0, FORWARD), backward=Seconds(0, BACKWARD), saved_bytes=4, input_bytes=1)
    count = rows * per_row
    return StepShape(
        tuple(StageShape((at % rows,), 1, (segment,), gradient_bytes=8) for at in range(count)),
        tuple(Crossing(at, at + 1, (f"v{at}",), 12, 20) for at in range(count - 1)),
        (samples,) * micros,
        order,  # type: ignore[arg-type]
    )


def mixed() -> StepShape:
    """Copies to shards to copies again, a skip, a tie, exchanges of many kinds, uneven micro-batches, a norm."""
    first = StageShape((0, 1), 1, (_segment(),), gradient_bytes=30)
    second = StageShape(
        (2, 3),
        2,
        (
            SegmentShape((ExchangeShape("spread", "a", 0, 3),), Seconds(0, 1), Seconds(0, 2), saved_bytes=5),
            SegmentShape((ExchangeShape("gather", "b", 2, 4),), Seconds(0, 1), Seconds(0, 2), saved_bytes=6),
        ),
        after=(ExchangeShape("sum", "c", 7),),
        gradient_bytes=40,
    )
    third = StageShape((0, 1), 1, (_segment(),), gradient_bytes=30)
    crossings = (Crossing(0, 1, ("x",), 4, 4), Crossing(1, 2, ("y",), 8, 8), Crossing(0, 2, ("z",), 2, 2))
    return StepShape((first, second, third), crossings, (3, 0, 2), "1f1b", ties=(Tie("w", (0, 2), 10),), clip=True)


def random_shape(seed: int, order: str | None = None) -> StepShape:
    """Anything that may be asked for: rows of copies and shards, blocks of stages, skips, frozen stages, ties."""
    chance = random.Random(seed)
    order = order or chance.choice(("gpipe", "1f1b", "zero-bubble"))
    rows = _rows(chance)
    homes = [*range(len(rows)), *chance.choices(range(len(rows)), k=chance.randint(0, 3))]
    if order == "zero-bubble":  # consecutive stages on each row
        homes.sort()
    frozen = chance.choice((0, 0, 0, 1, 2))
    stages = tuple(_stage(chance, rows[home], at >= frozen) for at, home in enumerate(homes))
    crossings = [
        Crossing(at, at + 1, (f"v{at}",), chance.randint(0, 9), chance.randint(1, 9)) for at in range(len(stages) - 1)
    ]
    skips = [(a, b) for a in range(len(stages)) for b in range(a + 2, len(stages)) if chance.random() < 0.25]
    crossings += [Crossing(a, b, ("skip",), chance.randint(1, 9), chance.choice((0, 5))) for a, b in skips]
    crossings = [
        replace(one, batched=stages[one.source].copies != stages[one.target].copies or chance.random() < 0.8)
        for one in crossings
    ]
    micros = tuple(chance.randint(0, 5) for _ in range(chance.randint(1, 5)))
    trained = [at for at, stage in enumerate(stages) if stage.gradient_bytes]
    ties = (
        (Tie("t", tuple(sorted(chance.sample(trained, min(2, len(trained))))), 1),)
        if trained and chance.random() < 0.5
        else ()
    )
    speeds = tuple(chance.choice((0.5, 1.0, 2.0)) for row in rows for _ in row) if chance.random() < 0.5 else ()
    return StepShape(stages, tuple(crossings), micros, order, ties, chance.random() < 0.3, speeds)  # type: ignore[arg-type]


def _rows(chance: random.Random) -> list[list[int]]:
    rows, device = [], 0
    for _ in range(chance.randint(1, 3)):
        count = chance.choice((1, 1, 2, 3, 4))
        rows.append(list(range(device, device + count)))
        device += count
    return rows


def _stage(chance: random.Random, row: list[int], trained: bool) -> StageShape:
    shards = chance.choice([k for k in range(1, len(row) + 1) if not len(row) % k])
    devices = row[:]
    if chance.random() < 0.3:
        chance.shuffle(devices)
    segments = tuple(_segment(chance, shards) for _ in range(chance.randint(1, 3)))
    after = (_exchange(chance),) if shards > 1 and chance.random() < 0.7 else ()
    gradients = chance.choice((0, 16, 16)) if trained else 0
    update = Seconds(chance.random())
    return StageShape(tuple(devices), shards, segments, after, 16, gradients, 8, chance.random() < 0.3, trained, update)


def _segment(chance: random.Random | None = None, shards: int = 1) -> SegmentShape:
    chance = chance or random.Random(0)
    before = tuple(_exchange(chance) for _ in range(chance.randint(0, 2))) if shards > 1 else ()
    return SegmentShape(before, Seconds(0.1, 1), Seconds(0.2, 2), 0.4, saved_bytes=3, input_bytes=1)


def _exchange(chance: random.Random) -> ExchangeShape:
    return ExchangeShape(chance.choice(KINDS), "e", chance.randint(1, 5), chance.choice((0, 3)))  # type: ignore[arg-type]

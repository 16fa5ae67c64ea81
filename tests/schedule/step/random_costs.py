"""Models and devices at random, for the tests of the search."""

import random

from gradtide.schedule.step.costs import CutWay, ModelCosts, UnitCost, Value
from gradtide.schedule.step.shape import NO_OVERHEADS, Handling, Overheads, Seconds
from gradtide.topology.model import Link, Node, NodeKind, Topology

COLUMNS = CutWay("columns", "whole", "sliced", gradient="partial")
ROWS = CutWay("rows", "sliced", "partial")
ELEMENTWISE = CutWay("same", "any", "any")
HALO = CutWay("channels", "sliced", "sliced", halo_bytes=10.0)


def random_model(seed: int, units: int, *, skips: bool = False, tied: bool = False, samples: int = 32) -> ModelCosts:
    """A chain of units that differ in all they can; with skips some read what was made long before."""
    draw = random.Random(seed)
    values = [Value("x", 100.0 * draw.randint(1, 9), has_gradient=False)]
    found = []
    for at in range(units):
        reads = (f"v{at - 1}" if at else "x",)
        if skips and at > 2 and draw.random() < 0.4:
            reads += (f"v{draw.randrange(at - 1)}",)
        ways = tuple(way for way in (COLUMNS, ROWS, ELEMENTWISE, HALO) if draw.random() < 0.5)
        size = draw.choice([0, 0, draw.randint(1, 100) * 1000])
        values.append(Value(f"v{at}", float(draw.randint(1, 100) * 10), has_gradient=draw.random() < 0.9))
        found.append(
            UnitCost(
                f"u{at}",
                tuple(dict.fromkeys(reads)),
                (f"v{at}",),
                Seconds(draw.choice([0.0, 1e-5]), draw.uniform(1e-6, 9e-6)),
                Seconds(draw.choice([0.0, 2e-5]), draw.uniform(2e-6, 2e-5)),
                saved_bytes=float(draw.randint(0, 200) * 10),
                parameter_bytes=size,
                trained_bytes=size,
                state_per_byte=draw.choice([0.0, 1.0, 2.0]),
                update_s=size * 1e-10,
                for_weights=draw.choice([0.0, 0.5]),
                ways=ways,
            )
        )
    ties, tied_units = (), ()
    if tied and units > 2:
        holders = tuple(at for at, unit in enumerate(found) if unit.parameter_bytes >= 1000)[:2]
        if len(holders) == 2:
            ties, tied_units = (("shared", 1000),), (holders,)
    own = Overheads(2e-5, *(Handling(1e-5, 1e-9) for _ in range(4)), 1e-9, 3e-5, 1e-4) if seed % 2 else NO_OVERHEADS
    return ModelCosts(tuple(found), tuple(values), ("x",), (f"v{units - 1}",), samples, ties, tied_units, own)


def alike(units, *, parameters=0, size=1e-6, samples=16):
    """Units that all take 1 s forward and 2 s back a sample."""
    found = tuple(
        UnitCost(
            f"u{at}",
            (f"v{at - 1}" if at else "x",),
            (f"v{at}",),
            Seconds(0.0, 1.0),
            Seconds(0.0, 2.0),
            saved_bytes=10.0,
            parameter_bytes=parameters,
            trained_bytes=parameters or 1,
        )
        for at in range(units)
    )
    values = (Value("x", 0.0, has_gradient=False), *(Value(f"v{at}", size) for at in range(units)))
    return ModelCosts(found, values, ("x",), (f"v{units - 1}",), samples)


def wired(count: int, bytes_per_s: float = 1e9, latency_s: float = 1e-6) -> Topology:
    """Devices around one switch."""
    names = [f"d{at}" for at in range(count)]
    nodes = (*(Node(name, NodeKind.DEVICE, "host") for name in names), Node("hub", NodeKind.SWITCH, "host"))
    links = [Link(name, "hub", bytes_per_s, latency_s / 2) for name in names]
    links += [Link("hub", name, bytes_per_s, latency_s / 2) for name in names]
    return Topology(f"hub:{count}", nodes, tuple(links))


def unevenly_wired(seed: int, count: int) -> Topology:
    """Devices with a wire of their own between each two, of different widths."""
    draw = random.Random(seed)
    names = [f"d{at}" for at in range(count)]
    links = [
        Link(a, b, draw.choice([1e8, 3e8, 1e9]), draw.choice([1e-6, 5e-6])) for a in names for b in names if a != b
    ]
    return Topology(f"pairs:{count}", tuple(Node(name, NodeKind.DEVICE, "host") for name in names), tuple(links))

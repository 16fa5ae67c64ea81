"""Which wires to make faster first: what a tenth more on each kind of wire takes off the lower bound."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from gradtide.schedule.bound import bound
from gradtide.schedule.request import Request
from gradtide.topology.kinds import wire_kinds
from gradtide.topology.model import Topology

__all__ = ["upgrade_text", "worth_of_each"]

MORE = 0.1
LEAST = 0.0005  # below that a worth is called nothing


def worth_of_each(
    request: Request, more: float = MORE, seconds_of: Callable[[Request], float] | None = None
) -> dict[str, float]:
    """The part of the lower bound that goes away if all wires of a kind get that much more, the most first.

    That is the kind's shadow price, taken by solving the bound again, so it holds for any bound (`seconds_of`, if
    another is meant) and for steps as large as this. A kind none of whose wires is tight is worth nothing: the
    bound's proof does not use its capacity.
    """
    lower = bound(request)
    before = seconds_of(request) if seconds_of else lower.seconds
    tight = _tight_links(request.topology, lower.tight) if seconds_of is None else set()
    worth: dict[str, float] = {}
    for kind, numbers in wire_kinds(request.topology.links).items():
        if tight and tight.isdisjoint(numbers):
            worth[kind] = 0.0
            continue
        faster = replace(request, topology=_faster(request.topology, set(numbers), 1 + more))
        after = seconds_of(faster) if seconds_of else bound(faster).seconds
        worth[kind] = max(0.0, 1 - after / before) if before else 0.0
    return dict(sorted(worth.items(), key=lambda item: (-round(item[1], 9), item[0])))


def _faster(topology: Topology, numbers: set[int], times: float) -> Topology:
    links = tuple(
        replace(link, bytes_per_s=link.bytes_per_s * times) if number in numbers else link
        for number, link in enumerate(topology.links)
    )
    return replace(topology, links=links)


def _tight_links(topology: Topology, tight: tuple[str, ...]) -> set[int]:
    names, links = set(tight), enumerate(topology.links)
    return {number for number, link in links if f"{link.source}->{link.target}" in names or link.wire in names}


def upgrade_text(worth: Mapping[str, float], more: float = MORE) -> str:
    """In words: "10 % more on leaf-spine is worth 7.0 %", the most valuable first."""
    rows = sorted(((value, kind) for kind, value in worth.items() if value >= LEAST), key=lambda row: (-row[0], row[1]))
    nothing = sorted(kind for kind, value in worth.items() if value < LEAST)
    if not rows:
        return f"{100 * more:g} % more on any one kind of wire is worth nothing: several kinds are tight at once."
    first, *others = [f"{100 * more:g} % more on {kind} is worth {100 * value:.1f} %" for value, kind in rows]
    text = "; ".join([f"Upgrade {rows[0][1]} first: {first}", *others])
    return f"{text}; on {', '.join(nothing)} nothing." if nothing else f"{text}."

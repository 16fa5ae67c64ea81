"""Stages on the same devices are a row. What a row does, one thing after the other, is a list of turns."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gradtide.errors import ScheduleError
from gradtide.schedule.step.shape import StepShape

__all__ = ["Rows", "StageTurn", "TurnKind", "rows_of", "turns"]

TurnKind = Literal["forward", "backward", "inputs", "weights"]


class StageTurn(NamedTuple):
    """A row computes a stage for a micro-batch."""

    kind: TurnKind
    stage: int
    micro: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Blocks of consecutive stages on one row. A block runs as one: its stages have nobody to wait for in between."""

    blocks: tuple[tuple[int, ...], ...]  # their stages, in order
    row: tuple[int, ...]  # of each block
    count: int

    def of(self, row: int) -> list[int]:
        """The blocks on a row."""
        return [block for block, home in enumerate(self.row) if home == row]

    @property
    def round_robin(self) -> bool:
        return all(row == block % self.count for block, row in enumerate(self.row)) and not len(self.row) % self.count


def rows_of(shape: StepShape) -> Rows:
    homes: dict[frozenset[int], int] = {}
    blocks: list[list[int]] = []
    row: list[int] = []
    for at, stage in enumerate(shape.stages):
        devices = frozenset(stage.devices)
        for other in homes:
            if devices & other and devices != other:
                raise ScheduleError(
                    f"stage {at}: shares device {min(devices & other)} with a stage on other devices; two stages have "
                    "all devices in common or none"
                )
        home = homes.setdefault(devices, len(homes))
        if row and row[-1] == home:
            blocks[-1].append(at)
        else:
            blocks.append([at])
            row.append(home)
    return Rows(tuple(map(tuple, blocks)), tuple(row), len(homes))


def turns(rows: Rows, kind: TurnKind, block: int, micro: int) -> Iterator[StageTurn]:
    """A block's stages, one after the other: forward from the first, backward from the last."""
    stages = rows.blocks[block]
    for stage in stages if kind in ("forward", "weights") else stages[::-1]:
        yield StageTurn(kind, stage, micro)

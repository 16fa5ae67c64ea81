"""torch.distributed.pipelining's own schedules as steps of ours: to be proven and simulated beside ours.

torch works out the order of every rank when a schedule is made; nothing is run and no process group is needed. A rival
has a stage a device, or two, cut as evenly as can be, and the number of micro-batches that is best for it. torch sends
to the next stage alone, and does not add up the gradients of tied parameters: models with those are refused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.distributed.pipelining import schedules

from gradtide.errors import ConfigError, ScheduleError
from gradtide.schedule.step.build import build_step
from gradtide.schedule.step.build.rows import StageTurn, TurnKind
from gradtide.schedule.step.choice.candidates import even_cuts
from gradtide.schedule.step.layout import Layout, Order, Stage
from gradtide.schedule.step.planned import SplitPlan, SplitRow, row_of_plan
from gradtide.schedule.step.score import BatchTerms, score
from gradtide.schedule.step.search import Found
from gradtide.schedule.step.shaping import shape_of
from gradtide.topology.wording import nearest

__all__ = ["TORCH_SCHEDULES", "TorchOrder", "rival", "torch_order"]

# The stages a rank that each takes: one; any number; two.
TORCH_SCHEDULES = {
    "GPipe": 1,
    "1F1B": 1,
    "Interleaved1F1B": 0,
    "LoopedBFS": 0,
    "InterleavedZeroBubble": 0,
    "ZBVZeroBubble": 2,
    "DualPipeV": 2,
}
KINDS: dict[str, TurnKind] = {"F": "forward", "B": "backward", "I": "inputs", "W": "weights"}


@dataclass(frozen=True, slots=True)
class TorchOrder:
    """What a schedule of torch does: which rank has each stage, and the turns of each rank."""

    name: str
    ranks: tuple[int, ...]  # of each stage
    turns: tuple[tuple[StageTurn, ...], ...]
    halves: bool  # backward is in two

    @property
    def order(self) -> Order:
        """What a shape is told: how backward is done."""
        return "zero-bubble" if self.halves else "1f1b"


def rival(name: str, plan: SplitPlan) -> SplitRow:
    """The schedule of this name on a plan's devices: proven, simulated, with its best number of micro-batches."""
    search, rows, why = plan.search, list[SplitRow](), ""
    for micro_batches in search.wishes.counts(search.samples):
        try:
            rows.append(_row(name, plan, micro_batches))
        except ScheduleError as error:
            why = str(error)
    if not rows:
        raise ScheduleError(why)
    return min(rows, key=lambda row: row.seconds)


def _row(name: str, plan: SplitPlan, micro_batches: int) -> SplitRow:
    search, devices = plan.search, plan.devices
    taken = torch_order(name, len(devices), _stages_a_rank(name), micro_batches)
    if len(taken.ranks) > len(search.costs.units):
        raise ScheduleError(
            f"{taken.name} needs {len(taken.ranks)} stages, but the model has {len(search.costs.units)} units"
        )
    batch = BatchTerms(search.samples, micro_batches, taken.order)
    cuts = even_cuts(search, batch, 1, 1, len(taken.ranks))
    stages = tuple(Stage(a, b, (rank,)) for a, b, rank in zip(cuts, cuts[1:], taken.ranks, strict=False))
    layout = Layout(tuple(unit.name for unit in search.costs.units), stages, micro_batches, taken.order)
    shape = shape_of(layout, search.costs, search.samples, speeds=devices.speeds, links=search.links)
    for crossing in shape.crossings:
        if crossing.target != crossing.source + 1:
            skip = f"{crossing.values[0]} skips from stage {crossing.source} to {crossing.target}"
            raise ScheduleError(f"{taken.name} sends to the next stage alone, but {skip}")
    if shape.ties:
        raise ScheduleError(f"{taken.name} does not add up the gradients of {shape.ties[0].name}, which stages share")
    found = Found(layout, score(layout, search.costs, devices, search.samples, search.links).seconds)
    return row_of_plan(taken.name, found, build_step(shape, devices.names, taken.turns), devices, plan.bound_seconds)


def _stages_a_rank(name: str) -> int:
    return next((count for known, count in TORCH_SCHEDULES.items() if known.lower() == name.lower()), 1) or 2


@dataclass(slots=True, eq=False)
class _NoStage:
    """All that a schedule asks of a stage to find its order."""

    stage_index: int
    num_stages: int
    group_size: int
    group_rank: int
    submod: nn.Module
    has_backward: bool = True
    stage_index_to_group_rank: Any = None

    @property
    def is_first(self) -> bool:
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        return self.stage_index == self.num_stages - 1


def torch_order(name: str, ranks: int, stages_a_rank: int, micro_batches: int) -> TorchOrder:
    """The order of the schedule of this name ("Interleaved1F1B"), however it is spelled."""
    known = {one.lower(): one for one in TORCH_SCHEDULES}
    if name.lower() not in known:
        raise ConfigError(f"torch has no schedule {name!r}{nearest(name, TORCH_SCHEDULES)}")
    name = known[name.lower()]
    needed = TORCH_SCHEDULES[name]
    if needed and stages_a_rank != needed:
        raise ConfigError(f"torch:{name} takes {needed} stage{'s' * (needed > 1)} a device, not {stages_a_rank}")
    try:
        made = _made(name, ranks, stages_a_rank, micro_batches)
    except (ValueError, AssertionError, RuntimeError) as error:
        raise ScheduleError(f"torch:{name} refuses {micro_batches} micro-batches on {ranks} devices: {error}") from None
    if name == "1F1B":
        turns = tuple(tuple(_as_run(rank, ranks, micro_batches)) for rank in range(ranks))
    else:
        turns = tuple(tuple(_turns(made.pipeline_order[rank])) for rank in range(ranks))
    halves = any(turn.kind in ("inputs", "weights") for row in turns for turn in row)
    if halves:
        turns = tuple(tuple(_halved(row)) for row in turns)
    homes = {turn.stage: rank for rank, row in enumerate(turns) for turn in row}
    return TorchOrder(f"torch:{name}", tuple(homes[stage] for stage in sorted(homes)), turns, halves)


def _made(name: str, ranks: int, stages_a_rank: int, micro_batches: int) -> Any:
    count, module = ranks * stages_a_rank, nn.Identity()
    mine = [0, count - 1] if name in ("ZBVZeroBubble", "DualPipeV") else range(0, count, ranks)
    stages: list[Any] = [_NoStage(at, count, ranks, 0, module) for at in mine]
    kind: Any = schedules.get_schedule_class(name)
    return kind(stages[0] if TORCH_SCHEDULES[name] == 1 else stages, micro_batches)


def _turns(actions: Sequence[Any]) -> Iterator[StageTurn]:
    """The actions that compute; what torch overlaps is done one after the other."""
    for action in actions:
        if action is None:
            continue
        if action.sub_actions:
            yield from _turns(action.sub_actions)
        elif action.computation_type.value in KINDS:
            yield StageTurn(KINDS[action.computation_type.value], action.stage_index, action.microbatch_index)


def _as_run(rank: int, ranks: int, micro_batches: int) -> Iterator[StageTurn]:
    """1F1B as torch's step runs it. What torch 2.13 lists as its order is another: there the last rank begins with the
    second micro-batch and ends with one that does not exist; nothing reads that list."""
    ahead = min(micro_batches, ranks - rank)
    yield from (StageTurn("forward", rank, micro) for micro in range(ahead))
    for micro in range(micro_batches):
        yield StageTurn("backward", rank, micro)
        if ahead + micro < micro_batches:
            yield StageTurn("forward", rank, ahead + micro)


def _halved(turns: Sequence[StageTurn]) -> Iterator[StageTurn]:
    """Where some backwards are in two halves, all are."""
    for turn in turns:
        if turn.kind == "backward":
            yield turn._replace(kind="inputs")
            yield turn._replace(kind="weights")
        else:
            yield turn

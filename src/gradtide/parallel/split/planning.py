"""gradtide.split: how a model is best split, found out by taking it apart, timing it and searching."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gradtide.errors import ConfigError, DeviceError
from gradtide.parallel.devices.losses import Loss, LossFn, LossTerms
from gradtide.parallel.split.cut.exactness import BatchNormChoice, refusals
from gradtide.parallel.split.profile import profile
from gradtide.parallel.split.profile.overheads import with_overheads
from gradtide.parallel.split.trace import trace
from gradtide.parallel.split.units import Chain
from gradtide.schedule.explain import short_size
from gradtide.schedule.step.layout import Order
from gradtide.schedule.step.planned import SplitPlan, plan_split
from gradtide.topology.model import Topology
from gradtide.topology.units import parse_size_bytes

__all__ = ["PlanningWishes", "plan_chain", "shared_statistics", "split"]


@dataclass(frozen=True, slots=True)
class PlanningWishes:
    """What is given, and what may be chosen."""

    devices: int | Sequence[str]
    topology: Topology | str | Path | None = None
    memory: float | str | Sequence[float | str] | None = None
    micro_batches: int | Sequence[int] = ()
    order: Order | Sequence[Order] = "1f1b"
    batch_norm: BatchNormChoice = ""
    clip: bool = False
    whole_loss: bool = False  # the loss is none that could be computed part by part
    speeds: float | Sequence[float] = ()  # of the devices, beside this machine's
    threads: int | None = None  # of a device; None: this process's, shared out among the devices

    @property
    def count(self) -> int:
        return self.devices if isinstance(self.devices, int) else len(self.devices)


def split(
    model: nn.Module,
    example: Any,
    loss: "str | LossFn" = "cross_entropy",
    optimizer: Any = "sgd",
    devices: int | Sequence[str] = 2,
    *,
    topology: Topology | str | Path | None = None,
    memory: float | str | Sequence[float | str] | None = None,
    batch: int | None = None,
    cuts: Sequence[str] | None = None,
    micro_batches: int | Sequence[int] = (),
    order: Order | Sequence[Order] = "1f1b",
    count: LossTerms = None,
    batch_norm: BatchNormChoice = "",
    clip_norm: float | None = None,
    speeds: float | Sequence[float] = (),
) -> SplitPlan:
    """Finds the fastest way to split a model over some devices; the result also has all others that were looked at.

    `example` is a batch of its inputs (`batch` samples are planned for, or as many as it has). `topology` is a preset,
    a file, or the devices of this process; `memory` what a device has ("2GB"), or one for each. `cuts` names where the
    model may be cut by hand, where it can't be traced. `loss`, `count` and `batch_norm` are those of ModelParallel: a
    layout that would give another result is not taken. Layers are timed on this machine; `speeds` says how many times
    as fast the devices are, in one number or one for each.
    """
    if (devices if isinstance(devices, int) else len(devices)) < 1:
        raise DeviceError(f"a model is split over one device or more, not {devices}")
    if batch is not None and batch < 1:
        raise ConfigError(f"a batch of {batch} samples can't be planned for; it has 1 or more")
    chain = trace(model, example, cuts)
    terms = Loss(loss, count).terms
    wishes = PlanningWishes(
        devices=devices,
        topology=topology,
        memory=memory,
        micro_batches=micro_batches,
        order=order,
        batch_norm=batch_norm,
        clip=clip_norm is not None,
        speeds=speeds,
        whole_loss=not (terms.known or terms.said),
    )
    return plan_chain(chain, example, batch or _samples(example), optimizer, wishes)


def plan_chain(chain: Chain, example: Any, samples: int, optimizer: Any, wishes: PlanningWishes) -> SplitPlan:
    """The same, for a model that is taken apart already."""
    threads = wishes.threads or max(1, torch.get_num_threads() // wishes.count)
    limit = _limits(wishes.memory)
    costs = profile(
        chain,
        example,
        samples=samples,
        threads=threads,
        memory=None if limit is None else int(min(limit) if isinstance(limit, tuple) else limit),
        optimizer=optimizer,
    )
    if wishes.count > 1:
        costs = with_overheads(costs, wishes.topology)
    counts, copies, why = _allowed(chain, wishes)
    plan = plan_split(
        costs,
        wishes.devices,
        wishes.topology,
        limit,
        order=wishes.order,
        micro_batches=counts,
        copies=copies,
        clip=wishes.clip,
        speeds=wishes.speeds,
    )
    if not copies and wishes.count > 1:
        plan = replace(plan, skipped={**plan.skipped, "copies alone": why})
    plan = _exact(plan, chain, wishes.batch_norm)
    return replace(plan, left_out=shared_statistics(plan, chain)) if wishes.batch_norm == "shared" else plan


def shared_statistics(plan: SplitPlan, chain: Chain) -> str:
    """What copies add up for batch norms, three times a layer: a few numbers a channel, which no task stands for."""
    norms = [
        module
        for stage in plan.layout.stages
        for unit in chain.units[stage.first : stage.last if stage.copies > 1 else stage.first]
        for module in unit.module.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training
    ]
    if not norms:
        return ""
    sizes = [4 if norm.weight is None else norm.weight.element_size() for norm in norms]
    size = sum(8 * (2 * n.num_features + 1) + 2 * width * n.num_features for n, width in zip(norms, sizes, strict=True))
    return (
        f"Not in these times: copies add up the statistics of {len(norms)} batch norm{'s' if len(norms) > 1 else ''}, "
        f"{short_size(size)} in {3 * len(norms)} sums"
    )


def _limits(memory: float | str | Sequence[float | str] | None) -> float | tuple[float, ...] | None:
    if memory is None or isinstance(memory, int | float):
        return memory
    if isinstance(memory, str):
        return parse_size_bytes(memory)
    return tuple(parse_size_bytes(one) if isinstance(one, str) else one for one in memory)


def _allowed(chain: Chain, wishes: PlanningWishes) -> tuple[int | Sequence[int], bool, str]:
    """The micro-batches, and whether there may be copies (or why not): batch norm and losses of one's own take the
    whole batch."""
    modules = [module for unit in chain.units for module in unit.module.modules()]
    normed = any(isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training for module in modules)
    one_part = wishes.whole_loss or (normed and wishes.batch_norm != "each")
    one_copy = wishes.whole_loss or (normed and wishes.batch_norm != "shared")
    why = "a loss of one's own needs count=" if wishes.whole_loss else "batch norm needs batch_norm='shared'"
    return ((1,) if one_part and not wishes.micro_batches else wishes.micro_batches), not one_copy, why


def _exact(plan: SplitPlan, chain: Chain, batch_norm: BatchNormChoice) -> SplitPlan:
    """Without the layouts that would give another result."""
    kept, skipped, why = [], dict(plan.skipped), ""
    for row in plan.table:
        found = refusals(chain, row.layout, batch_norm)
        if found:
            why = why or found[0]
            skipped[row.text] = found[0]
        else:
            kept.append(row)
    if not kept:
        raise ConfigError(f"no layout that was looked at gives the same as one device: {why}")
    return replace(plan, table=tuple(kept), skipped=skipped)


def _samples(example: Any) -> int:
    leaves = [leaf for leaf in pytree.tree_leaves(example) if isinstance(leaf, Tensor) and leaf.dim()]
    return len(leaves[0]) if leaves else 0

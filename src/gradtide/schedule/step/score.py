"""score: how long a layout's step takes, and what each device must hold, in closed form.

Of a stage: a = what a device computes and exchanges for one micro-batch, forward and backward; x = the longest time
that a wire to or from it is busy with one micro-batch; g = what follows the last one: gradients added up among copies,
the update. With M micro-batches

    seconds = sum of the stages' (a + messages)  +  the largest of the stages' (M - 1) max(a, x) + g

which for free wires and equal stages is gpipe's and 1f1b's (M + K - 1) a. The sum is the way of one micro-batch there
and back; then the slowest stage sets the pace. Gradients are added up when a stage has its last one: what is not
hidden is only that of the stage with the most left to do, so a stage that waits for a slower one hides its own.
  interleaved   v stages a device: a device's stages are added up in the second term, and the first is divided by v.
  zero-bubble   gradients of parameters fill the gaps: the first term is 2 w shorter a stage, the second 2 w longer,
                where w is what they take (w, with one micro-batch).
A message takes half its time at the senders' pace and half at the receivers', which is all of it where both have
equally many copies. Of gpipe it is less than the truth where different stages are slowest forward and backward.
Exchanges are not hidden. Copies take even shares, so the slowest device of a stage sets its pace.

Memory: parameters, gradients, optimizer state, activations of the micro-batches that are alive (gpipe: all M; else at
most as many as stages from this one on), what a unit needs for a moment (workspaces, gradients on their way) at the
worst one, and one micro-batch's messages in each direction. All gradients count from the first moment on.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradtide.schedule.step.choice.figures import Figure, StageFigures, figures_of
from gradtide.schedule.step.choice.states import UnitLinks
from gradtide.schedule.step.choice.wires import PathCost, StagePlace, StepDevices
from gradtide.schedule.step.costs import ModelCosts
from gradtide.schedule.step.layout import Layout, Order
from gradtide.schedule.step.shape import NO_OVERHEADS, Overheads
from gradtide.schedule.step.shaping import check_layout

__all__ = [
    "BatchTerms",
    "LayoutScore",
    "StageWork",
    "afterwards",
    "alive",
    "combine",
    "least_of_stage",
    "memory_terms",
    "score",
    "stage_bytes",
    "stage_terms",
    "work_terms",
]


@dataclass(frozen=True, slots=True)
class BatchTerms:
    """A batch in so many micro-batches."""

    samples: int
    micro_batches: int
    order: Order = "1f1b"
    overheads: Overheads = NO_OVERHEADS

    def share(self, copies: int) -> float:
        """Samples of a micro-batch that the copy with the most has, on average over micro-batches."""
        small, large = divmod(self.samples, self.micro_batches)
        most = large * math.ceil((small + 1) / copies) + (self.micro_batches - large) * math.ceil(small / copies)
        return most / self.micro_batches

    def largest_share(self, copies: int) -> int:
        return math.ceil(math.ceil(self.samples / self.micro_batches) / copies)


@dataclass(frozen=True, slots=True)
class LayoutScore:
    """What a layout's step takes."""

    seconds: float
    device_bytes: tuple[float, ...]  # of each device of the layout
    bubble: float  # the share of the devices' time in which they neither compute nor exchange

    def fits(self, memory_bytes: Sequence[float]) -> bool:
        return all(need <= limit for need, limit in zip(self.device_bytes, memory_bytes, strict=False))


def score(
    layout: Layout, costs: ModelCosts, devices: StepDevices, samples: int | None = None, links: UnitLinks | None = None
) -> LayoutScore:
    """The closed form of one layout. Infinite seconds: somebody has no wire to whom it must send."""
    check_layout(layout, costs)
    links = links or UnitLinks(costs)
    batch_samples = costs.samples if samples is None else samples
    batch = BatchTerms(batch_samples, layout.micro_batches, layout.order, costs.overheads)
    terms, held = [], [0.0] * len(devices)
    busy = 0.0
    for number, stage in enumerate(layout.stages):
        figures = figures_of(links, stage)
        place = devices.place(min(stage.devices), stage.copies, stage.shards)
        terms.append(stage_terms(figures, place, batch, devices.narrowest, recompute=stage.recompute))
        stages = len(layout.stages)
        kept = alive(layout.order, layout.micro_batches, stages - number, stages)
        need = stage_bytes(figures, kept, batch.largest_share(stage.copies), stage.copies, recompute=stage.recompute)
        for device in stage.devices:
            held[device] += float(need)
        busy += float(terms[-1][2]) * len(stage.devices) * layout.micro_batches
    groups = [min(stage.devices) for stage in layout.stages]
    seconds = combine([(float(one[0]), float(one[1])) for one in terms], groups)
    used = len({device for stage in layout.stages for device in stage.devices})
    bubble = 1 - busy / (seconds * used) if 0 < seconds < math.inf else 0.0
    return LayoutScore(seconds, tuple(held[: layout.devices]), max(0.0, bubble))


def combine(terms: Sequence[tuple[float, float]], groups: Sequence[int]) -> float:
    """The seconds of a step, from each stage's two terms and which devices it is on."""
    each: dict[int, list[tuple[float, float]]] = {}
    for group, term in zip(groups, terms, strict=True):
        each.setdefault(group, []).append(term)
    turns = len(terms) / len(each)
    first = math.fsum(term[0] for term in terms) / turns
    rest = [
        sum(later for _, later in stages) + sum(once for once, _ in stages) * (len(stages) - 1) / len(stages)
        for stages in each.values()
    ]
    return first + max(rest)


def alive(order: Order, micro_batches: int, left: int, stages: int) -> int:
    """Micro-batches whose activations a stage keeps at once, where so many of all stages are left, itself included."""
    if order == "gpipe":
        return micro_batches
    return min(micro_batches, stages if order == "zero-bubble" else left)


@dataclass(frozen=True, slots=True, eq=False)
class StageWork:
    """What is the same of stages wherever they are and however large a micro-batch is. Seconds are those of speed 1."""

    figures: StageFigures
    overheads: Overheads
    fixed_s: Figure  # forward, backward and what comes with a micro-batch
    sample_s: Figure
    in_bytes: Figure  # messages of a sample, there and back
    out_bytes: Figure
    in_most: Figure  # in one direction
    out_most: Figure
    messages_in: Figure

    @classmethod
    def of(cls, figures: StageFigures, overheads: Overheads) -> "StageWork":
        fixed, sample = _handling(figures, overheads)
        there, back = (
            (figures.in_forward_bytes, figures.out_forward_bytes),
            (
                figures.in_backward_bytes,
                figures.out_backward_bytes,
            ),
        )
        return cls(
            figures,
            overheads,
            figures.forward_fixed_s + figures.backward_fixed_s + fixed,
            figures.forward_sample_s + figures.backward_sample_s + sample,
            there[0] + back[0],
            there[1] + back[1],
            np.maximum(there[0], back[0]),
            np.maximum(there[1], back[1]),
            (there[0] > 0) + 1.0 * (back[0] > 0),
        )


def stage_terms(
    figures: StageFigures, place: StagePlace, batch: BatchTerms, narrowest: PathCost, *, recompute: bool
) -> tuple[Figure, Figure, Figure]:
    """A stage's part of the sum, its candidate for the largest (as above), and what one micro-batch keeps it busy."""
    after = afterwards(figures, place, narrowest, batch.overheads)
    return work_terms(StageWork.of(figures, batch.overheads), after, place, batch, recompute=recompute)


def work_terms(
    work: StageWork, after: Figure, place: StagePlace, batch: BatchTerms, *, recompute: bool
) -> tuple[Figure, Figure, Figure]:
    """The same, where the parts that many options have in common are known."""
    share, figures = batch.share(place.copies), work.figures
    busy = (work.fixed_s + work.sample_s * share) / place.speed
    if recompute:
        busy = busy + (figures.forward_fixed_s + figures.forward_sample_s * share) / place.speed
    if place.shards > 1:
        exchanged = _moving(figures.exchanged_bytes * share, place.exchange)
        busy = busy + figures.exchanges * place.exchange.latency_s + exchanged
    moving = _moving(work.in_bytes * (share / 2), place.before) + _moving(work.out_bytes * (share / 2), place.after)
    first = busy + moving + work.messages_in * place.before.latency_s
    pace = np.maximum(_moving(work.in_most * share, place.before), _moving(work.out_most * share, place.after))
    adding = batch.overheads.add_s_per_byte / place.speed  # from the second micro-batch on
    pace = np.maximum(pace, busy + figures.gradient_bytes * adding if adding else busy)
    rest = (batch.micro_batches - 1) * pace + after
    if batch.order == "zero-bubble":
        weights = (figures.weights_fixed_s + figures.weights_sample_s * share) / place.speed
        gap = np.minimum(weights * (2.0 if batch.micro_batches > 1 else 1.0), busy)
        first, rest = first - gap, rest + gap
    return first, rest, busy


def _handling(figures: StageFigures, own: Overheads) -> tuple[Figure, Figure]:
    """What a device does for one micro-batch beside its layers, fixed and by the sample. About as many segments are
    there as exchanges."""
    fixed: Figure = own.task_s * (2 + figures.exchanges) + own.exchange.fixed_s * figures.exchanges
    sample: Figure = figures.exchanged_bytes * own.exchange.per_byte_s
    for size, each in (
        (figures.in_forward_bytes, own.receive),
        (figures.in_backward_bytes, own.send),
        (figures.out_forward_bytes, own.send),
        (figures.out_backward_bytes, own.receive),
    ):
        fixed = fixed + (size > 0) * each.fixed_s
        sample = sample + size * each.per_byte_s
    return fixed, sample


def afterwards(figures: StageFigures, place: StagePlace, narrowest: PathCost, own: Overheads) -> Figure:
    """Gradients added up among copies, as a ring does; those of tied parameters with other stages; the update."""
    copies = place.copies
    sent = figures.gradient_bytes * (2 * (copies - 1) / copies)
    latency = np.where(sent > 0, 2 * (copies - 1) * place.sum.latency_s, 0.0)
    tied = _moving(figures.tied_bytes, narrowest) + np.where(figures.tied_bytes > 0, 2 * narrowest.latency_s, 0.0)
    summed = figures.gradient_bytes if copies > 1 else figures.tied_bytes
    handled = (summed > 0) * own.gather.fixed_s + summed * own.gather.per_byte_s + own.update_s + own.step_s
    return np.asarray(_moving(sent, place.sum) + latency + tied + (figures.update_s + handled) / place.speed)


def _moving(size: Figure, path: PathCost) -> Figure:
    """Seconds that so many bytes take; none take none, even where no path leads."""
    if math.isfinite(path.s_per_byte):
        return size * path.s_per_byte
    return np.where(size > 0, np.inf, 0.0)


def stage_bytes(figures: StageFigures, kept: float | Figure, share: int, copies: int = 1, *, recompute: bool) -> Figure:
    """What one device of a stage holds at most, with so many micro-batches alive."""
    static, each = memory_terms(figures, share, recompute=recompute)
    return np.maximum(static + each * kept, least_of_stage(figures, share, copies))


def least_of_stage(figures: StageFigures, share: int, copies: int) -> Figure:
    """What a device needs when nothing is alive any more: gradients are gathered into one piece to be added up."""
    gathered = figures.gradient_bytes if copies > 1 else figures.tied_bytes
    received = (figures.in_forward_bytes + figures.received_bytes) * share
    return np.asarray(figures.parameter_bytes + figures.gradient_bytes + figures.state_bytes + gathered + received)


def memory_terms(figures: StageFigures, share: int, *, recompute: bool) -> tuple[Figure, Figure]:
    """The same in two: what is always there, and what each micro-batch alive adds."""
    static = figures.parameter_bytes + figures.gradient_bytes + figures.state_bytes
    static = static + (figures.in_forward_bytes + figures.received_bytes) * share
    static = static + figures.moment_bytes
    if recompute:
        return static + (figures.largest_bytes + figures.held_bytes) * share, figures.input_bytes * share
    reading = np.where(figures.saved_bytes > 0, 0.0, figures.input_bytes * share)  # where nothing is kept of it
    return static + reading + (figures.peak_bytes - figures.saved_bytes) * share, (
        figures.saved_bytes + figures.held_bytes
    ) * share

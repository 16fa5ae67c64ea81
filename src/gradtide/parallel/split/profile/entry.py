"""profile: what a chain costs, as the search for a layout reads it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradtide.errors import ConfigError
from gradtide.parallel.split.cut.ways import ways_of
from gradtide.parallel.split.profile.scratch import UnitScratch, scratch_of_units
from gradtide.parallel.split.profile.survey import Survey, survey
from gradtide.parallel.split.profile.tail import loss_seconds
from gradtide.parallel.split.profile.timing import UnitTimes, time_units
from gradtide.parallel.split.profile.updating import UpdateCosts, Wanted, update_costs
from gradtide.parallel.split.profile.walking import ChainRun, batch_of
from gradtide.parallel.split.units import Chain, Unit
from gradtide.schedule.step.costs import ModelCosts, UnitCost, Value
from gradtide.schedule.step.shape import MomentBytes, Seconds

__all__ = ["profile"]

PASS_S = 1.0  # what one forward and backward of the larger micro-batch may take
REPEATS = 5
LOSS_COPIES = 3  # of what the model returns, while a loss runs: its log-softmax, and the gradients of both


def profile(
    chain: Chain,
    example: Any,
    *,
    samples: int,
    threads: int | None = None,
    memory: int | None = None,
    optimizer: Wanted = "sgd",
) -> ModelCosts:
    """Runs each unit of a chain for a while, in training, as a device with so many threads would.

    `samples` is the batch, over all devices. `memory`, in bytes, is what a run may take beside the model; fewer samples
    are run where it asks for that. Units on the meta device are made up one at a time.
    """
    if samples < 1:
        raise ConfigError(f"a batch of {samples} samples can't be profiled; it has 1 or more")
    with _threads(threads), torch.random.fork_rng(devices=[]), torch.enable_grad():
        two, three = (survey(ChainRun(chain, batch_of(chain, example, n), n)) for n in (2, 3))
        small, large = _sizes(chain, example, (two, three), samples, memory)
        scratch = {n: scratch_of_units(ChainRun(chain, batch_of(chain, example, n), n)) for n in {small, large}}
        times = {}
        for n in {small, large}:
            run = ChainRun(chain, batch_of(chain, example, n), n)
            times[n] = time_units(run, REPEATS, _run_bytes(chain, (two, three), n), memory)
        tail = {n: loss_seconds([two.values[name] for name in _returned(chain)], n) for n in {small, large}}
        parameters = _parameters(chain)
        dtype = next((p.dtype for p in parameters.values() if p.is_floating_point()), torch.float32)
        updates = update_costs(optimizer, sum(p.nbytes for p in parameters.values()), dtype)
    units = tuple(
        _unit_cost(chain, unit, (two, three), times, updates, samples, moments)
        for unit, moments in zip(chain.units, _moments(chain, scratch, (two, three), samples), strict=True)
    )
    units = (*units[:-1], _with_loss(units[-1], tail))
    tied = _tied(chain)
    return ModelCosts(
        units=units,
        values=tuple(_value(name, two, three, samples) for name in two.values),
        inputs=chain.inputs,
        outputs=_returned(chain),
        samples=samples,
        ties=tuple((name, parameters[name].nbytes) for name in tied),
        tied_units=tuple(tied.values()),
    )


@contextmanager
def _threads(wanted: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before if wanted is None else max(1, wanted))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _returned(chain: Chain) -> tuple[str, ...]:
    return tuple(name for name in chain.outputs if name not in chain.constants)


# --- how many samples ---


def _sizes(
    chain: Chain, example: Any, surveys: tuple[Survey, Survey], samples: int, memory: int | None
) -> tuple[int, int]:
    """Two sizes of a micro-batch: half of the batch and an eighth, or fewer by time and memory."""
    two, three = surveys
    per_sample = max(1, three.peak - two.peak)
    fits = samples if memory is None else (memory - (two.peak - 2 * per_sample)) // per_sample
    if fits < 2:  # batch norm trains on two samples or more
        raise ConfigError(
            f"{memory:,} bytes are too few to profile a model whose largest layer takes {two.peak:,} for two samples; "
            "give more memory"
        )
    first = max(2, min(samples // 8, fits, 4))
    found = time_units(ChainRun(chain, batch_of(chain, example, first), first), 1)
    pass_s = sum(unit.forward_s + unit.backward_s for unit in found.values())
    large = max(2, samples // 2)
    while large > 2 and (large > fits or pass_s * large / first > PASS_S):
        large = max(2, large // 2)
    return max(2, large // 4), large


def _run_bytes(chain: Chain, surveys: tuple[Survey, Survey], samples: int) -> dict[str, float]:
    """What each unit takes while it waits for its backward: what it makes and keeps, twice (what is there from the run
    before is let go of when the next one has it), and its gradients."""
    two, three = surveys
    found = {}
    for unit in chain.units:
        made = sum(_value(name, two, three, samples).bytes for name in unit.writes)
        saved = _per_sample(two.saved[unit.name], three.saved[unit.name], samples)
        own = sum(parameter.nbytes for parameter in unit.module.parameters())
        found[unit.name] = 2 * (made + saved) * samples + 2 * own
    return found


# --- what was found, as data ---


def _value(name: str, two: Survey, three: Survey, samples: int) -> Value:
    """Bytes that do not grow with the samples are shared out among the batch's."""
    one, other = two.values[name], three.values[name]
    batched = (one.rows, other.rows) == (two.samples, three.samples)
    return Value(
        name, _per_sample(one.bytes, other.bytes, samples), one.has_gradient, batched, two.keeper.get(name, -1)
    )


def _per_sample(at_two: int, at_three: int, samples: int) -> float:
    growth = max(0, at_three - at_two)
    return growth + max(0, at_two - 2 * growth) / samples


def _with_loss(last: UnitCost, tail: dict[int, float]) -> UnitCost:
    """Its backward begins with the loss."""
    loss = _fitted(tail)
    both = last.backward.fixed_s + loss.fixed_s, last.backward.per_sample_s + loss.per_sample_s
    return replace(last, backward=Seconds(*both)) if last.backward != Seconds() else last


def _seconds(times: dict[int, UnitTimes], of: Callable[[UnitTimes], float]) -> Seconds:
    return _fitted({n: of(found) for n, found in times.items()})


def _fitted(taken: dict[int, float]) -> Seconds:
    """Fixed, and by the sample, from two sizes of a micro-batch."""
    small, large = min(taken), max(taken)
    few, many = taken[small], taken[large]
    if small == large or many <= few:
        return Seconds(0.0, many / large)
    per_sample = min((many - few) / (large - small), many / large)
    return Seconds(max(0.0, many - per_sample * large), per_sample)


def _unit_cost(
    chain: Chain,
    unit: Unit,
    surveys: tuple[Survey, Survey],
    times: dict[int, dict[str, UnitTimes]],
    updates: UpdateCosts,
    samples: int,
    moments: tuple[MomentBytes, MomentBytes],
) -> UnitCost:
    own = {n: found[unit.name] for n, found in times.items()}
    parameters = list({id(p): p for p in unit.module.parameters()}.values())
    trained = [p for p in parameters if p.requires_grad]
    trained_bytes = sum(p.nbytes for p in trained)
    read = surveys[0].values[unit.reads[0]] if unit.reads else None
    shape, element_bytes = (read.shape[1:], read.element_bytes) if read else ((), 4)
    return UnitCost(
        name=unit.name,
        reads=unit.reads,
        writes=unit.writes,
        forward=_seconds(own, lambda t: t.forward_s),
        backward=_seconds(own, lambda t: t.backward_s),
        saved_bytes=_per_sample(surveys[0].saved[unit.name], surveys[1].saved[unit.name], samples),
        parameter_bytes=sum(p.nbytes for p in parameters),
        trained_bytes=trained_bytes,
        state_per_byte=updates.state_per_byte,
        update_s=len(trained) * updates.per_parameter_s + trained_bytes * updates.per_byte_s,
        for_weights=own[max(own)].for_weights,
        ways=ways_of(unit, chain, shape, element_bytes),
        parameters=tuple(dict.fromkeys(unit.parameters.values())),
        forward_moment=moments[0],
        backward_moment=moments[1],
        update_bytes=round(max((p.nbytes for p in trained), default=0) * updates.moment_per_byte),
    )


def _moments(
    chain: Chain, scratch: dict[int, dict[str, UnitScratch]], surveys: tuple[Survey, Survey], samples: int
) -> Iterator[tuple[MomentBytes, MomentBytes]]:
    """What each unit needs for a moment, there and back. In its forward that is what it allocates and reads beside what
    it keeps. The last one's backward begins with the loss."""
    two, three = surveys
    for unit in chain.units:
        there, back = (
            _moment({n: getattr(found[unit.name], way) for n, found in scratch.items()})
            for way in ("forward", "backward")
        )
        beside = (
            _per_sample(one[unit.name], other[unit.name], samples)
            for one, other in ((two.brought, three.brought), (two.saved, three.saved))
        )
        brought, saved = beside
        there = MomentBytes(there.fixed, max(0.0, there.per_sample + brought - saved))
        if unit is chain.units[-1]:
            outputs = [_value(name, two, three, samples) for name in set(chain.outputs) if name in two.values]
            loss = sum(LOSS_COPIES * value.bytes for value in outputs if value.has_gradient)
            back = MomentBytes(back.fixed, max(back.per_sample, loss))
        yield there, back


def _moment(sizes: dict[int, int]) -> MomentBytes:
    """Fixed, and by the sample, from two sizes of a micro-batch."""
    small, large = min(sizes), max(sizes)
    if small == large:
        return MomentBytes(0.0, sizes[large] / large)
    per_sample = min(max(0.0, (sizes[large] - sizes[small]) / (large - small)), sizes[large] / large)
    return MomentBytes(sizes[large] - per_sample * large, per_sample)


def _parameters(chain: Chain) -> dict[str, Tensor]:
    """By the model's names; of tied ones the first."""
    return {
        unit.parameters[name]: parameter
        for unit in chain.units
        for name, parameter in unit.module.named_parameters(remove_duplicate=False)
    }


def _tied(chain: Chain) -> dict[str, tuple[int, ...]]:
    """Parameters that several units hold, and which."""
    holders: dict[str, list[int]] = {}
    for number, unit in enumerate(chain.units):
        for name in dict.fromkeys(unit.parameters.values()):
            holders.setdefault(name, []).append(number)
    return {name: tuple(numbers) for name, numbers in holders.items() if len(numbers) > 1}

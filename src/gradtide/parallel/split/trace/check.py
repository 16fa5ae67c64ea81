"""A chain compared with its model on the example: bit for bit, for two sizes of a batch, sample by sample."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gradtide.errors import ConfigError
from gradtide.parallel.split.chain_values import output_of, run_unit, samples_of
from gradtide.parallel.split.trace.gradients import refuse_other_gradients
from gradtide.parallel.split.trace.inputs import Example, on_device_of
from gradtide.parallel.split.trace.mixing import refuse_looking, refuse_mixing, rowless_names, trains
from gradtide.parallel.split.trace.random_watch import RandomWatch
from gradtide.parallel.split.trace.symbolic import in_mode
from gradtide.parallel.split.units import Chain, Unit

__all__ = ["CopyFirst", "checked"]

MOST = 8  # samples: comparing takes no more to be right
_LOOKED_AT = 4  # samples, of which one stays while the others change

_HINTS = {"cuts": "cuts= is for models whose forward calls their children one after the other, as registered"}


class CopyFirst(nn.Module):
    """A module that changes what it reads, given copies."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *values: Tensor) -> Any:
        return self.inner(*(value.clone() for value in values))


def checked(chain: Chain, model: nn.Module, example: Example) -> Chain:
    """The chain, whose units leave what they read as it was; or what is wrong with it, in one line."""
    most = min(samples_of(example.tensors), MOST)
    sizes = (most, most - 1) if most > 1 else (1, 2)
    batches = _batches(model, example, sizes)
    few = _batches(model, example, (_LOOKED_AT, _LOOKED_AT - 1))
    roots = [model, *(unit.module for unit in chain.units)]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        in_mode(roots, True, lambda: _refuse_in_training(chain, batches[max(sizes)]))
        chain = in_mode(roots, False, lambda: _copying_first(chain, batches[sizes[0]]))
        roots += [unit.module for unit in chain.units]
        found = {n: in_mode(roots, False, partial(_compared, chain, model, example, batches[n])) for n in sizes}
        refuse_mixing(chain, {n: values for n, (values, _) in found.items()})
        two = on_device_of(model, example.first(2))
        rounded = in_mode(roots, False, partial(refuse_other_gradients, chain, model, example, two))
        in_mode(roots, trains, partial(refuse_looking, chain, few))
    structure = found[sizes[0]][1]
    return replace(
        chain,
        structure=None if structure.is_leaf() else structure,
        rowless=rowless_names({n: values for n, (values, _) in found.items()}),
        example_shapes={name: tuple(tensor.shape) for name, tensor in example.tensors.items()},
        example_rest=example.rest,
        rounded=rounded,
    )


def _batches(model: nn.Module, example: Example, sizes: Sequence[int]) -> dict[int, dict[str, Tensor]]:
    """The first samples, and of them the last: a sample's place must not show either."""
    fewer, more = sorted(sizes)
    whole, part = example.first(more), example.first(fewer)
    part = {
        name: one if one.shape == whole[name].shape else whole[name][more - fewer :].clone()
        for name, one in part.items()
    }
    return {fewer: on_device_of(model, part), more: on_device_of(model, whole)}


# --- in training: nothing random but dropout's layers, no buffers but batch norm's ---


def _refuse_in_training(chain: Chain, batch: Mapping[str, Tensor]) -> None:
    values, changed = dict(batch), set[str]()
    for unit in chain.units:
        for part in unit.module.modules():
            if isinstance(part, nn.modules.dropout._DropoutNd):
                part.training = False
        before = {name: (buffer.clone(), buffer._version) for name, buffer in unit.module.named_buffers()}
        reads = {name: values[name].clone() for name in unit.reads}
        state = torch.get_rng_state()
        with RandomWatch() if _on_meta(unit, reads) else nullcontext() as watch:
            made = _run_alone(chain, unit, values)
        if not torch.equal(state, torch.get_rng_state()) or (watch is not None and watch.seen):
            raise ConfigError(
                f"{unit.name} draws random numbers in training, which nothing can reproduce on another device; "
                "use nn.Dropout"
            )
        own = _restore_buffers(unit, before)
        if changed & own:
            raise ConfigError(f"{unit.name} runs a batch norm that ran before: it would have its statistics twice")
        changed |= own
        before = {name: (buffer.clone(), buffer._version) for name, buffer in unit.module.named_buffers()}
        _refuse_moods(chain, unit, reads, made)
        _restore_buffers(unit, before)
        values |= made


def _on_meta(unit: Unit, reads: Mapping[str, Tensor]) -> bool:
    return any(tensor.is_meta for tensor in [*reads.values(), *unit.module.parameters()])


def _refuse_moods(chain: Chain, unit: Unit, reads: Mapping[str, Tensor], made: Mapping[str, Tensor]) -> None:
    """Whatever it is that a unit keeps from call to call, or draws from a generator of its own."""
    again = _run_alone(chain, unit, reads)
    if not all(_same(made[name], again[name]) for name in made):
        raise ConfigError(f"{unit.name} gives something else every time it is run on the same; use nn.Dropout")


def _run_alone(chain: Chain, unit: Unit, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    try:
        return run_unit(unit, values)
    except Exception as error:
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        hint = _HINTS.get(chain.how, "does it run in training, by itself?")
        raise ConfigError(f"{unit.name} can't be run on what comes before it: {said}; {hint}") from error


def _restore_buffers(unit: Unit, before: Mapping[str, tuple[Tensor, int]]) -> set[str]:
    """The names of those that were changed, if only to what they were. Refuses statistics of its own, which would be
    others of micro-batches."""
    owners, changed = dict(unit.module.named_modules()), set[str]()
    for name, buffer in unit.module.named_buffers():
        value, version = before[name]
        same = buffer.is_meta or (_same(buffer, value) and buffer._version == version)
        buffer.copy_(value)
        if same:
            continue
        if not isinstance(owners[name.rpartition(".")[0]], nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"{unit.name} changes its buffer {name} in every forward, so that the number of micro-batches would "
                "show; only batch norm's statistics are known"
            )
        changed.add(unit.buffers.get(name, name))
    return changed


# --- in evaluation: what the model gives, bit for bit ---


def _copying_first(chain: Chain, batch: Mapping[str, Tensor]) -> Chain:
    """Units that change what they read get copies of it from now on."""
    values = {name: tensor.clone() for name, tensor in batch.items()}
    units = []
    for unit in chain.units:
        versions = {name: tensor._version for name, tensor in values.items()}
        made = run_unit(unit, values)
        if any(values[name]._version != version for name, version in versions.items()):
            unit = _copying(unit)
        values |= made
        units.append(unit)
    return replace(chain, units=tuple(units))


def _copying(unit: Unit) -> Unit:
    parameters, buffers = ({f"inner.{k}": v for k, v in names.items()} for names in (unit.parameters, unit.buffers))
    return replace(unit, module=CopyFirst(unit.module), parameters=parameters, buffers=buffers)


def _compared(
    chain: Chain, model: nn.Module, example: Example, batch: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], pytree.TreeSpec]:
    """All values of the chain, once its outputs are those of the model, and how the model returns these."""
    args, kwargs = example.arguments([tensor.clone() for tensor in batch.values()])
    expected = model(*args, **kwargs)
    values = dict(batch)
    for unit in chain.units:
        values |= _tensors_alone(unit, run_unit(unit, values))
    leaves, structure = pytree.tree_flatten(expected)
    given = pytree.tree_leaves(output_of(chain, values))
    if len(given) != len(leaves) or not all(map(_same, leaves, given)):
        raise ConfigError(
            f"the model taken apart ({chain.how}) does not give what it gives whole ({_first_other(leaves, given)}); "
            f"{_HINTS.get(chain.how, 'is something changed through a view, or kept from call to call?')}"
        )
    return values, structure


def _tensors_alone(unit: Unit, made: dict[str, Any]) -> dict[str, Tensor]:
    for name, value in made.items():
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise ConfigError(f"{unit.name} gives {name}, of type {kind}; units give each other tensors alone")
    return made


def _first_other(expected: list[Any], given: list[Any]) -> str:
    for place, (one, other) in enumerate(zip(expected, given, strict=False)):
        if not _same(one, other):
            return f"output {place}"
    return f"{len(given)} outputs instead of {len(expected)}"


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return type(one) is type(other) and bool(one == other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return one.is_meta or bool(((one == other) | ((one != one) & (other != other))).all())

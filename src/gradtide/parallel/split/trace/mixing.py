"""A sample's values are its own: whatever lies beside it, before it or behind it, and in whichever part of a batch.

What each call of torch gives inside a unit is looked at, too: samples may be mixed where nothing of that shows in what
the unit makes, as with a capacity that this batch does not reach.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from gradtide.errors import ConfigError
from gradtide.parallel.split.chain_values import input_values, run_unit
from gradtide.parallel.split.trace.symbolic import in_mode
from gradtide.parallel.split.units import Chain, Unit

__all__ = ["is_close", "refuse_looking", "refuse_mixing", "refuse_parts", "rowless_names", "trains"]

_CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the largest value; of lower precisions a twentieth
# Which sample is looked at, how much of it, and how much of the others is beside it instead of copies of itself.
_LOOKS = ((0, 1.0, (1.0, 0.0, 1000.0)), (0, 0.001, (1000.0,)), (-1, 1.0, (1.0, -1.0, 1000.0)))
# Their results have as many rows as the values say, or rows in an order that they say, whosesoever they are.
_PICKING = {"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "_unique2", "repeat_interleave"}
_SORTING = {"sort", "argsort"}  # of whole numbers, as experts are: tokens are put together by them, and apart again
# They put such rows back to where they came from.
_PUTTING = {"__setitem__", "index_add", "index_put", "index_copy", "index_reduce", "scatter", "scatter_add"}
_PUTTING |= {"scatter_reduce", "masked_scatter", "with_items"}
_Moody = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)


class WatchedRun:
    """A chain run unit by unit, with what the last unit computed on its way."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self.values = dict(values)
        self.stopped = False  # not all values are such that the model is made for them
        self.calls: dict[tuple[int, str], Tensor] = {}  # by which call of the unit it was, and of what name
        self.picks = False  # the last unit picks rows, of which calls don't tell

    def go(self, unit: Unit) -> None:
        watch = _CallWatch()
        try:
            with watch:
                self.values |= run_unit(unit, self.values)
        except Exception:
            self.stopped = True
        self.calls = {(number, name): value for number, (name, value) in enumerate(watch.made)}
        self.picks = bool(watch.picked)


class _CallWatch(TorchFunctionMode):
    """Notes what calls of torch give while it is entered, but for picked rows and what is made of them."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, Tensor]] = []
        self.picked: dict[int, Tensor] = {}  # by id; they are kept, so that no other one gets it

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        name = str(getattr(func, "__name__", func)).partition(".")[0]
        name = name if name.startswith("__") else name.removesuffix("_")
        read = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        picked = any(id(one) in self.picked for one in (read[:1] if name in _PUTTING else read))
        picked = picked or _picks(name, args, kwargs, read)
        for leaf in pytree.tree_leaves(made):
            if isinstance(leaf, Tensor) and picked:
                self.picked[id(leaf)] = leaf
            elif isinstance(leaf, Tensor):
                self.made.append((name, leaf))
        return made


def _picks(name: str, args: Any, kwargs: Any, read: list[Tensor]) -> bool:
    if name == "where":
        return len(args) + len(kwargs) == 1
    if name in _SORTING:
        return bool(read) and not read[0].is_floating_point()
    by_mask = name in ("__getitem__", "index") and any(one.dtype is torch.bool for one in read[1:])
    return by_mask or name in _PICKING


# --- whether samples depend on each other ---


_Compared = tuple[str, Mapping[int, Tensor], Tensor, Tensor]  # its name, for two sizes, and for the same other samples


class _Rows(NamedTuple):
    """Where a value has what is the samples': in one dimension, with so many of it for each."""

    dim: int
    each: int


def rowless_names(found: Mapping[int, Mapping[str, Tensor]]) -> frozenset[str]:
    """Values that have no row a sample: their length is another, or happens to be the samples' for one batch."""
    one = next(iter(found.values()))
    return frozenset(name for name in one if not all(of[name].dim() and len(of[name]) == n for n, of in found.items()))


def refuse_mixing(chain: Chain, found: Mapping[int, Mapping[str, Tensor]]) -> None:
    """Names the first unit that makes something else of samples when there is one before them: fewer are the last."""
    fewer, more = sorted(found)
    for unit in chain.units:
        for name in unit.writes:
            one, other = found[fewer][name], found[more][name]
            batched = one.dim() and len(one) == fewer and len(other) == more
            if batched and not one.is_meta and not is_close(one, other[more - fewer :]):
                raise ConfigError(_beside_others(unit))


def _beside_others(unit: Unit) -> str:
    return (
        f"{unit.name} makes something else of a sample when other samples are beside it, so that it can't be given "
        "parts of a batch; leave out what looks at the whole batch"
    )


def trains(module: nn.Module) -> bool:
    """As in training, but for layers of torch: batch norm's statistics and dropout's masks are cared for elsewhere."""
    moody = isinstance(module, _Moody)
    return not moody and not type(module).__module__.startswith("torch.nn.")


# --- nothing that is computed is of two samples, also on the way ---


class _Look(NamedTuple):
    """Runs of samples of which the one that is looked at stays the same."""

    at: int
    usual: WatchedRun  # copies of it are beside it
    others: list[WatchedRun]


def refuse_looking(chain: Chain, batches: Mapping[int, Mapping[str, Tensor]]) -> None:
    """A sample's values, and those of no sample, must be the same whatever the others are: copies of it, themselves,
    nought, or large. So must all be that is computed on the way: a capacity that this batch does not reach does not
    show in what comes out."""
    if any(tensor.is_meta for tensor in _tensors(chain, next(iter(batches.values())))):
        return
    sizes = {samples: WatchedRun(batch) for samples, batch in batches.items()}
    looks = [_look(batches, *how) for how in _LOOKS]
    runs = [*sizes.values(), *(run for look in looks for run in (look.usual, *look.others))]
    for unit, ended in zip(chain.units, _ended(chain), strict=True):
        for run in runs:
            if not run.stopped:
                run.go(unit)
        for look in looks:
            for now in look.others:
                if not (now.stopped or look.usual.stopped or any(run.stopped for run in sizes.values())):
                    _compare(unit, sizes, look, now)
        for run in runs:
            for name in ended:
                run.values.pop(name, None)


def _tensors(chain: Chain, batch: Mapping[str, Tensor]) -> Iterator[Tensor]:
    yield from batch.values()
    for unit in chain.units:
        yield from unit.module.parameters()


def _ended(chain: Chain) -> Iterator[list[str]]:
    """Values that no later unit reads, behind each unit."""
    for number, unit in enumerate(chain.units):
        later = {name for one in chain.units[number + 1 :] for name in one.reads}
        yield [name for name in (*unit.reads, *unit.writes) if name not in later]


def _look(batches: Mapping[int, Mapping[str, Tensor]], at: int, own: float, others: Sequence[float]) -> _Look:
    samples = max(batches)
    at %= samples
    rows = {name for name in batches[samples] if _kind_of({n: of[name] for n, of in batches.items()}) == _Rows(0, 1)}

    def beside(other: float | None) -> WatchedRun:
        batch = batches[samples].items()
        return WatchedRun({name: _beside(value, at, own, other) if name in rows else value for name, value in batch})

    return _Look(at, beside(None), [beside(other) for other in others])


def _beside(value: Tensor, at: int, own: float, other: float | None) -> Tensor:
    """Samples, of which the one at this place is looked at, and the others are changed."""
    kept = value[at : at + 1]
    if value.is_floating_point():
        kept, value = kept * own, value * (other or 0.0)
    before, behind = (kept.expand_as(part) if other is None else part for part in (value[:at], value[at + 1 :]))
    return torch.cat([before, kept, behind])


def _compare(unit: Unit, sizes: Mapping[int, WatchedRun], look: _Look, now: WatchedRun) -> None:
    for what, found, usual, other in (*_calls(sizes, look.usual, now), *_written(unit, sizes, look.usual, now)):
        if _has_moved(found, usual, other, look.at):
            raise ConfigError(
                f"{unit.name} makes {what} of all samples together, so that it can't be given parts of a batch; leave "
                "out what looks at the whole batch, or compute it in the loss"
            )


def _calls(sizes: Mapping[int, WatchedRun], usual: WatchedRun, now: WatchedRun) -> Iterator[_Compared]:
    for key, value in usual.calls.items():
        alike = {samples: run.calls[key] for samples, run in sizes.items() if key in run.calls}
        if len(alike) == len(sizes) and key in now.calls:
            yield key[1], alike, value, now.calls[key]


def _written(unit: Unit, sizes: Mapping[int, WatchedRun], usual: WatchedRun, now: WatchedRun) -> Iterator[_Compared]:
    for name in unit.writes:
        yield name, {n: run.values[name] for n, run in sizes.items()}, usual.values[name], now.values[name]


def _has_moved(found: Mapping[int, Tensor], usual: Tensor, now: Tensor, at: int) -> bool:
    kind = _kind_of(found)
    if kind is None:
        return False
    if not isinstance(kind, _Rows) or usual.shape != now.shape:
        return not is_close(now, usual)
    own = (kind.dim + 1, at)
    return not any(
        is_close(*(value.unflatten(kind.dim, (before, max(found), -1)).select(*own) for value in (now, usual)))
        for before in range(1, kind.each + 1)
        if kind.each % before == 0
    )


def _kind_of(found: Mapping[int, Tensor]) -> "_Rows | str | None":
    """Rows of samples, "none" of it for any batch, or None: it can't be told, as of what a mask picks."""
    shapes = {samples: value.shape for samples, value in found.items()}
    one = next(iter(shapes.values()))
    if any(len(shape) != len(one) for shape in shapes.values()):
        return None
    changing = [dim for dim in range(len(one)) if len({shape[dim] for shape in shapes.values()}) > 1]
    if not changing:
        return "none"
    each = {shape[changing[0]] / samples for samples, shape in shapes.items()}
    one_number = each.pop()
    whole = len(changing) == 1 and not each and one_number >= 1 and one_number.is_integer()
    return _Rows(changing[0], int(one_number)) if whole else None


def is_close(one: Tensor, other: Tensor) -> bool:
    """But for rounding."""
    if one.shape != other.shape:
        return False
    if one.is_complex() and other.is_complex():
        one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
    if not one.is_floating_point():
        return bool((one == other).all())
    limit = _CLOSE.get(one.dtype, 0.05)
    one, other = one.double().nan_to_num(), other.double().nan_to_num()
    return not one.numel() or bool((one - other).abs().max() <= limit * max(1e-30, float(other.abs().max())))


# --- a whole batch, and its parts ---


def refuse_parts(chain: Chain, model: nn.Module, inputs: Any, spans: Sequence[tuple[int, int]]) -> None:
    """Units must make the same of the batch in these parts (samples first to last - 1) as of all of it, at its size."""
    whole = input_values(chain, model, inputs)
    roots = [unit.module for unit in chain.units]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        in_mode(roots, trains, lambda: _compare_parts(chain, whole, spans))


def _compare_parts(chain: Chain, whole: dict[str, Tensor], spans: Sequence[tuple[int, int]]) -> None:
    parts: list[dict[str, Tensor]] = [{} for _ in spans]  # what has no row a sample, as each part makes it
    for unit, ended in zip(chain.units, _ended(chain), strict=True):
        run = WatchedRun({name: whole[name] for name in unit.reads})
        run.go(unit)
        if run.stopped:  # the first step will say why
            return
        made = {name: run.values[name] for name in unit.writes}
        if run.picks:
            _refuse_capacity(chain, unit, whole)
        for (first, last), part in zip(spans, parts, strict=True):
            given = {
                name: part.get(name, whole[name]) if name in chain.rowless else whole[name][first:last]
                for name in unit.reads
            }
            found = _run_part(unit, given, last - first)
            if any(not is_close(found[n], made[n][first:last]) for n in unit.writes if n not in chain.rowless):
                raise ConfigError(_beside_others(unit))
            part |= {name: found[name] for name in unit.writes if name in chain.rowless}
        whole |= made
        for name in ended:
            for values in (whole, *parts):
                values.pop(name, None)


def _refuse_capacity(chain: Chain, unit: Unit, values: Mapping[str, Tensor]) -> None:
    """Of rows that are picked, as many as there may be: where all samples are one, all of them go to one expert."""
    rows = [name for name in unit.reads if name not in chain.rowless]
    samples = len(values[rows[0]]) if rows else 0
    for at in sorted({0, samples // 2, samples - 1}) if rows else ():
        alone = {name: values[name][at : at + 1] if name in rows else values[name] for name in unit.reads}
        copies = {name: alone[name].repeat_interleave(samples, 0) if name in rows else alone[name] for name in alone}
        one, all_of_them = _run_part(unit, alone, 1), _run_part(unit, copies, samples)
        for name in unit.writes:
            if name not in chain.rowless and not is_close(all_of_them[name], one[name].expand_as(all_of_them[name])):
                raise ConfigError(_beside_others(unit))


def _run_part(unit: Unit, given: Mapping[str, Tensor], samples: int) -> dict[str, Tensor]:
    try:
        return run_unit(unit, given)
    except Exception as error:
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConfigError(f"{unit.name} can't be given {samples} samples of the batch alone: {said}") from error

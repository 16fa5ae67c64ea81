"""A net under what ways promise: that all workers have the same parameters.

It looks in the first rounds, in every hundredth, when a worker evaluates or keeps a checkpoint, and at the end: at what
the module and the optimizers' groups have just then, and not at what anybody noted of them. Where local steps meet, it
looks at what the window began with, as a part of the meeting. It compares a checksum of each parameter's bits. Where
workers compute on processors, devices or threads of different kinds, or an optimizer's steps are not elementwise, the
last bits may differ, so norms and sums are compared to a tolerance.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradtide.collective import Group
from gradtide.errors import ConfigError
from gradtide.store.rules.updates import is_elementwise
from gradtide.sync.state import DIGEST_BYTES, kind_of, told_by
from gradtide.sync.trained import Trained
from gradtide.sync.watching.guard import checksum
from gradtide.sync.ways import Way

__all__ = ["AlikeNet", "is_due_at_meeting", "look_whether_alike"]

_FIRST, _EVERY, _APART = 3, 100, 10  # rounds: the first ones, how often, and how far those that are asked for are apart
_ALIKE = 1e-4  # of a parameter's norm
_IN_TURN = "where all workers compare their parameters"
_AT_THE_END = "at the end of its training, to which all workers come after as many steps"
_ONE_ALONE = (
    "is no longer the same on all workers: the program changes it on one alone, or by its own part of a batch; change "
    "parameters alike on all, or in `with model.edit():`"
)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A parameter that trains now."""

    name: str
    value: Tensor
    wrong: str  # what can be seen of it without the others
    shared: bool  # the same memory on all ranks


class AlikeNet:
    """Of one way, so that all ranks count the same rounds."""

    def __init__(self) -> None:
        self._rounds = self._last = 0  # so far, and when it looked last

    def is_due(self, *, asked: bool) -> bool:
        """Once a round. All ranks must be told the same."""
        self._rounds += 1
        apart = self._rounds - self._last
        due = self._rounds <= _FIRST or apart >= _EVERY or (asked and apart >= _APART)
        self._last = self._rounds if due else self._last
        return due


def is_due_at_meeting(meetings: int, every: int) -> bool:
    """Of workers that take so many steps each between two meetings."""
    return meetings <= _FIRST or meetings % -(-_APART // every) == 0


def look_whether_alike(
    trained: Trained, way: Way, group: Group, *, ends: bool = False, base: Mapping[int, Tensor] | None = None
) -> None:
    """All ranks do it together. `ends`: their training, so that it is no look of those who go on. `base`: what they
    began with, by the id of its parameter, where each has stepped its own since."""
    seen = _see(trained, way, ends, base or {})
    exact = all(is_elementwise(optimizer) for optimizer in trained.optimizers) and trained.clip_norm is None
    outline = [f"{one.name}\t{kind_of(one.value)} {one.wrong}" for one in seen]
    sums = [0 if one.shared or one.wrong else checksum(one.value) for one in seen]
    own = _digest(*outline) + _digest(_machine(seen)) + _digest(*map(str, sums)) + bytes(ends)
    with group.purpose(_AT_THE_END if ends else _IN_TURN):
        told = group.all_gather(torch.frombuffer(bytearray(own), dtype=torch.uint8))
        outlines, machines, values = told[:, : 3 * DIGEST_BYTES].split(DIGEST_BYTES, 1)
        if _first_other(outlines):
            _refuse(outline, outlines, group)
        elif wrong := [one for one in seen if one.wrong]:
            raise ConfigError(f"{wrong[0].name} {wrong[0].wrong}")
        elif not exact or _first_other(machines):
            _compare_closely(seen, group)
        elif _first_other(values):
            lines = [f"{one.name}\t{value}" for one, value in zip(seen, sums, strict=True)]
            _refuse(lines, values, group)


def _see(trained: Trained, way: Way, ends: bool, base: Mapping[int, Tensor]) -> list[_Seen]:
    """What the module and the optimizers have now, and not what was noted of them. At the end no step will come
    that looks for edits of what is shared."""
    followed = {id(p) for p in trained.parameters}
    everything = dict(trained.module.named_parameters())
    here = {id(p) for p in everything.values()} | {id(p) for _, p in trained.left}
    for number, stepped in enumerate(trained.groups):
        rest = [p for p in stepped["params"] if id(p) not in here]
        everything |= {f"parameter {n} of the optimizers' group {number}": p for n, p in enumerate(rest)}
    changes = trained.is_outdated()  # so that the next forward follows
    seen = []
    for name, value in everything.items():
        if id(value) not in followed and (changes or not value.requires_grad):
            continue
        shared = not ends and way.has_in_common(value)
        wrong = "" if id(value) in followed else "trains, but no worker's gradient of it reaches the others"
        seen.append(_Seen(name, base.get(id(value), value).detach(), wrong, shared))
    return seen


def _refuse(own: Sequence[str], digests: Tensor, group: Group) -> None:
    """By the name of the first that differs between worker 0 and the first other who has not the same."""
    lines = [told_by("\n".join(own).encode(), group, root).decode() for root in (0, _first_other(digests))]
    first, other = (text.split("\n") for text in lines)
    pairs = ((a, b) for a, b in zip([*first, ""], [*other, ""], strict=False) if a != b)
    a, b = next(pairs)
    name, _, _ = (a or b).partition("\t")
    raise ConfigError(f"{name} {_ONE_ALONE}")


def _first_other(digests: Tensor) -> int:
    """The first rank whose digest is not rank 0's; 0 if there is none."""
    return next((rank for rank in range(1, len(digests)) if not torch.equal(digests[rank], digests[0])), 0)


def _compare_closely(seen: Sequence[_Seen], group: Group) -> None:
    """Where other bits are honest: what is finite on one is on all, and norms and sums are the same to a tolerance."""
    figures = torch.tensor([_figures(one) for one in seen], dtype=torch.float64).reshape(-1, 3)
    told = group.all_gather(figures)
    for index, one in enumerate(seen):
        norms, sums, finite = told[:, index].T
        room = _ALIKE * norms.abs().max().clamp_min(1e-30)
        apart = norms.max() - norms.min() > room or sums.max() - sums.min() > room * max(1, one.value.numel()) ** 0.5
        if finite.max() != finite.min() or (bool(finite.all()) and bool(apart)):
            raise ConfigError(f"{one.name} {_ONE_ALONE}")


def _figures(one: _Seen) -> tuple[float, float, float]:
    if one.shared:
        return 0.0, 0.0, 1.0
    value = one.value.to_dense() if one.value.is_sparse else one.value
    value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    norm, total = float(torch.linalg.vector_norm(value)), float(value.sum())
    finite = abs(norm) < float("inf")
    return (norm, total, 1.0) if finite else (0.0, 0.0, 0.0)


def _machine(seen: Sequence[_Seen]) -> str:
    """What the last bits may depend on."""
    devices = sorted({str(one.value.device.type) for one in seen})
    return f"{devices} {torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()} {torch.__version__}"


def _digest(*lines: str) -> bytes:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=DIGEST_BYTES).digest()

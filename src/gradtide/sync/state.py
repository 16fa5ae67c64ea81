"""What is alike on all ranks besides parameters: the model's outline, optimizers' options and state, the position."""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor

from gradtide.calling import users_level
from gradtide.collective import Group
from gradtide.collective.groups.device_group import DeviceGroup
from gradtide.errors import ConfigError
from gradtide.sync.job import Job
from gradtide.sync.shared.pieces import copied
from gradtide.sync.trained import Trained

__all__ = [
    "DIGEST_BYTES",
    "Broadcasts",
    "LastStep",
    "Options",
    "adopt_options",
    "alike",
    "check_alike",
    "check_batches",
    "compare_models",
    "difference",
    "kind_of",
    "outline",
    "plain_options",
    "share_buffers",
    "share_named",
    "share_place",
    "share_state",
    "share_steps",
    "told_by",
]

DIGEST_BYTES = 8
_ALIKE = 1e-4  # how closely parameters' norms are compared between ranks
_PLAIN = bool | int | float | str | None


class Broadcasts(Protocol):
    """A group, or what stands for one."""

    @property
    def rank(self) -> int: ...

    def broadcast(self, tensor: Tensor, root: int = 0) -> Any: ...


class _Scalar(msgspec.Struct, frozen=True, tag=True):
    """A piece of state that is a plain value."""

    value: bool | int | float | str | None


class _Shape(msgspec.Struct, frozen=True, tag=True):
    """A piece of state that is a tensor; its elements follow."""

    dtype: str
    shape: tuple[int, ...]


class _Standing(msgspec.Struct, frozen=True):
    """What rank 0 tells."""

    batches: int  # whose steps are finished
    options: list[dict[str, Any]]  # a group each
    state: list[dict[str, _Shape | _Scalar]]  # a parameter each
    script: dict[str, Any] = {}
    epoch_began: int = 0
    done: int = 0
    edits: int = 0
    mean: list[float] = []
    begins: bool = False  # nobody is left who was under way: all have just come


def outline(trained: Trained) -> list[str]:
    """What must be the same on every worker, a line each."""
    names = {id(p): name for name, p in trained.everything}
    lines = [
        f"{'parameter' if p.requires_grad else 'frozen parameter'} {name}: {kind_of(p)}"
        for name, p in trained.everything
    ]
    lines += [f"buffer {name}: {kind_of(buffer)}" for name, buffer in trained.buffers]
    for number, optimizer in enumerate(trained.optimizers):
        for place, group in enumerate(optimizer.param_groups):
            members = ", ".join(names.get(id(p), "one that the model has no more") for p in group["params"])
            lines.append(f"group {place} of optimizer {number}, {type(optimizer).__name__}: {members}")
    return lines


def kind_of(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def compare_models(trained: Trained, group: Group, *also: str) -> None:
    """All ranks must have built the same; otherwise all of them say so, and those who differ say how."""
    own = [*outline(trained), *also]
    digests = group.all_gather(_bytes(_digest("\n".join(own))))
    others = [rank for rank in range(group.size) if not torch.equal(digests[rank], digests[0])]
    if not others:
        return
    theirs = told_by("\n".join(own).encode(), group).decode().split("\n")
    if group.rank in others:
        raise ConfigError(
            f"this worker's model is not worker 0's: {difference(theirs, own, 'worker 0')}; build the same on all"
        )
    raise ConfigError(f"the model of worker {others[0]} is not that of worker 0; its own message says how they differ")


def alike(text: str, group: Group) -> bool:
    """Whether all ranks say the same."""
    digests = group.all_gather(_bytes(_digest(text)))
    return bool((digests == digests[0]).all())


def check_alike(trained: Trained, group: Group | DeviceGroup) -> None:
    """Every rank must have the same parameters; a program may have changed them on one alone. A net and no proof:
    looked at now and then, and only as closely as machines of different kinds compute alike."""
    norms = torch.stack(torch._foreach_norm([p.detach() for p in trained.parameters])).double().cpu()
    extremes = torch.cat([norms, -norms])
    group.all_reduce(extremes, "max")
    largest, smallest = extremes.view(2, -1)[0], -extremes.view(2, -1)[1]
    apart = (largest - smallest > _ALIKE * largest.abs().clamp_min(1e-30)).nonzero().flatten().tolist()
    if apart:
        raise ConfigError(
            f"{trained.names[apart[0]]} is no longer the same on all workers: the program changes it on one alone, or "
            "by its own part of a batch; change parameters alike on all, or in `with model.edit():`"
        )


def difference(theirs: Sequence[str], own: Sequence[str], who: str) -> str:
    """The first one, in words."""
    for a, b in zip(theirs, own, strict=False):
        if a != b:
            return f"it has {b}, and {who} {a}"
    more = len(own) > len(theirs)
    return f"{'this worker' if more else who} also has {(own if more else theirs)[min(len(own), len(theirs))]}"


def share_buffers(trained: Trained, group: Group | DeviceGroup, root: int = 0) -> None:
    """A rank's buffers become everybody's."""
    for _, buffer in trained.buffers:
        group.broadcast(buffer, root)


def told_by(own: bytes, group: Broadcasts, root: int = 0) -> bytes:
    """What one rank says."""
    length = torch.tensor([len(own)])
    group.broadcast(length, root)
    text = torch.zeros(int(length), dtype=torch.uint8)
    if group.rank == root:
        text.copy_(_bytes(own))
    group.broadcast(text, root)
    return bytes(text.tolist())


def _bytes(raw: bytes) -> Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def share_state(trained: Trained, job: Job, group: Group, spread: Group | DeviceGroup) -> None:
    """Rank 0's optimizer state becomes everybody's, and a newcomer learns how far the others are. Tensors are told by
    `spread`."""
    if job.elastic is None:
        _check_batches(job, group)
    told = msgspec.json.decode(told_by(_tell(trained, job), group), type=_Standing)
    if group.rank and job.elastic is not None and job.elastic.newcomer and not job.batches:  # not when its way changes
        _take_place(trained, job, told)
        job.arrived, job.done, job.past_edits = told.begins, told.done, told.edits
    elif group.rank:  # a death may find one before a step's end, another after it
        job.stayed = (told.batches, told.done) > (job.batches + job.behind - job.undone, job.done)
        job.undone, job.done, job.last_mean = max(0, job.batches - told.batches), told.done, told.mean
    for parameter, named in zip(trained.parameters, told.state, strict=True):
        _share_one(trained.state_of(parameter), parameter, named, spread)


def _check_batches(job: Job, group: Group) -> None:
    """Where nobody comes or goes, all are at the same batch when they begin anew."""
    given = group.all_gather(torch.tensor([job.batches])).flatten().tolist()
    if len(set(given)) > 1:
        raise ConfigError(
            f"workers 0 to {group.size - 1} come to this step with their batches number {given} of gradtide.shard: one "
            "of them left out the step of a batch; take it on all workers, or on none"
        )


def check_batches(given: Sequence[int]) -> None:
    """Which batch of `shard` each rank takes this step with; all must take it with the same."""
    other = next((rank for rank, batches in enumerate(given) if batches != given[0]), None)
    if other is not None:
        raise ConfigError(
            f"worker {other} takes this step with its batch number {given[other]} of gradtide.shard, and worker 0 with "
            f"number {given[0]}: one left out the step of a batch, or they don't agree on no_sync(); let batches.place "
            "decide, of batches = gradtide.shard(loader), which is the same on all, and no counter of the loop's own"
        )


def share_place(trained: Trained, job: Job, spread: Group | DeviceGroup, root: int, newcomer: bool) -> None:
    """Newcomers learn where one rank is, its options and its optimizer's state; the others keep what is theirs."""
    assert job.group is not None
    told = msgspec.json.decode(told_by(_tell(trained, job), job.group, root), type=_Standing)
    if newcomer:
        _take_place(trained, job, told)
    for parameter, named in zip(trained.parameters, told.state, strict=True):
        keeps = newcomer or spread.rank == root
        _share_one(trained.state_of(parameter) if keeps else {}, parameter, named, spread, root)


def share_steps(trained: Trained, group: Broadcasts) -> None:
    """Rank 0's parameters and optimizer state become everybody's."""
    for _, parameter in trained.everything:
        group.broadcast(parameter.data)
    own = [_described(trained.state_of(p).get(p, {})) for p in trained.parameters]
    told = msgspec.json.decode(told_by(msgspec.json.encode(own), group), type=list[dict[str, _Shape | _Scalar]])
    for parameter, named in zip(trained.parameters, told, strict=True):
        _share_one(trained.state_of(parameter), parameter, named, group)


def share_named(
    of: dict[str, dict[str, Any]], group: Group, spread: Group | DeviceGroup, root: int
) -> dict[str, dict[str, Any]]:
    """State that one rank has by names, such as an outer optimizer's, for all."""
    own = {name: _described(state) for name, state in of.items()}
    told = msgspec.json.decode(
        told_by(msgspec.json.encode(own), group, root), type=dict[str, dict[str, _Shape | _Scalar]]
    )
    found: dict[str, dict[str, Any]] = {}
    for name, state in told.items():
        found[name] = {}
        for key, what in state.items():
            if isinstance(what, _Scalar):
                found[name][key] = what.value
                continue
            mine = of[name][key] if group.rank == root else torch.zeros(what.shape, dtype=getattr(torch, what.dtype))
            found[name][key] = spread.broadcast(mine, root)
    return found


def _take_place(trained: Trained, job: Job, told: "_Standing") -> None:
    """Of a newcomer, among those who were under way."""
    job.behind = told.batches
    job.state.update(told.script)
    job.epoch_began, job.resumed = told.epoch_began, True
    for mine, theirs in zip(trained.groups, told.options, strict=True):
        adopt_options(mine, theirs)


def adopt_options(mine: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Takes over a group's options; returns which of them were others."""
    changed = []
    for name, value in theirs.items():
        own = mine.get(name)
        if (list(own) if isinstance(own, tuple) else own) == value:
            continue
        changed.append(name)
        if isinstance(own, Tensor):
            own.fill_(value)
        else:
            mine[name] = tuple(value) if isinstance(own, tuple) else value
    return changed


class Options:
    """The options of all groups, which are the same on every rank at every step: rank 0's, if somebody sets others."""

    def __init__(self, trained: Trained) -> None:
        self._trained, self._warned, self._steps = trained, False, 0
        self._known: list[Any] = []
        self._digest = self._at_step = bytes(DIGEST_BYTES)

    def digest(self) -> bytes:
        known = [[_plain(v) for k, v in group.items() if k != "params"] for group in self._trained.groups]
        if known != self._known:
            self._known = known
            self._digest = _digest(repr([plain_options(group) for group in self._trained.groups]))
        return self._digest

    def stepped(self) -> None:
        """A step was taken with what they are now."""
        self._steps += 1
        self._at_step = _digest(f"{self._steps} {self.digest()!r}")

    def digest_at_step(self) -> bytes:
        """Of how many steps there were, and of what the options were at the last."""
        return self._at_step

    def met(self, steps: int = 0) -> None:
        """What is compared is of the steps since; a newcomer has missed some of them."""
        self._steps = steps
        self._at_step = _digest(f"{steps} {self.digest()!r}") if steps else bytes(DIGEST_BYTES)

    def told(self, batches: int = 0) -> Tensor:
        """For an all-reduce of maxima: what they are, and were at the last step, and how many batches were given until
        now, each with its opposite."""
        all_three = _bytes(self.digest() + self._at_step + batches.to_bytes(DIGEST_BYTES, "little"))
        return torch.cat([all_three, 255 - all_three])

    def settle(self, largest: Tensor, group: Group | DeviceGroup, batches: int = 0) -> None:
        high, low = largest.view(2, -1).int()
        now, then, where = (high + low).ne(255).view(3, -1).any(1).tolist()
        if where:
            check_batches(group.all_gather(torch.tensor([batches])).flatten().tolist())
        if then:
            raise ConfigError(
                "a worker took a step that another left out, or took it with other options of its optimizers, so their "
                "parameters are no longer alike; decide alike on all workers, and change options before backward"
            )
        if now:
            self.take(group)

    def take(self, group: Group | DeviceGroup) -> None:
        """Rank 0's become everybody's."""
        own = [plain_options(one) for one in self._trained.groups]
        told = msgspec.json.decode(told_by(msgspec.json.encode(own), group))
        for number, (mine, theirs) in enumerate(zip(self._trained.groups, told, strict=True)):
            before, changed = dict(mine), adopt_options(mine, theirs)
            if changed and not self._warned:
                self._warned = True
                name = changed[0]
                warnings.warn(
                    f"{name} of group {number} is {before.get(name)} on worker {group.rank} and {theirs[name]} on "
                    "worker 0, whose options count for all; resume schedulers from model.state, or set them alike",
                    stacklevel=users_level(),
                )


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def plain_options(group: dict[str, Any]) -> dict[str, Any]:
    plain = {k: _plain(v) for k, v in group.items() if k != "params"}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items() if _is_plain(v)}


def _share_one(
    states: Any, parameter: Tensor, named: dict[str, _Shape | _Scalar], group: Broadcasts, root: int = 0
) -> None:
    if not named:
        states.pop(parameter, None)
        return
    mine = states[parameter] if group.rank == root else {}
    for name, what in named.items():
        if isinstance(what, _Scalar):
            mine[name] = what.value
            continue
        if group.rank != root:
            where = parameter.device if what.shape == tuple(parameter.shape) else "cpu"
            mine[name] = torch.zeros(what.shape, dtype=getattr(torch, what.dtype), device=where)
        group.broadcast(mine[name], root)
    states[parameter] = mine


def _tell(trained: Trained, job: Job) -> bytes:
    options = [plain_options(group) for group in trained.groups]
    state = [_described(trained.state_of(p).get(p, {})) for p in trained.parameters]
    batches, begins = job.batches + job.behind - job.undone, job.elastic is not None and job.elastic.newcomer
    edits = job.edits_before if job.undone else job.edits + job.past_edits
    done = job.done, edits, job.last_mean, begins
    standing = _Standing(batches, options, state, job.state, job.epoch_began, *done)
    try:
        return msgspec.json.encode(standing)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"model.state holds what can't be told to others ({error}); keep plain values in it (of a tensor .tolist())"
        ) from None


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (
        isinstance(value, tuple | list) and all(isinstance(v, bool | int | float) for v in value)
    )


def _described(state: Mapping[str, Any]) -> dict[str, _Shape | _Scalar]:
    return {
        name: _Shape(str(value.dtype).removeprefix("torch."), tuple(value.shape))
        if isinstance(value, Tensor)
        else _Scalar(value)
        for name, value in state.items()
    }


class LastStep:
    """The parameters and the optimizer's state of the last finished step, in this process's own memory."""

    def __init__(self, trained: Trained) -> None:
        self._trained = trained
        self._values = [parameter.detach().clone() for parameter in trained.parameters]
        self._states = [copied(trained.state_of(p).get(p, {})) for p in trained.parameters]

    def restore(self) -> None:
        for parameter, value, state in zip(self._trained.parameters, self._values, self._states, strict=True):
            states = self._trained.state_of(parameter)
            parameter.detach().copy_(value)  # in place: what shares memory with it goes on with it
            parameter.grad = None
            states.pop(parameter, None)
            if state:
                states[parameter] = copied(state)

"""The whole of what devices hold parts of: a model's state and an optimizer's, under plain names, and back."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradtide.errors import DataError
from gradtide.parallel.split.cut.local import LocalParameter
from gradtide.parallel.split.run.held import Held
from gradtide.parallel.split.run.optimizer import LocalOptimizer
from gradtide.parallel.split.run.speaking.communicator import Communicator, Packet

__all__ = [
    "Part",
    "WholeNames",
    "check_state",
    "join_parts",
    "load_model",
    "model_parts",
    "optimizer_parts",
    "share_parts",
]

_TAG = 1 << 40  # of messages with parts: above all tasks
Part = tuple[str, LocalParameter, Packet]  # a key, whose part it is, and what


class WholeNames:
    """What a model's state_dict has, in its order, by the names that devices hold tensors under."""

    def __init__(self, model: nn.Module) -> None:
        first: dict[int, str] = {}
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            first.setdefault(id(tensor), name)
        self.first = first  # of each parameter and buffer, by its id
        self.keys: dict[str, str] = {}  # the state's -> the first name
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.rest: dict[str, Any] = {}  # what is no tensor of the model's
        for key, value in model.state_dict(keep_vars=True).items():
            if id(value) in first:
                self.keys[key], self.shapes[key] = first[id(value)], tuple(value.shape)
            else:
                self.rest[key] = value
        self.order = list(model.state_dict(keep_vars=True))


def check_state(names: WholeNames, state: Mapping[str, Any]) -> None:
    """Refuses the state of another model, by the name that tells."""
    missing = [key for key in names.order if key not in state]
    unknown = [key for key in state if key not in names.order]
    if missing or unknown:
        which = f"it lacks {missing[0]}" if missing else f"it has {unknown[0]}, which this model has not"
        raise DataError(f"the state is of another model: {which} ({len(missing)} missing, {len(unknown)} unknown)")
    for key, shape in names.shapes.items():
        if not isinstance(state[key], Tensor):
            raise DataError(f"the state is of no model: {key} is a {type(state[key]).__name__} there, and no tensor")
        if tuple(state[key].shape) != shape:
            raise DataError(
                f"the state is of another model: {key} has shape {tuple(state[key].shape)} there and {shape} here"
            )


def load_model(held: Held, state: Mapping[str, Any]) -> None:
    """By the first names: takes this device's parts."""
    with torch.no_grad():
        for holding in (*held.parameters.values(), *held.buffers.values()):
            if holding.name not in state:
                continue  # a buffer that is not persistent
            whole = state[holding.name]
            for _, local in holding.holders:
                local.tensor.copy_(whole[local.index] if local.index else whole)


def model_parts(held: Held) -> list[Part]:
    counted = [one for one in (*held.parameters.values(), *held.buffers.values()) if one.counts]
    return [(holding.name, holding.local, holding.tensor.detach()) for holding in counted]


def optimizer_parts(held: Held, optimizer: LocalOptimizer) -> list[Part]:
    """Keys are the parameter's name and the state's, as JSON."""
    found: list[Part] = []
    for holding in held.parameters.values():
        if holding.counts:
            for key, value in optimizer.state_of(holding).items():
                found.append((json.dumps([holding.name, key]), holding.local, value))
    return found


def join_parts(several: Iterable[Sequence[Part]]) -> dict[str, Any]:
    """The whole tensors, made of the parts of all devices, which are here."""
    whole: dict[str, Any] = {}
    for parts in several:
        for key, local, value in parts:
            _lay(whole, key, local.shape, tuple(local.index), value)
    return whole


def share_parts(parts: Sequence[Part], communicator: Communicator) -> dict[str, Any]:
    """The same, where each device has its own. All devices call it."""
    whole: dict[str, Any] = {}
    for rank in range(communicator.size):
        if rank == communicator.rank:
            told = [[key, list(one.shape), [[s.start, s.stop, s.step] for s in _spans(one)]] for key, one, _ in parts]
            letter: list[Packet] = [_as_tensor(json.dumps(told)), *(value for _, _, value in parts)]
            for other in range(communicator.size):
                if other != rank:
                    communicator.send(letter, other, _TAG)
        else:
            letter = communicator.receive(rank, _TAG)
        assert isinstance(letter[0], Tensor)
        described = json.loads(bytes(letter[0].tolist()).decode())
        for (key, shape, spans), value in zip(described, letter[1:], strict=True):
            _lay(whole, key, shape, tuple(slice(*span) for span in spans), value)
    communicator.finish()
    return whole


def _spans(local: LocalParameter) -> Iterable[slice]:
    return [slice(*one.indices(size)) for one, size in zip(local.index, local.shape, strict=False)]


def _lay(whole: dict[str, Any], key: str, shape: Sequence[int], index: tuple[slice, ...], value: Packet) -> None:
    """Puts a part where it belongs."""
    if not isinstance(value, Tensor) or not index or value.dim() == 0:
        whole[key] = value.detach().clone().cpu() if isinstance(value, Tensor) else value
        return
    if key not in whole:
        whole[key] = torch.zeros(tuple(shape), dtype=value.dtype)
    whole[key][index] = value.detach().cpu()


def _as_tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)

"""What comes before the first step: everybody's parameters are rank 0's, and everybody's layout is too."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gradtide.collective import Group
from gradtide.errors import ConfigError, DataError, GradtideError
from gradtide.parallel.split.cut.exactness import BatchNormChoice
from gradtide.schedule.step.by_hand import parse_layout
from gradtide.schedule.step.files import check_layout, layout_from_json, layout_to_json
from gradtide.schedule.step.layout import Layout

__all__ = [
    "SplitRequest",
    "agree_on_layout",
    "broadcast_model",
    "describe_layout",
    "first_samples",
    "given_layout",
    "is_released",
    "read_layout",
    "release",
    "restore",
]

_RELEASED = (1, 1, 1, 1, 1, 7)  # the shape of a parameter whose values are elsewhere


@dataclass(frozen=True, slots=True)
class SplitRequest:
    """What the user said of how the model is to be split."""

    split: Any  # "auto", a layout, a plan with one, text, or the path of a file
    memory: str | float | None = None
    topology: Any = None
    micro_batches: int | None = None
    batch_norm: BatchNormChoice = ""

    @property
    def is_automatic(self) -> bool:
        return isinstance(self.split, str) and self.split == "auto"


def given_layout(request: SplitRequest, units: Sequence[str]) -> Layout:
    """The layout that was given, in whatever form."""
    split = request.split
    if isinstance(split, Layout):
        layout = split
    elif isinstance(found := getattr(split, "layout", None), Layout):
        layout = found
    elif isinstance(split, Path) or (isinstance(split, str) and split.endswith(".json")):
        layout = read_layout(Path(split))
    elif isinstance(split, str):
        return parse_layout(split, units, request.micro_batches or 1)
    else:
        raise ConfigError(
            f'split is a {type(split).__name__}; give "auto", a Layout, what gradtide.split gives, or a layout as text '
            "or the path of its JSON"
        )
    if request.micro_batches is not None:
        layout = Layout(layout.units, layout.stages, request.micro_batches, layout.order)
    check_layout(layout)
    return layout


def read_layout(path: Path) -> Layout:
    """Of a file."""
    try:
        text = path.read_text()
    except OSError as error:
        raise DataError(f"no layout can be read from {path} ({error.strerror})") from None
    return layout_from_json(text, str(path))


def agree_on_layout(layout: Layout | None, group: Group | None, error: GradtideError | None = None) -> Layout:
    """Rank 0 tells the others which it is, or why there is none, so that all agree; the others give None."""
    if group is None:
        if error is not None:
            raise error
        assert layout is not None
        return layout
    text = b"" if group.rank else (str(error) if layout is None else layout_to_json(layout)).encode()
    head = torch.tensor([len(text), int(error is not None)])
    group.broadcast(head)
    length, failed = head.tolist()
    body = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.empty(length, dtype=torch.uint8)
    group.broadcast(body)
    if failed:
        raise error or ConfigError(f"rank 0 could not plan: {bytes(body.tolist()).decode()}")
    return layout_from_json(bytes(body.tolist()))


def broadcast_model(model: nn.Module, group: Group | None) -> None:
    """All ranks begin with rank 0's parameters and buffers."""
    if group is None:
        return
    with torch.no_grad(), group.purpose("in gradtide.ModelParallel"):
        for tensor in (*model.parameters(), *model.buffers()):
            if not tensor.is_meta and tensor.numel():
                group.broadcast(tensor.data)


def first_samples(inputs: Any, count: int) -> Any:
    """The first rows of every tensor of a batch that has one a sample; again from the start where there are too few."""
    leaves = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim()]
    samples = len(leaves[0]) if leaves else 0
    if not samples:
        raise ConfigError("a batch has no sample in it; give the model's inputs with a row a sample, 1 or more")

    while any(len(leaf) == count != samples for leaf in leaves):
        count += 1  # so that what has no row a sample does not look as if it had

    def cut(leaf: Any) -> Any:
        rows = isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == samples
        return leaf[torch.arange(count) % samples] if rows else leaf

    return pytree.tree_map(cut, inputs)


def describe_layout(layout: Layout) -> str:
    """In words: "0 to 2 on device 0; 3 to 6: 2 shards on devices 1, 2; 4 micro-batches, 1f1b"."""
    said = []
    for stage in layout.stages:
        first, last = layout.units[stage.first], layout.units[stage.last - 1]
        units = first if stage.last - stage.first == 1 else f"{first} to {last}"
        copies = f": {stage.copies} copies" if stage.copies > 1 else ""
        shards = f"{' of' if copies else ':'} {stage.shards} shards" if stage.shards > 1 else ""
        again = ", computed again in backward" if stage.recompute else ""
        where = f"device{'s' if len(stage.devices) > 1 else ''} {', '.join(map(str, stage.devices))}"
        said.append(f"{units}{copies}{shards} on {where}{again}")
    count = layout.micro_batches
    return "; ".join([*said, f"{count} micro-batch{'es' if count > 1 else ''}, {layout.order}"])


class ReleasedGuard:
    """Keeps an emptied model from being saved or copied, as a hook of its state_dict."""

    def __call__(self, *details: Any) -> None:
        raise ConfigError(
            "this model is split, and its parameters are on the devices: ask the split model for its state_dict(), or "
            "call its give_back() first"
        )

    __reduce_ex__ = __call__  # type: ignore[assignment]


def release(model: nn.Module, held: set[str]) -> None:
    """The whole model's memory, once its devices hold their parts.

    One number stands in for a parameter: in a shape that no layer takes, which can't be changed in place, and it is
    none, so that a penalty or an average of parameters does not pass for one.
    """
    for name, parameter in model.named_parameters():
        if name in held and not is_released(parameter):
            nothing = float("nan") if parameter.is_floating_point() or parameter.is_complex() else 0
            parameter.data = parameter.data.new_full((), nothing).expand(_RELEASED)
            parameter.grad = None
    if not _guards(model):
        model.register_state_dict_pre_hook(ReleasedGuard())


def is_released(parameter: Tensor) -> bool:
    return tuple(parameter.shape) == _RELEASED and not any(parameter.stride())


def _guards(model: nn.Module) -> list[int]:
    hooks = model._state_dict_pre_hooks
    return [key for key, hook in hooks.items() if isinstance(hook, ReleasedGuard)]


def restore(model: nn.Module, state: Mapping[str, Any]) -> None:
    """What `release` took, from the whole state."""
    for key in _guards(model):
        del model._state_dict_pre_hooks[key]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in state and is_released(parameter):
                parameter.data = state[name].to(parameter.device, parameter.dtype, copy=True)
    model.load_state_dict(state)

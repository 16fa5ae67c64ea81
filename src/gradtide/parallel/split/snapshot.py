"""What a model is besides its parameters' values, so that a change is noticed: devices and traces have copies."""

from collections.abc import Container
from typing import Any

from torch import Tensor, nn

from gradtide.parallel.split.forward_reads import ForwardReads

__all__ = ["ModelSnapshot"]

_PLAIN = (bool, int, float, complex, str, type(None))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
Seen = list[tuple[nn.Module, dict[str, Any]]]  # what each module has, by name


class ModelSnapshot:
    """The modules of a model, with their numbers and texts, their hooks, and the tensors they have. Training and
    evaluation are left out."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._seen = model, _seen(model)
        self._reads = _forward_reads(model)
        self._tensors = [*model.parameters(), *model.buffers()]  # kept, so that no other one gets the id of any

    def change(self, leave_out: Container[nn.Module] = ()) -> str:
        """The first thing that is another one now, in words; "" if there is none. What is new and plain is none."""
        now = _seen(self._model)
        if now == self._seen:
            return self._other_reads(leave_out)
        if [module for module, _ in now] != [module for module, _ in self._seen]:
            return "one of the model's modules was added, replaced or taken out"
        paths = {module: path for path, module in self._model.named_modules()}
        for (module, before), (_, after) in zip(self._seen, now, strict=True):
            for name, value in before.items() if module not in leave_out else ():
                if after.get(name) != value:
                    return _said(".".join(filter(None, (paths[module], name))), value, after.get(name))
        return self._other_reads(leave_out)

    def _other_reads(self, leave_out: Container[nn.Module]) -> str:
        """What a forward reads elsewhere: in lists, options, classes, globals."""
        for module, reads in self._reads:
            now = {} if module in leave_out else reads.now()
            for name, value in now.items():
                if name not in reads.first or reads.first[name] != value:
                    path = next(path for path, one in self._model.named_modules() if one is module)
                    told = f"{path}{name}".lstrip(".") if name.startswith(".") else name
                    return _said(told, reads.first.get(name), value)
        return ""

    def restore(self) -> None:
        """Numbers, texts and tensors are those that there were; what is in the tensors is not looked at."""
        tensors = {id(tensor): tensor for tensor in self._tensors}
        for module, had in self._seen:
            for name, value in had.items():
                if isinstance(value, _PLAIN):
                    vars(module)[name] = value
                elif name in module._buffers:
                    module._buffers[name] = tensors[value[0]]
        for _, reads in self._reads:
            reads.undo()


def _forward_reads(model: nn.Module) -> list[tuple[nn.Module, ForwardReads]]:
    kinds: set[Any] = set()
    found = []
    for module in model.modules():
        forward = vars(module).get("forward", type(module))  # one that was set on the module itself reads what it likes
        found.append((module, ForwardReads(module, forward in kinds)))
        kinds.add(forward)
    return found


def _seen(model: nn.Module) -> Seen:
    return [(module, _had(module)) for module in model.modules()]


def _had(module: nn.Module) -> dict[str, Any]:
    own = vars(module)
    found: dict[str, Any] = {name: value for name, value in own.items() if type(value) in _PLAIN and name != "training"}
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None:
            found[name] = _looked_at(tensor)
    for name in _HOOKS:
        found[name] = (len(own[name]),)
    return found


def _looked_at(tensor: Tensor) -> tuple[Any, ...]:
    """Which it is, and how often it was changed in place."""
    hooks = getattr(tensor, "_post_accumulate_grad_hooks", None)
    return id(tensor), tensor._version, tensor.dtype, len(tensor._backward_hooks or ()), len(hooks or ())


def _said(name: str, before: Any, after: Any) -> str:
    if isinstance(before, _PLAIN) and isinstance(after, _PLAIN):
        return f"{name} was {before!r} and is {after!r} now"
    return f"{name} was changed"

"""What a run needs to go on bit for bit, as tensors by name and plain values: model, optimizer, buffers, generators.

Generators are the process's own (torch's, NumPy's and Python's), and those that loaders, samplers and datasets hold;
and where a sampler counts its epochs. What a function of the user's makes anew each epoch is not known.
"""

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from gradtide.errors import ConfigError, DataError

if TYPE_CHECKING:
    from gradtide.train.run import Run

__all__ = [
    "DataGenerators",
    "add_left_out",
    "collect",
    "has_left_out",
    "load_groups",
    "load_model",
    "load_optimizer",
    "only_of_all",
    "put_back",
    "sync_state",
    "without_draws",
    "without_left_out",
]

MODEL, STATE, REPLICA, RANDOM, OUTER = "model/", "optimizer/", "replica-", "random/", "outer/"
NOW, EPOCH = f"{RANDOM}now", f"{RANDOM}epoch"  # of what draws while data is read; '' is torch's own generator
COMPRESSION = "compression/"  # each worker's own
COMPRESSION_LEFT = f"{COMPRESSION}left "  # of that, what it has left out
_COMPRESSION_RATE = f"{COMPRESSION}rate "  # and the learning rate by which that counts
_DEPTH, _ENTRIES = 6, 64  # how far it is looked: a Dataset may hold a list of all samples
_NUMBER = bool | int | float
_LEAVES = Tensor | np.ndarray | nn.Module | type | str | bytes | _NUMBER
_PART = "\n"  # between a parameter's name and that of a piece of the outer optimizer's state


def collect(run: "Run", *, with_model: bool, with_state: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Copies of everything; `with_model`, `with_state`: of the model and its optimizer too, else somebody else has
    them."""
    if run.reading is not None:
        run.reading.settle()
    found: dict[str, Tensor] = {f"{NOW}{name}": state for name, state in run.generators.states().items()}
    found |= {f"{EPOCH}{name}": state for name, state in run.epoch_random.items()}
    for i, replica in enumerate(run.replicas):
        device = replica.device.torch_device
        if device.type == "cuda":
            found[f"{RANDOM}device-{i}"] = torch.cuda.get_rng_state(device)
        elif run.randomness is not None and (random := run.randomness[i]) is not None:
            found[f"{RANDOM}device-{i}"] = random.generator.get_state()
        found |= {f"{REPLICA}{i}/{name}": buffer for name, buffer in replica.module.named_buffers()}
    first = run.optimizers[0]
    plain: dict[str, Any] = {"groups": [_plain(group) for group in first.param_groups], "state": {}}
    sync = run.sync_state()
    found |= {f"{COMPRESSION}{name}": tensor for name, tensor in sync.pop("compression", {}).items()}
    if with_model:
        found |= {f"{MODEL}{name}": tensor for name, tensor in run.replicas[0].module.state_dict().items()}
        plain["sync"], outer = _cut(sync)
        found |= outer
    if with_state:
        for index, state in first.state_dict()["state"].items():
            plain["state"][str(index)] = {k: v for k, v in state.items() if not isinstance(v, Tensor)}
            found |= {f"{STATE}{index}/{name}": v for name, v in state.items() if isinstance(v, Tensor)}
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in found.items()}, plain


def _cut(sync: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The numbers, and the tensors by name."""
    outer: dict[str, dict[str, Any]] = sync.pop("outer", {})
    every = [(name, key, value) for name, state in outer.items() for key, value in state.items()]
    tensors = {f"{OUTER}{name}{_PART}{key}": value for name, key, value in every if isinstance(value, Tensor)}
    numbers = [[name, key, value] for name, key, value in every if not isinstance(value, Tensor)]
    return ({**sync, "outer": numbers} if sync else {}), tensors


def sync_state(tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> dict[str, Any]:
    """What local steps kept, and what compression left out; nothing in a checkpoint of another run."""
    cut = len(COMPRESSION)
    left = {name[cut:]: tensor.clone() for name, tensor in tensors.items() if name.startswith(COMPRESSION)}
    own = {"compression": left} if left else {}
    kept = plain.get("sync")
    if not kept:
        return own
    outer: dict[str, dict[str, Any]] = {}
    for full, tensor in tensors.items():
        if full.startswith(OUTER):
            name, _, key = full[len(OUTER) :].partition(_PART)
            outer.setdefault(name, {})[key] = tensor.clone()
    for name, key, value in kept["outer"]:
        outer.setdefault(name, {})[key] = value
    return {**kept, "outer": outer, **own}


def only_of_all(tensors: Mapping[str, Tensor], *, apart: bool) -> dict[str, Tensor]:
    """Of what one worker wrote: what is not its own. `apart`: the optimizer's state is."""
    of_all = (MODEL, OUTER) if apart else (MODEL, OUTER, STATE)
    return {name: tensor for name, tensor in tensors.items() if name.startswith(of_all)}


def has_left_out(tensors: Mapping[str, Tensor]) -> bool:
    """Whether compression had left out anything that is not sent yet."""
    return any(name.startswith(COMPRESSION_LEFT) and bool(tensor.any()) for name, tensor in tensors.items())


def without_left_out(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(COMPRESSION_LEFT)}


def add_left_out(tensors: dict[str, Tensor], others: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """With what compression had left out of other workers' gradients or changes, too: their sum is what counts."""
    total = dict(tensors)
    for other in others:
        for name, left in other.items():
            if name.startswith(COMPRESSION_LEFT):
                _add_one(total, other, name, left)
        for name, tensor in other.items():
            if name.startswith(COMPRESSION):
                total.setdefault(name, tensor)
    return total


def _add_one(total: dict[str, Tensor], other: Mapping[str, Tensor], name: str, left: Tensor) -> None:
    """A worker that had no gradient of late has one that counts by an earlier learning rate."""
    rate = _COMPRESSION_RATE + name[len(COMPRESSION_LEFT) :]
    if name not in total:
        total[name], total[rate] = left, other[rate]
        return
    own, theirs = float(total[rate]), float(other[rate])
    if math.isnan(own):
        total[rate] = other[rate]
    alike = math.isnan(own) or math.isnan(theirs) or own == theirs
    total[name] = total[name] + (left if alike else left * (theirs / own))


def without_draws(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without the generators of a worker's devices."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(f"{RANDOM}device-")}


def _named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _plain(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def load_model(model: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Raises DataError when the checkpoint is of another model; then nothing was changed."""
    found = {name[len(MODEL) :]: tensor for name, tensor in tensors.items() if name.startswith(MODEL)}
    own = model.state_dict()
    for name in own:
        if name not in found:
            raise DataError(f"{where} has no {name!r}, which the model has; resume with the model that was trained")
        if found[name].shape != own[name].shape:
            raise DataError(
                f"{name!r} is {tuple(found[name].shape)} in {where}, and {tuple(own[name].shape)} in the model; resume "
                "with the model that was trained"
            )
    model.load_state_dict({name: found[name] for name in own})


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
    """The options of its groups, and its state."""
    states: dict[int, dict[str, Any]] = {int(index): dict(state) for index, state in plain["state"].items()}
    for name, tensor in tensors.items():
        if name.startswith(STATE):
            index, _, key = name[len(STATE) :].partition("/")
            states.setdefault(int(index), {})[key] = tensor.clone()
    check_groups(optimizer.param_groups, plain["groups"])
    own = optimizer.state_dict()
    groups = [
        {**group, **{key: _like(value, group.get(key)) for key, value in saved.items()}}
        for group, saved in zip(own["param_groups"], plain["groups"], strict=True)
    ]
    optimizer.load_state_dict({"state": states, "param_groups": groups})


def check_groups(own: Sequence[Mapping[str, Any]], saved: Sequence[Mapping[str, Any]]) -> None:
    """Raises ConfigError for the options of another optimizer. (A later torch may know more of the same one's, and
    schedulers add some.)"""
    if len(own) != len(saved):
        raise ConfigError(
            f"the checkpoint's optimizer has {len(saved)} groups of parameters, and this one {len(own)}; resume with "
            "the same optimizer="
        )
    for mine, theirs in zip(own, saved, strict=True):
        lost = [key for key in theirs if key not in mine and not key.endswith(("_lr", "_momentum"))]
        if lost and any(key not in theirs for key in mine if key != "params"):
            raise ConfigError(
                f"the checkpoint is of another optimizer, one with {', '.join(lost)}; resume with the same optimizer="
            )


def load_groups(optimizer: torch.optim.Optimizer, plain: Mapping[str, Any]) -> None:
    """The options alone: the state is on servers."""
    check_groups(optimizer.param_groups, plain["groups"])
    for group, saved in zip(optimizer.param_groups, plain["groups"], strict=True):
        group.update({key: _like(value, group.get(key)) for key, value in saved.items()})


def _like(value: Any, example: Any) -> Any:
    """JSON has no tuples."""
    return tuple(value) if isinstance(value, list) and isinstance(example, tuple) else value


def put_back(run: "Run", tensors: Mapping[str, Tensor], draws: bool) -> None:
    """Generators and every device's own buffers. The epoch's own generator is put back when its data is read again."""
    run.epoch_random, run.resumed_random = _named(tensors, EPOCH), _named(tensors, NOW)
    if not draws:
        run.randomness = None
    for i, replica in enumerate(run.replicas):
        state = tensors.get(f"{RANDOM}device-{i}")
        if state is not None and replica.device.torch_device.type == "cuda":
            torch.cuda.set_rng_state(state.clone(), replica.device.torch_device)
        elif state is not None and run.randomness is not None and (random := run.randomness[i]) is not None:
            random.generator.set_state(state.clone())
        with torch.no_grad():
            for name, buffer in replica.module.named_buffers():
                first = tensors[f"{REPLICA}0/{name}"]  # what a device begins with that was not there before
                buffer.copy_(tensors.get(f"{REPLICA}{i}/{name}", first))


# --- what draws while data is read ---


class _KeptGenerator(NamedTuple):
    """How one is asked where it is, and put there: in plain values of JSON."""

    get: Callable[[], Any]
    put: Callable[[Any], object]


class DataGenerators:
    """All that are found in the data that a run was given. States are tensors by name: torch's own is ''."""

    def __init__(self, *data: Any) -> None:
        self._kept = {"/numpy": _of_numpy(np.random.mtrand._rand), "/python": _of_python(random._inst)}
        self._drawing = dict[str, torch.Generator]()
        seen = set[int]()
        for number, one in enumerate(data):
            self._look(f"/{number}", one, seen, _DEPTH)

    def states(self) -> dict[str, Tensor]:
        found = {"": torch.get_rng_state()} | {name: one.get_state() for name, one in self._drawing.items()}
        for name, kept in self._kept.items():
            text = json.dumps(kept.get(), default=np.ndarray.tolist).encode()
            found[name] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        return found

    def load(self, states: Mapping[str, Tensor]) -> None:
        """Those that an earlier checkpoint doesn't have stay where they are."""
        # Clones: a generator reads a state from where its storage begins, wherever the tensor does.
        torch.set_rng_state(states[""].clone())
        for name, one in self._drawing.items():
            if name in states:
                one.set_state(states[name].clone())
        for name, kept in self._kept.items():
            if name in states:
                kept.put(json.loads(states[name].numpy().tobytes()))

    def _look(self, name: str, one: Any, seen: set[int], depth: int) -> None:
        if one is None or isinstance(one, _LEAVES) or id(one) in seen:
            return
        seen.add(id(one))
        if isinstance(one, torch.Generator):
            self._drawing[name] = one
        elif isinstance(one, np.random.Generator):
            self._kept[name] = _of_bits(one.bit_generator)
        elif isinstance(one, np.random.RandomState):
            self._kept[name] = _of_numpy(one)
        elif isinstance(one, random.Random):
            self._kept[name] = _of_python(one)
        elif depth:
            self._look_for_numbers(name, one)
            for key, inner in _entries(one):
                self._look(f"{name}.{key}", inner, seen, depth - 1)

    def _look_for_numbers(self, name: str, one: Any) -> None:
        """A sampler's are where it is; of a Dataset that is its epoch."""
        if isinstance(one, Sampler) and not type(one).__module__.startswith("torch."):
            names = [key for key, value in vars(one).items() if isinstance(value, _NUMBER)]
        else:
            names = ["epoch"] if isinstance(one, Dataset) and isinstance(vars(one).get("epoch"), _NUMBER) else []
        if names:
            self._kept[f"{name}#"] = _KeptGenerator(lambda: {key: vars(one)[key] for key in names}, vars(one).update)


def _entries(one: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(one, list | tuple):
        yield from ((str(index), inner) for index, inner in enumerate(one[:_ENTRIES]))
    elif isinstance(one, dict):
        yield from ((str(key), one[key]) for key in list(one)[:_ENTRIES])
    else:
        held = getattr(one, "__dict__", {})
        hidden = ("_iterator",) if isinstance(one, DataLoader) else ()  # which has a base seed, drawn by the epoch
        yield from ((key, inner) for key, inner in held.items() if key not in hidden)
        if callable(one):
            cells = getattr(one, "__closure__", None) or ()
            yield from ((f"({index})", cell.cell_contents) for index, cell in enumerate(cells) if _is_filled(cell))


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # of a name that has no value yet
        return False


def _of_python(one: random.Random) -> _KeptGenerator:
    return _KeptGenerator(one.getstate, lambda state: one.setstate((state[0], tuple(state[1]), state[2])))


def _of_numpy(one: np.random.RandomState) -> _KeptGenerator:
    def put(state: Any) -> None:
        one.set_state(_with_arrays(state))

    return _KeptGenerator(lambda: one.get_state(legacy=False), put)


def _of_bits(one: Any) -> _KeptGenerator:
    def put(state: Any) -> None:
        one.state = _with_arrays(state)

    return _KeptGenerator(lambda: one.state, put)


def _with_arrays(state: Any) -> Any:
    """JSON has no arrays: of Mersenne's words they are of 32 bits, all others of 64."""
    if isinstance(state, dict):
        word = np.uint32 if state.get("bit_generator") == "MT19937" else np.uint64
        return {key: _arrays_in(value, word) for key, value in state.items()}
    return state


def _arrays_in(value: Any, word: Any) -> Any:
    if isinstance(value, dict):
        return {key: _arrays_in(inner, word) for key, inner in value.items()}
    return np.array(value, word) if isinstance(value, list) else value

"""gradtide split: how to lay a model out over devices, and why; with what it costs measured on this machine."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradtide.cli.table import BOLD, DIM, GREEN, styled, table_lines, tell_written
from gradtide.errors import ConfigError
from gradtide.schedule.explain import short_size
from gradtide.schedule.step.choice.wording import SPLIT_HEADS, split_cells
from gradtide.topology.wording import nearest

if TYPE_CHECKING:
    from torch import nn

    from gradtide.schedule.step.costs import ModelCosts
    from gradtide.schedule.step.planned import SplitPlan, SplitRow

__all__ = ["split", "split_text"]


def split(
    model: Annotated[
        str, typer.Argument(help="A built-in model, as alexnet, or module:function that returns a model and a batch")
    ],
    devices: Annotated[int, typer.Option(help="How many devices it may be split over")] = 2,
    topology: Annotated[
        str | None, typer.Option(help="How they are wired: a preset or a file; one host's memory if left out")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of a device: 1GB; no limit if left out")] = None,
    batch: Annotated[int, typer.Option(help="Samples of a batch, over all devices")] = 128,
    order: Annotated[
        str | None,
        typer.Option(help="gpipe, 1f1b, interleaved or zero-bubble; the better of the first two if left out"),
    ] = None,
    micro_batches: Annotated[int | None, typer.Option(help="Only this many micro-batches")] = None,
    optimizer: Annotated[str, typer.Option(help="Optimizer whose state has to fit: sgd, adam, …")] = "sgd",
    threads: Annotated[int | None, typer.Option(help="Threads of a device, for measuring")] = None,
    speeds: Annotated[
        str | None, typer.Option(help="How many times as fast as this machine each device is: 100, or 1,1,0.5")
    ] = None,
    rival: Annotated[
        list[str] | None, typer.Option(help="Prove and compare torch's own: torch:Interleaved1F1B")
    ] = None,
    draw: Annotated[
        Path | None, typer.Option(help="Draw what each device computes and sends, and when: step.svg")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Save the layout: layout.json")] = None,
) -> None:
    """Choose, prove and predict the best way to split a model over devices."""
    from gradtide.schedule.step.planned import plan_split, split_devices, split_wishes

    _check_files(draw, json)
    rivals = [_rival_name(name) for name in rival or ()]
    counts = () if micro_batches is None else micro_batches
    faster = _parse_speeds(speeds)
    split_devices(devices, topology, memory, faster)  # what makes no sense is refused before anything is measured
    split_wishes(order or "1f1b", counts).counts(batch)
    costs = _measured(model, batch, optimizer, threads, devices, topology)
    found = plan_split(costs, devices, topology, memory, order=order, micro_batches=counts, speeds=faster)
    text = split_text(found, model, [_compared(name, found) for name in rivals])
    if draw is not None:
        found.draw(draw)
    if json is not None:
        found.save(json)
    print(text)  # after the files: who reads it may stop at any line
    tell_written(draw, json)


def _check_files(draw: Path | None, json: Path | None) -> None:
    """Measuring takes seconds, and its result should not be lost for a name."""
    from gradtide.draw.save import check_path  # brings in numpy

    if draw is not None:
        check_path(draw)
    if json is not None:
        check_path(json, picture=False)
    if json is not None and json == draw:
        raise ConfigError(f"--draw and --json both name {json}; give each a file of its own")


def _parse_speeds(text: str | None) -> float | tuple[float, ...]:
    try:
        found = () if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--speeds {text!r} are no numbers; write 100, or one for each device: 1,1,0.5") from None
    return found[0] if len(found) == 1 else found


def _rival_name(text: str) -> str:
    from gradtide.parallel.split.torch_schedules import TORCH_SCHEDULES

    where, _, name = text.partition(":")
    if where != "torch" or name.lower() not in {known.lower() for known in TORCH_SCHEDULES}:
        known = [f"torch:{one}" for one in TORCH_SCHEDULES]
        raise ConfigError(f"--rival: no schedule is called {text!r}{nearest(text, known)}")
    return name


def _compared(name: str, found: "SplitPlan") -> "SplitRow | str":
    """A schedule of torch's, proven and simulated; or why it can't be."""
    from gradtide.errors import ScheduleError
    from gradtide.parallel.split.torch_schedules import rival

    try:
        return rival(name, found)
    except ScheduleError as error:
        return f"torch:{name} is out: {error}"


def _measured(
    model: str, batch: int, optimizer: str, threads: int | None, devices: int, topology: str | None
) -> "ModelCosts":
    import torch

    from gradtide.parallel.split.profile import profile
    from gradtide.parallel.split.profile.overheads import with_overheads
    from gradtide.parallel.split.trace import trace

    if batch < 1:
        raise ConfigError(f"--batch must be 1 or more, not {batch}")
    if threads is not None and threads < 1:
        raise ConfigError(f"--threads must be 1 or more, not {threads}")
    built, example = _made(model)
    chain = trace(built, example)
    threads = threads or max(1, torch.get_num_threads() // devices)  # as the devices of this machine would share them
    costs = profile(chain, example, samples=batch, threads=threads, optimizer=optimizer)
    return with_overheads(costs, topology) if devices > 1 else costs


def _made(model: str) -> "tuple[nn.Module, Any]":
    """A built-in model with two samples of what it reads, or what a user's function returns."""
    builtin = _builtin()
    if model in builtin:
        return builtin[model]()
    where, colon, name = model.partition(":")
    if not colon:
        raise ConfigError(f"no model is called {model!r}{nearest(model, builtin)}; or write module:function")
    sys.path.insert(0, "")
    try:
        made = getattr(importlib.import_module(where), name)()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{model}: {error}; write module:function, where python finds the module") from None
    from torch import nn

    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module)):
        raise ConfigError(f"{model} must return a model and an example batch, not {type(made).__name__}")
    return made


def _builtin() -> "dict[str, Callable[[], tuple[nn.Module, Any]]]":
    import torch

    from gradtide.train import models

    grey, seed = (2, 1, 28, 28), torch.Generator().manual_seed(0)
    return {
        "alexnet": lambda: (models.alexnet(), torch.randn(2, 3, 227, 227, generator=seed)),
        "alexnet-small": lambda: (models.alexnet(width=1 / 8, size=67), torch.randn(2, 3, 67, 67, generator=seed)),
        "transformer": lambda: (models.transformer(), torch.randint(0, 96, (2, 32), generator=seed)),
        "lenet": lambda: (models.lenet(), torch.randn(grey, generator=seed)),
        "mlp": lambda: (models.mlp(), torch.randn(grey, generator=seed)),
        "deep": lambda: (models.deep(), torch.randn(grey, generator=seed)),
    }


def split_text(found: "SplitPlan", model: str, rivals: "list[SplitRow | str]") -> str:
    """The winner first, the bound last, below them why, and what was not taken."""
    rows = [*found.table, *(row for row in rivals if not isinstance(row, str))]
    head, best, *others = table_lines(SPLIT_HEADS, split_cells(rows, found.bound_seconds))
    lines = [styled(BOLD, head), styled(GREEN, best), *others[:-1], styled(DIM, others[-1])]
    on = ", ".join(f"{short_size(size)} on {count}" for count, size in found.bytes_on.items())
    title = f"{model}, {found.costs.samples} samples, on {found.devices.topology.name} ({len(found.devices)} devices)"
    notes = [f"{name}: {why}." for name, why in found.skipped.items()]
    notes += [f"{row}." for row in rivals if isinstance(row, str)]
    least = f"Memory a device that is sure to be enough for some layout: {on}."
    return "\n".join([styled(BOLD, title), *lines, "", f"{found.explain()}.", least, *(styled(DIM, n) for n in notes)])

"""`gradtide train`: trains a model on several devices, shows it live, and keeps what it saw."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradtide.cli.doctor.limits import busy_line
from gradtide.cli.stopping import exit_code
from gradtide.cli.table import print_table
from gradtide.cli.train.keeping import before_resuming, check_keeping, plan_keeping
from gradtide.cli.train.meeting import check_local
from gradtide.cli.train.splitting import check_split_options
from gradtide.cli.watch.dashboard import check_dashboard, dashboard_beside
from gradtide.cli.watch.trace import TRACED, RunWatchers
from gradtide.environment import extend_environment
from gradtide.errors import ConfigError
from gradtide.events import Emit, Event, SplitDecided, ignore

if TYPE_CHECKING:
    from gradtide.observe.meter import Totals
    from gradtide.train.record import RunFolder
    from gradtide.train.settings import Settings

__all__ = ["train"]


def train(
    own_model: Annotated[
        str | None, typer.Argument(metavar="[MODULE:FUNCTION]", help="Your own model: a function that makes it")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="lenet, mlp (20 million parameters), deep (16 layers), alexnet (57 million; images are enlarged to "
            "227x227: slow without a GPU) or alexnet-small (an eighth of its width, at 67x67: try --lr 0.03)"
        ),
    ] = "lenet",
    data: Annotated[
        str,
        typer.Option(
            help="digits (embedded), fashion-mnist, or MODULE:FUNCTION, which gives the training data, or (training, "
            "validation) data, as fit takes it"
        ),
    ] = "digits",
    loss: Annotated[str, typer.Option(help="A name of torch's, as mse, or MODULE:FUNCTION")] = "cross_entropy",
    optimizer: Annotated[str, typer.Option(help="A class of torch.optim, or MODULE:FUNCTION of parameters")] = "SGD",
    schedule: Annotated[
        str | None, typer.Option(help="MODULE:FUNCTION from an optimizer to a scheduler of torch's")
    ] = None,
    schedule_per: Annotated[
        str, typer.Option(help="When the schedule is stepped: every epoch, or every step")
    ] = "epoch",
    metric: Annotated[list[str] | None, typer.Option(help="MODULE:FUNCTION of outputs and targets; repeat")] = None,
    callback: Annotated[
        list[str] | None,
        typer.Option(help="MODULE:NAME of a function of events, or of an object, as an EarlyStopping(); repeat"),
    ] = None,
    clip_norm: Annotated[float | None, typer.Option(help="The largest norm that the whole gradient may have")] = None,
    precision: Annotated[str | None, typer.Option(help="bf16: forward under autocast")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the four Fashion-MNIST files")] = None,
    devices: Annotated[
        str | None, typer.Option(help="How many, or which: 2, or cuda:0,cuda:1  [default: 2, or 1 for each worker]")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Train on this many processes, each with its own devices")] = None,
    servers: Annotated[int, typer.Option(help="Processes that hold the parameters, for the workers")] = 0,
    sync: Annotated[
        str | None,
        typer.Option(
            help="How workers synchronise: auto, ring, ..., or with --servers bsp, bounded:2, async  "
            "[default: auto, with servers bsp]"
        ),
    ] = None,
    every: Annotated[
        int | None, typer.Option(help="Workers step by themselves, and are averaged every N steps")
    ] = None,
    after: Annotated[int, typer.Option(help="With --every: the first N steps are taken together")] = 0,
    compress: Annotated[
        str | None, typer.Option(help="How gradients are made smaller between workers: int8, topk:0.01, auto, ...")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Devices, or workers, hold parts of one model instead of copies: auto, a layout as a line of text "
            '("..pool5 x2 | /2"), or the path of its JSON'
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Samples in a batch, over all devices")] = 256,
    accumulate: Annotated[int, typer.Option(help="Batches that make one step")] = 1,
    balance: Annotated[
        bool, typer.Option("--balance", help="Devices and workers get parts of a batch by their measured speed")
    ] = False,
    lr: Annotated[float, typer.Option(help="Learning rate of the optimizer")] = 0.2,
    epochs: Annotated[int, typer.Option(help="Passes over the training data")] = 10,
    strategy: Annotated[
        str, typer.Option(help="How gradients are added up: sharded, root, host, ring, ..., as in `gradtide plan`")
    ] = "sharded",
    scale_batch: Annotated[bool, typer.Option("--scale-batch", help="k devices take k times the batch")] = False,
    lr_scaling: Annotated[str, typer.Option(help="With --scale-batch, the rate grows: none, sqrt or linear")] = "none",
    warmup_epochs: Annotated[
        float | None, typer.Option(help="The rate rises over N epochs  [default: 1 with --lr-scaling, else 0]")
    ] = None,
    sync_batch_norm: Annotated[
        bool, typer.Option("--sync-batch-norm", help="Batch normalisation over all devices' samples")
    ] = False,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Train on one of the devices alone, too, and compare")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the first parameters and the order of the data")] = 0,
    name: Annotated[str | None, typer.Option(help="Name of the run's folder  [default: options and time]")] = None,
    output: Annotated[Path, typer.Option(help="Where runs are kept")] = Path("runs"),
    checkpoint_every: Annotated[int, typer.Option(help="Write a checkpoint every N steps")] = 0,
    checkpoint_to: Annotated[
        str | None,
        typer.Option(help="Folder or fsspec address of checkpoints  [default: checkpoints in the run's folder]"),
    ] = None,
    keep: Annotated[int, typer.Option(help="Checkpoints to keep")] = 3,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the newest checkpoint, if there is one")] = False,
    after_loss: Annotated[
        str | None,
        typer.Option(help="When servers die: stop, rewind (to the last checkpoint), continue  [default: rewind]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the final figures as JSON, and nothing else")] = False,
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Show it live in a browser; prints the link")] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Servers and the tasks of a split model are in trace.json, too")
    ] = False,
) -> None:
    """Train your own model, or LeNet, an MLP or AlexNet, on devices or workers; writes metrics.jsonl, curve.png and
    model.safetensors to runs/NAME/."""
    if dashboard:
        check_dashboard()
    model = own_model or model
    if warmup_epochs is None:
        warmup_epochs = 1.0 if lr_scaling != "none" else 0.0
    if lr_scaling != "none" and not scale_batch:
        raise ConfigError("--lr-scaling follows the batch, which only --scale-batch lets grow; give both or neither")
    if schedule is None and schedule_per != "epoch":
        raise ConfigError(f"--schedule-per {schedule_per} goes with --schedule; give both or neither")
    if name is not None and (not name or "/" in name or name in (".", "..")):
        raise ConfigError(f"--name {name!r} must be a plain folder name; use --output for where it goes")
    options = {
        "batch_size": batch_size,
        "accumulate": accumulate,
        "balance": balance,
        "lr": lr,
        "epochs": epochs,
        "strategy": strategy,
        "scale_batch": scale_batch,
        "lr_scaling": lr_scaling,
        "warmup_epochs": warmup_epochs,
        "sync_batch_norm": sync_batch_norm,
        "seed": seed,
        "loss": loss,
        "optimizer": optimizer,
        "progress": False if as_json else None,
        **({} if schedule is None else {"schedule": schedule, "schedule_per": schedule_per}),
        **({} if not callback else {"callbacks": callback}),
        **({} if not metric else {"metrics": metric}),
        **({} if clip_norm is None else {"clip_norm": clip_norm}),
        **({} if precision is None else {"precision": precision}),
        **({} if compress is None else {"compress": compress}),
        **({} if split is None else {"split": split}),
    }
    copies: dict[str, tuple[object, object]] = {
        "--servers": (servers, 0),
        "--every": (every, None),
        "--sync": (None if sync == "auto" else sync, None),
        "--compress": (compress, None),
        "--accumulate": (accumulate, 1),
        "--balance": (balance, False),
        "--strategy": (strategy, "sharded"),
        "--scale-batch": (scale_batch, False),
    }
    check_split_options(split, copies, "" if workers is None else devices or "1")
    path = output / (name or f"{model}-{data}-{time.strftime('%Y%m%d-%H%M%S')}".replace(":", "."))
    where = None if data_dir is None else str(data_dir)
    if workers is None and (servers or sync is not None):
        given = "--servers" if servers else f"--sync {sync}"
        raise ConfigError(f"{given} is for training on several processes; say how many, as in --workers 2")
    if workers is None and compress is not None:
        raise ConfigError("--compress is for what workers send each other; say how many there are, as in --workers 2")
    check_local(every, after, workers, (sync, servers), keeps=bool(checkpoint_every or resume))
    if workers is not None and baseline:
        raise ConfigError("--baseline compares devices of one process; leave it out, or leave out --workers")
    keeping = {"every": checkpoint_every, "to": checkpoint_to, "keep": keep, "resume": resume, "after_loss": after_loss}
    check_keeping(keeping, name, servers, baseline)
    asked: dict[str, Any] = {"model": model, "data": data, "data_dir": where, "fit": options}
    if workers is None:
        from gradtide.train.settings import Settings

        settings = Settings(**asked, devices=devices or "2")
        settings = replace(settings, checkpoints=plan_keeping(keeping, settings, path, None))
        _train_and_report(settings, baseline, path, as_json, RunWatchers(dashboard, trace))
    else:
        from gradtide.cli.train.workers import choose_sync, train_with_workers

        asked |= {"devices": devices or "1", "sync": choose_sync(sync, servers), "folder": str(path)}
        asked |= {"every": every or 0, "after": after}
        train_with_workers(asked, workers, servers, keeping, as_json, RunWatchers(dashboard, trace))


def _train_and_report(settings: "Settings", baseline: bool, path: Path, as_json: bool, watched: RunWatchers) -> None:
    from gradtide.cli.train.report import draw_pictures
    from gradtide.observe.event_log import EventLog, log_path
    from gradtide.observe.trace import write_trace
    from gradtide.parallel import find_devices
    from gradtide.train.record import RunFolder, read_metrics

    found = [device.name for device in find_devices(settings.devices)]
    runs = [found] + ([found[:1]] if baseline and len(found) > 1 else [])
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0  # of others: nothing of ours has run yet
    datasets = settings.load()
    folder = RunFolder(path, before=before_resuming(path, settings.checkpoints, read_metrics))
    results: dict[str, Totals] = {}
    log = EventLog(log_path(path, 0))  # for who watches: metrics.jsonl does not say where time goes
    if watched.trace:
        extend_environment(TRACED)
    try:
        with dashboard_beside(watched.dashboard, path):
            for names in runs:
                title, alone = f"{len(names)} device{'s' if len(names) > 1 else ''}", names is not runs[0]
                watch = log.observe if any(watched) and not alone else ignore
                if len(runs) > 1 and not as_json:
                    typer.echo(f"gradtide: {title}", err=True)
                with _share_of_the_cores(len(found) if alone else 1):
                    results[title] = _one_run(settings, names, title, datasets, folder, watch, alone)
        log.close()
    except KeyboardInterrupt as stop:
        folder.close()
        kept = f"; the metrics so far are in {folder.metrics}" if folder.metrics.exists() else ""
        print(f"\ngradtide: interrupted{kept}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        # A device's thread may be deep inside a kernel that nothing can interrupt: don't wait for it.
        os._exit(exit_code(stop))
    folder.close()
    draw_pictures(folder)
    if watched.trace:
        write_trace(path / "trace.json", path, f"gradtide train, {next(iter(results))}")
    if as_json:
        figures = {title: totals.as_dict() for title, totals in results.items()}
        print(json.dumps({"folder": str(path), "runs": figures}))
    else:
        _show_table(results, path, split="split" in settings.fit)
        if len(runs) > 1 and (line := busy_line(load, os.cpu_count() or 1)):
            print(f"gradtide: {line}", file=sys.stderr)


@contextmanager
def _share_of_the_cores(devices: int) -> Iterator[None]:
    """The baseline is one of the devices alone: on CPU, with as many cores as each of them has, not with all."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before // devices))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _one_run(
    settings: "Settings",
    devices: list[str],
    title: str,
    datasets: tuple[Any, Any],
    folder: "RunFolder",
    watch: Emit,
    baseline: bool,
) -> "Totals":
    from gradtide.observe.meter import Meter
    from gradtide.train.loop import fit
    from gradtide.train.models import build_model
    from gradtide.train.steering.best import without_old_model, write_model

    train_data, test_data = datasets
    model = build_model(settings.model, settings.fit["seed"])
    meter, record = Meter(), folder.observer(title)
    final = folder.metrics.parent / "model.safetensors"

    def emit(event: Event) -> None:
        meter.observe(event)
        record(event)
        watch(event)
        if isinstance(event, SplitDecided):
            print(f"split: {event.text}", file=sys.stderr)

    keeping, options = settings.keeping(), settings.arguments()
    if baseline:
        options.pop("split", None)
    options |= {"devices": devices, "checkpoints": keeping}
    options["emit"] = emit if baseline else without_old_model(final, emit)
    fit(model, train_data, validation=test_data, **options)
    if not baseline:
        write_model(final, model.state_dict())
    folder.summary(title, meter.totals.as_dict())
    return meter.totals


def _show_table(results: dict[str, "Totals"], path: Path, *, split: bool) -> None:
    rows: dict[str, Callable[[Totals], str]] = {
        "test accuracy": lambda t: "-" if t.test_accuracy is None else f"{t.test_accuracy:.3f}",
        "samples/s": lambda t: f"{t.samples_per_s:,.0f}",
        "synchronised": lambda t: f"{t.wire_bytes / 1e6:,.1f} MB",
        "computing": lambda t: f"{t.compute_s + t.update_s:.2f} s",
        "synchronising": lambda t: f"{t.sync_s:.2f} s",
        "waiting for data": lambda t: f"{t.data_s:.2f} s",
    }
    for name in dict.fromkeys(name for totals in results.values() for name in totals.metrics):
        rows[name] = lambda t, name=name: f"{t.metrics[name]:.4g}" if name in t.metrics else "-"  # type: ignore[misc]
    if split:  # what its devices send goes between steps of computing, and is not measured apart
        del rows["synchronised"], rows["synchronising"]
    print_table(("", *results), [(label, *map(show, results.values())) for label, show in rows.items()])
    print(f"metrics and curve: {path}/metrics.jsonl, {path}/curve.png")
    print(f"model: {path}/model.safetensors; for torch: gradtide checkpoint export {path} model.pt")

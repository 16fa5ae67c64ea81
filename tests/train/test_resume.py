"""A run that goes on from its checkpoint is the run that was never stopped, bit for bit."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import gradtide
from gradtide.checkpoint.shelf import Shelf
from gradtide.cli.app import app
from gradtide.errors import ConfigError, DataError
from gradtide.events import BatchDone, CheckpointFailed, CheckpointTaken
from gradtide.observe.event_log import LogReader
from gradtide.train.record import read_metrics
from loaded_python import loaded_python


class Stop(Exception):
    pass


def model(width=16):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.Dropout(0.3), nn.Linear(width, 3))


def train(checkpoints=None, stop_at=0, net=None, loader=False, **options):
    """Returns the model, the losses by step, what fit returned, and what was told of checkpoints."""
    generator = torch.Generator().manual_seed(2)
    data = torch.randn(110, 8, generator=generator), torch.randint(3, (110,), generator=generator)
    losses, told = {}, []

    def emit(event):
        if isinstance(event, CheckpointTaken | CheckpointFailed):
            told.append(event)
        if isinstance(event, BatchDone):
            losses[event.step] = event.loss
            if event.step == stop_at:
                raise Stop

    net, history = net or model(), None
    torch.manual_seed(5)
    source = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), 32, shuffle=True) if loader else data
    settings = {"batch_size": 32, "epochs": 3, "lr": 0.01, "optimizer": "Adam", "warmup_epochs": 2.0, "devices": 2}
    with contextlib.suppress(Stop):
        history = gradtide.fit(
            net, source, test_data=data, checkpoints=checkpoints, emit=emit, **{**settings, **options}
        )
    return net, losses, history, told


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.parametrize("loader", [False, True])
@pytest.mark.parametrize("stop_at", [6, 9, 11])
def test_one_process_goes_on_bit_for_bit(tmp_path, stop_at, loader):
    """Adam, warm-up, batch norm and dropout on two devices; stopped within an epoch and at its end."""
    whole, losses, history, _ = train(loader=loader)
    train(gradtide.Checkpoints(str(tmp_path), every=4), stop_at, loader=loader)
    newest = Shelf(tmp_path).newest()
    resumed, later, told_history, _ = train(gradtide.Checkpoints(str(tmp_path), every=4, resume=True), loader=loader)
    assert newest.manifest.step in (4, 8)
    assert later == {step: loss for step, loss in losses.items() if step > newest.manifest.step}
    assert told_history == history
    assert same(resumed, whole)


def test_checkpoints_are_told_the_last_are_kept_and_they_change_nothing(tmp_path):
    plain, losses, _, _ = train()
    kept, with_checkpoints, _, told = train(gradtide.Checkpoints(str(tmp_path), every=2, keep=2))
    assert [type(event) for event in told] == [CheckpointTaken] * 6
    assert [taken.manifest.step for taken in Shelf(tmp_path).complete()] == [10, 12]
    assert with_checkpoints == losses
    assert same(plain, kept)


def test_a_checkpoint_that_fails_is_told_and_training_goes_on(tmp_path):
    (tmp_path / "file").write_text("in the way")
    _, losses, _, told = train(gradtide.Checkpoints(str(tmp_path / "file" / "checkpoints"), every=4))
    assert len(losses) == 12
    assert [(type(event), event.step) for event in told] == [(CheckpointFailed, step) for step in (4, 8, 12)]
    assert "can't be written" in told[0].text


def test_going_on_with_something_else_is_one_clear_line(tmp_path):
    train(gradtide.Checkpoints(str(tmp_path), every=4, options={"batch_size": 32}), 6)
    with pytest.raises(
        DataError, match=r"'0.weight' is \(16, 8\) in .*, and \(20, 8\) in the model; resume with the model"
    ):
        train(gradtide.Checkpoints(str(tmp_path), resume=True), net=model(20))
    with pytest.raises(ConfigError, match="was made with batch_size 32, not 64; resume with the same"):
        train(gradtide.Checkpoints(str(tmp_path), resume=True, options={"batch_size": 64}), batch_size=64)
    taken = Shelf(tmp_path).newest()
    path = f"{taken.address}/worker-0.safetensors"
    with open(path, "r+b") as file:
        file.seek(-3, 2)
        file.write(b"?")
    with pytest.raises(DataError, match=r"worker-0.safetensors is damaged"):
        train(gradtide.Checkpoints(str(tmp_path), resume=True))
    with pytest.raises(ConfigError, match="makes no sense; keep 1 or more"):
        gradtide.Checkpoints("x", keep=0)


def test_servers_that_did_not_begin_with_the_checkpoint_are_refused(tmp_path, forks):
    """They would begin with the model as it was made, and the run in the middle of its data."""
    kept = gradtide.Checkpoints(str(tmp_path), every=2, resume=True)
    with gradtide.local_servers(1, checkpoints=tmp_path, forks=forks) as store:
        sync = gradtide.Servers("bsp", address=store.address)
        train(kept, stop_at=3, devices=1, sync=sync, warmup_epochs=0)
    with gradtide.local_servers(1, forks=forks) as empty, pytest.raises(ConfigError, match="these hold none: start"):
        train(kept, devices=1, sync=gradtide.Servers("bsp", address=empty.address), warmup_epochs=0)


# --- the command ---


def run(*arguments, cwd):
    command = [loaded_python(), "-m", "gradtide", "train", "--epochs", "1", "--lr", "0.05", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=180)


def seen(folder):
    return [
        (line["kind"], line["epoch"], line.get("step"), line.get("loss"), line.get("test_loss"))
        for line in read_metrics(folder / "metrics.jsonl")
        if line["kind"] != "summary"
    ]


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(("--workers", "2"), id="collective", marks=pytest.mark.slow),
        pytest.param(("--workers", "2", "--servers", "2"), id="servers"),
    ],
)
def test_workers_go_on_bit_for_bit_and_the_command_keeps_one_record(tmp_path, how):
    """The run took a checkpoint at step 4 of 6; going on from there, it must do the same again."""
    done = run(*how, "--name", "a", "--checkpoint-every", "4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "a"
    first = seen(folder)
    more = ("--servers", "1") if "--servers" in how else ()  # as many as one likes
    done = run(*how, *more, "--name", "a", "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert seen(folder) == first
    assert [line[2] for line in first] == [1, 2, 3, 4, 5, 6, None]


def test_the_command_says_what_does_not_fit():
    for arguments, message in (
        (["--resume"], "--resume needs the --name of the run that is to go on, or --checkpoint-to"),
        (["--checkpoint-every", "5", "--baseline"], "--baseline trains twice"),
        (["--after-loss", "rewind"], "--after-loss goes back to checkpoints of servers"),
        (["--after-loss", "weep"], "--after-loss weep makes no sense; say stop, rewind or continue"),
        (["--checkpoint-every", "-1"], "--checkpoint-every takes 0 or more steps"),
    ):
        result = CliRunner().invoke(app, ["train", *arguments])
        assert message in str(result.exception), result


def children_of(process):
    with open(f"/proc/{process}/task/{process}/children") as file:
        return [int(number) for number in file.read().split()]


@pytest.mark.slow
@pytest.mark.parametrize("compress", [[], ["--compress", "topk:0.1"]], ids=["whole", "topk"])
def test_workers_whose_server_dies_go_back_and_end_bit_for_bit_as_if_it_had_not(tmp_path, compress):
    base = [
        sys.executable,
        "-m",
        "gradtide",
        "train",
        "--workers",
        "2",
        "--servers",
        "2",
        "--epochs",
        "6",
        "--lr",
        "0.05",
        *compress,
    ]
    subprocess.run([*base, "--name", "calm"], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    options = ("--name", "fire", "--checkpoint-every", "5", "--after-loss", "rewind")
    process = subprocess.Popen([*base, *options], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    reader, step, deadline_s = LogReader(tmp_path / "runs" / "fire" / "worker-0.jsonl"), 0, time.monotonic() + 200
    while step < 13:
        assert time.monotonic() < deadline_s
        step = max([step, *(timed.event.step for timed in reader.read() if isinstance(timed.event, BatchDone))])
        time.sleep(0.02)
    (forks,) = [
        child
        for child in children_of(process.pid)
        if "store.local.forkserver" in Path(f"/proc/{child}/cmdline").read_text()
    ]
    os.kill(sorted(children_of(forks))[1], signal.SIGKILL)  # the first is the coordinator
    assert process.wait(300) == 0
    assert seen(tmp_path / "runs" / "fire") == seen(tmp_path / "runs" / "calm")
    events = [timed.event for timed in LogReader(tmp_path / "runs" / "fire" / "worker-0.jsonl").read()]
    assert sum(isinstance(event, BatchDone) for event in events) > 36  # some steps were done twice


@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["one process", "workers"])
def test_a_run_that_cannot_go_on_keeps_its_last_model(tmp_path, workers):
    def train(*more):
        words = [
            "-m",
            "gradtide",
            "train",
            "--name",
            "kept",
            "--output",
            str(tmp_path),
            "--batch-size",
            "512",
            *workers,
        ]
        done = subprocess.run([loaded_python(), *words, *more], capture_output=True, text=True, timeout=120)
        return done.returncode, done.stderr

    assert train("--epochs", "2", "--checkpoint-every", "4")[0] == 0
    model = (tmp_path / "kept/model.safetensors").read_bytes()
    for more, line in (
        (("--epochs", "2", "--lr", "0.01"), "was made with lr 0.2, not 0.01; resume with the same"),
        (("--epochs", "1"), "is in epoch 2, beyond --epochs 1"),
        (("--epochs", "3", "--optimizer", "Adamm"), "Adamm"),
        (("--epochs", "2", "--checkpoint-to", str(tmp_path / "none")), "no checkpoint in"),
    ):
        code, said = train("--resume", *more)
        assert code == 2, said
        assert line in said
        assert (tmp_path / "kept/model.safetensors").read_bytes() == model, more
    assert train("--resume", "--epochs", "2")[0] == 0
    assert (tmp_path / "kept/model.safetensors").read_bytes() == model

"""Several workers on one run: real processes, what they leave, and that they train as one process does."""

import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter

import pytest
import torch

import gradtide
from gradtide.cli import main
from gradtide.events import (
    BatchDone,
    BatchStarted,
    EpochDone,
    GradientsReady,
    GradientsSynchronised,
    ParametersUpdated,
    Waiting,
)
from gradtide.observe.event_log import EventLog, LogReader
from gradtide.observe.meter import Timed, spans
from gradtide.train.digits import load_digits
from gradtide.train.models import build_model
from gradtide.train.record import read_metrics
from gradtide.train.together.merge import merge, totals_of
from loaded_python import loaded_python

STEP = [BatchStarted(), GradientsReady(), Waiting(), GradientsSynchronised(70), Waiting(), ParametersUpdated()]


def a_step(start_s, samples, loss, step=1):
    """A step over shared parameters, which waits twice; the next event comes a second after the last."""
    events = [*STEP, BatchDone(1, step, samples, loss, 1, 0.1)]
    return [Timed(start_s + second, event) for second, event in enumerate(events)]


@pytest.mark.quick
def test_a_workers_time_goes_to_what_it_did_from_each_event_on():
    log = [*a_step(100, 10, 0.5), Timed(110, EpochDone(1, 0.3, 0.8)), *a_step(112, 10, 0.4, 2)]
    found = totals_of(log)
    times = found.compute_s, found.push_s, found.wait_s, found.update_s, found.data_s, found.evaluate_s
    assert times == (2, 2, 4, 4, 2, 4)
    pieces = list(spans(log))
    assert [piece.phase for piece in pieces[:6]] == ["compute", "push", "wait", "update", "wait", "update"]
    assert [piece.phase for piece in pieces[6:8]] == ["evaluate", "data"]
    assert all(before.end_s == after.start_s for before, after in itertools.pairwise(pieces))


@pytest.mark.quick
def test_losses_are_weighed_by_the_workers_samples_and_a_step_ends_with_its_last_worker():
    logs = {0: a_step(100, 30, 1.0), 1: [*a_step(103, 10, 2.0), Timed(111, EpochDone(1, 0.3, 0.8))]}
    batch, epoch = merge("2 workers", logs)
    assert (batch["loss"], batch["seconds"], batch["accuracy"], batch["step"]) == (1.25, 9, 0.05, 1)
    assert (epoch["test_accuracy"], epoch["seconds"]) == (0.8, 11)


@pytest.mark.quick
def test_an_epoch_is_over_when_the_last_worker_is_done_with_it_whoever_evaluates():
    logs = {0: [*a_step(100, 30, 1.0), Timed(107, EpochDone(1, 0.3, 0.8))]}
    logs[1] = [*a_step(103, 10, 2.0), Timed(110, EpochDone(1, None, None))]
    batch, epoch = merge("2 workers", logs)
    assert (batch["kind"], epoch["kind"], epoch["test_accuracy"], epoch["seconds"]) == ("batch", "epoch", 0.8, 10)


def test_a_log_is_followed_while_it_is_written_and_a_line_cut_short_waits(tmp_path):
    path = tmp_path / "new" / "worker-0.jsonl"
    reader, times = LogReader(path), iter(range(100))
    assert reader.read() == []
    log = EventLog(path, clock=lambda: next(times))
    log.observe(BatchStarted())
    log.observe(BatchDone(1, 1, 10, 0.5, None, 0.1))
    assert reader.read() == [Timed(0, BatchStarted()), Timed(1, BatchDone(1, 1, 10, 0.5, None, 0.1))]
    log.close()
    with path.open("a") as file:
        file.write('{"at_s": 7, "event": "Wait')
        file.flush()
        assert reader.read() == []
        file.write('ing"}\n')
    assert reader.read() == [Timed(7, Waiting())]


# --- the command ---


def run(*arguments, cwd):
    command = [loaded_python(), "-m", "gradtide", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120)


def test_two_workers_give_the_losses_of_one_process_and_tell_where_their_time_went(tmp_path):
    done = run("train", "--workers", "2", "--epochs", "1", "--name", "two", "--lr", "0.05", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("compute", "push", "wait", "pull, update", "test accuracy", "samples/s in all"):
        assert word in done.stdout
    folder = tmp_path / "runs" / "two"
    lines = read_metrics(folder / "metrics.jsonl")
    assert [line["kind"] for line in lines] == ["batch"] * 6 + ["epoch", "summary"]
    alone = []
    data, tests = load_digits()
    model = build_model("lenet", 0)
    seen = gradtide.fit(model, data, test_data=tests, batch_size=256, lr=0.05, emit=alone.append)
    losses = [event.loss for event in alone if isinstance(event, BatchDone)]
    assert [line["loss"] for line in lines[:6]] == pytest.approx(losses, abs=1e-4)
    assert lines[6]["test_loss"] == pytest.approx(seen.test_loss[0], abs=1e-3)
    assert sum(worker["samples"] for worker in lines[-1]["workers"]) == len(data[0])
    for picture in ("curve.png", "time.png"):
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
    traced = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in traced} == {1, 2}
    assert sum(event["ph"] == "s" for event in traced) == 2 * 6  # each of two workers hands its part to the other


def test_two_workers_with_two_devices_each_train_through_servers(tmp_path):
    options = ("--workers", "2", "--servers", "2", "--sync", "bounded:2", "--devices", "2", "--batch-size", "128")
    done = run("train", *options, "--epochs", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (title, figures), *_ = json.loads(done.stdout)["runs"].items()
    assert title == "2 workers x 2 devices, 2 servers, bounded:2"
    assert figures["steps"] == 12
    assert figures["samples"] == 1437
    assert all(worker["update_s"] > 0 for worker in figures["workers"])


def test_an_interrupted_run_keeps_what_there_is(tmp_path):
    command = [loaded_python(), "-m", "gradtide", "train", "--workers", "2", "--epochs", "10000", "--name", "long"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    folder = tmp_path / "runs" / "long"
    deadline = time.monotonic() + 60
    while not all(LogReader(folder / f"worker-{rank}.jsonl").read() for rank in range(2)):
        assert time.monotonic() < deadline, "the workers never began"
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert "what there is so far is in runs/long" in said
    assert read_metrics(folder / "metrics.jsonl")[0]["step"] == 1
    assert (folder / "time.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--servers", "2"], "--servers is for training on several processes; say how many, as in --workers 2"),
        (["--sync", "ring"], "--sync ring is for training on several processes"),
        (["--workers", "2", "--servers", "2", "--sync", "ring"], "--sync ring is not for servers; with --servers say"),
        (["--workers", "2", "--servers", "2", "--sync", "bounded:x"], "--sync bounded:x is not for servers"),
        (["--workers", "2", "--sync", "bsp"], "--sync bsp goes through servers; add --servers 2"),
        (["--workers", "2", "--servers", "-1"], "--servers -1 makes no sense"),
        (["--workers", "2", "--baseline"], "--baseline compares devices of one process"),
        (["--workers", "0"], "0 workers can't train anything"),
        (["--workers", "2", "--sync", "rnig"], "or with --servers bsp, bounded:2, async"),
        (["--workers", "2", "--model", "resnet"], "unknown model 'resnet'"),
        (
            ["--workers", "2", "--batch-size", "3", "--devices", "2"],
            "4 devices (2 on each of 2 workers) but only 3",
        ),
        (
            ["--workers", "2", "--batch-size", "1"],
            "2 workers but only 1 sample in a batch; use a larger batch",
        ),
    ],
)
def test_a_mistake_is_one_line_before_anything_starts(tmp_path, monkeypatch, capfd, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gradtide", "train", "--epochs", "1", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    said = capfd.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


# --- fit in a job ---

SCRIPT = """
    import time
    import torch
    import gradtide
    from gradtide.events import GradientsSynchronised, ignore
    from gradtide.sync import current_job
    from gradtide.train.digits import load_digits
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    (X, Y), TEST = load_digits()
    steps = []

    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10)).double()

    def momentum(parameters):
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)

    def fall_behind(event):
        # over servers worker 1 ends its last step when worker 0 has done all that it had to do, and is gone
        steps.append(isinstance(event, GradientsSynchronised))
        if steps[-1] and sum(steps) == 20:
            deadline_s = time.monotonic() + 60
            with gradtide.connect(current_job().store) as store:
                while 0 in store.first_rounds and time.monotonic() < deadline_s:
                    time.sleep(0.01)

    def train(sync, devices, emit=ignore, compress=None):
        net = model()
        if current_job().rank:  # only worker 0's parameters count
            nn.init.zeros_(net[1].weight)
        history = gradtide.fit(
            net, (X[:203].double(), Y[:203]), test_data=(TEST[0].double(), TEST[1]), devices=devices, batch_size=41,
            epochs=4, lr=0.05, optimizer=momentum, sync=sync, warmup_epochs=1,
            emit=emit, compress=compress,
        )
        return {"values": [p.detach() for p in net.parameters()], "loss": history.loss, "test": history.test_accuracy}

    def shuffled():
        seen = []
        class Noting(nn.Linear):
            def forward(self, inputs):
                seen.extend(inputs.flatten().int().tolist())
                return super().forward(inputs)
        samples = TensorDataset(torch.arange(50.0).reshape(50, 1), torch.zeros(50, 1))
        gradtide.fit(Noting(1, 1), DataLoader(samples, 10, shuffle=True), epochs=2, lr=1e-6, loss="mse")
        return seen

    if __name__ == "__main__":
        found = {f"{sync} {devices}": train(sync, devices) for sync in ("auto", "ring") for devices in (1, 2)}
        found |= {f"compressed {devices}": train("auto", devices, compress="topk:1") for devices in (1, 2)}
        found["servers 2"] = train(gradtide.Servers("bsp"), 2, fall_behind if current_job().rank else ignore)
        told = []
        for sync in ("auto", gradtide.Local(2), gradtide.Servers("bsp", name="auto")):
            train(sync, 1, told.append, compress="auto")
        found["told"] = [e.text for e in told if isinstance(e, gradtide.events.CompressionDecided)]
        found["shuffled"] = shuffled()
        torch.save(found, f"found-{current_job().rank}.pt")
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two workers found, and one process without a launcher."""
    folder = tmp_path_factory.mktemp("fit")
    (folder / "script.py").write_text(textwrap.dedent(SCRIPT))
    done = run("run", "--workers", "2", "--servers", "2", "script.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    code = "import script, torch; torch.save(script.train('auto', 1), 'alone.pt')"
    subprocess.run([loaded_python(), "-c", code], cwd=folder, check=True, timeout=60)
    return [torch.load(folder / f"found-{rank}.pt") for rank in range(2)], torch.load(folder / "alone.pt")


def test_what_auto_has_come_to_is_told_with_why(found):
    host = "compress='auto': none, since all workers are on one host, where memory is faster than codecs"
    for worker in found[0]:
        assert worker["told"][:2] == [host, host]
        assert worker["told"][2].startswith("compress='auto': none, since nothing predicts the time of servers")


@pytest.mark.parametrize("way", ["auto 1", "auto 2", "ring 1", "ring 2", "compressed 1", "compressed 2", "servers 2"])
def test_fit_on_two_workers_equals_one_process_after_twenty_steps(found, way):
    workers, alone = found
    assert alone["loss"][-1] < alone["loss"][0]
    for worker in workers:
        for mine, one in zip(worker[way]["values"], alone["values"], strict=True):
            assert (mine - one).abs().max() < 1e-10


@pytest.mark.parametrize("way", ["auto 1", "auto 2", "ring 1", "ring 2", "compressed 2"])
def test_over_collectives_every_worker_knows_how_all_did(found, way):
    workers, alone = found
    for worker in workers:
        assert worker[way]["loss"] == pytest.approx(alone["loss"])
        assert worker[way]["test"] == pytest.approx(alone["test"])


def test_over_servers_worker_0_evaluates(found):
    workers, alone = found
    assert workers[0]["servers 2"]["test"] == pytest.approx(alone["test"])
    assert workers[1]["servers 2"]["test"] == []


def test_a_loader_that_shuffles_gives_all_workers_the_same_batches(found):
    workers, _ = found
    seen = Counter(number for worker in workers for number in worker["shuffled"])
    assert seen == dict.fromkeys(range(50), 2)
    assert workers[0]["shuffled"][:25] != workers[0]["shuffled"][25:]

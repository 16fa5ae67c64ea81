"""Progress of a run: on a terminal, in a log, of a job's workers; notebooks are in tests/examples/test_notebook.py."""

import os
import pty
import re
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
import torch

import gradtide
from gradtide.events import BatchDone, CheckpointFailed, EpochDone, ignore
from gradtide.sync.job import BatchShare, Job
from gradtide.train.steering.progress import RunProgress, follow_progress
from loaded_python import loaded_python

X, Y = torch.ones(40, 3), torch.zeros(40, dtype=torch.long)


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self):
        return self.now_s


@dataclass
class Kept:
    """What a log would have."""

    every_s: float = 10.0
    epoch_s: float = 5.0
    lines: list[str] = field(default_factory=list)

    def state(self, text, done, of):
        self.lines.append(text)

    def line(self, text):
        self.lines.append(text)

    def close(self):
        pass


def run(epochs, batches, step_s, evaluate_s=0.0, job=None, known=True, resumed=0):
    """What a log has of a run whose steps take so long, which goes on after the last step of an epoch if any."""
    clock, kept = Clock(), Kept()
    progress = RunProgress(epochs, batches if known else None, job, lambda: kept, clock)
    emit = progress.around(ignore)
    for epoch in range(max(1, resumed), epochs + 1):
        for batch in range(1, batches + 1) if epoch != resumed else ():
            clock.now_s += step_s
            emit(BatchDone(epoch, (epoch - 1) * batches + batch, 50, 0.5, None, 0.1))
        clock.now_s += evaluate_s
        emit(EpochDone(epoch, 0.25, None))
        progress.tell_epoch(epoch, batches, {"loss": 0.5, "validation_loss": 0.25})
    progress.close()
    return kept.lines


@pytest.mark.quick
def test_a_log_has_a_line_every_ten_seconds_with_samples_per_second_and_time_left():
    assert run(2, 20, 1.0) == [
        "epoch 1/2  step 11/20  loss 0.5  50 samples/s  0:00:29 left",
        "epoch 1/2  loss 0.5  validation_loss 0.25",
        "epoch 2/2  step 10/20  loss 0.5  50 samples/s  0:00:10 left",
        "epoch 2/2  step 20/20  loss 0.5  50 samples/s  0:00:00 left",
        "epoch 2/2  loss 0.5  validation_loss 0.25",
        "epoch 2/2  step 20/20  loss 0.5  50 samples/s  took 0:00:39",
    ]


@pytest.mark.quick
def test_evaluating_takes_time_but_no_samples_per_second():
    lines = run(3, 21, 1.0, evaluate_s=20.0)
    assert {found for line in lines for found in re.findall(r"[\d,]+ samples/s", line)} == {"50 samples/s"}
    assert "epoch 2/3  step 10/21  loss 0.5  50 samples/s  0:01:12 left" in lines  # 32 steps, and twice 20 s
    assert lines[-1].endswith("took 0:02:02")


@pytest.mark.quick
def test_a_run_that_is_shorter_leaves_nothing_and_quick_epochs_share_a_line():
    assert run(9, 10, 0.1) == []
    lines = run(300, 10, 0.01)
    assert all("samples/s" in line for line in lines)
    assert [line.split("  ")[:2] for line in lines] == [
        ["epoch 101/300", "loss 0.5"],
        ["epoch 201/300", "loss 0.5"],
        ["epoch 300/300", "step 10/10"],
    ]


@pytest.mark.quick
@pytest.mark.parametrize("known", [True, False])
def test_a_run_that_goes_on_at_the_end_of_an_epoch_counts_from_its_first_step(known):
    lines = run(4, 20, 1.0, evaluate_s=20.0, known=known, resumed=2)
    assert lines[1] == "epoch 3/4  step 11/20  loss 0.5  50 samples/s  0:00:29 left"
    assert {found for line in lines for found in re.findall(r"[\d,]+ samples/s", line)} == {"50 samples/s"}


@pytest.mark.quick
def test_an_epoch_of_almost_ten_seconds_has_a_line():
    lines = run(3, 10, 0.99)
    assert lines[:3] == [f"epoch {epoch}/3  loss 0.5  validation_loss 0.25" for epoch in (1, 2, 3)]
    assert len(lines) == 4


@pytest.mark.quick
def test_samples_are_those_of_all_workers():
    assert "200 samples/s" in run(1, 20, 1.0, job=Job(0, 4))[0]
    assert "170 samples/s" in run(1, 20, 1.0, job=Job(0, 4, share=BatchShare(50, 170)))[0]


@pytest.mark.quick
def test_time_left_is_said_once_an_epoch_has_shown_how_many_batches_there_are():
    first, *others = run(2, 20, 1.0, known=False)
    assert first == "epoch 1/2  step 11  loss 0.5  50 samples/s"
    assert "epoch 2/2  step 10/20  loss 0.5  50 samples/s  0:00:10 left" in others


@pytest.mark.quick
def test_only_the_first_worker_shows_it_and_nobody_if_it_is_not_wanted():
    assert follow_progress(None, 1, 1, None)
    assert follow_progress(True, 1, 1, Job(0, 2))
    assert follow_progress(None, 1, 1, Job(1, 2)) is None
    assert follow_progress(False, 1, 1, None) is None


@pytest.mark.quick
def test_a_checkpoint_that_failed_is_told_at_once():
    kept = Kept()
    RunProgress(1, None, None, lambda: kept).around(ignore)(CheckpointFailed(8, "no room"))
    assert kept.lines == ["gradtide: no checkpoint of step 8: no room"]


@pytest.mark.quick
def test_a_terminal_has_a_bar_and_a_line_an_epoch_and_progress_false_nothing(monkeypatch):
    for wanted, words in ((None, ("━", "epoch 2/2", "step 4/4", "samples/s", "took 0:00:")), (False, ())):
        ours, theirs = pty.openpty()
        with os.fdopen(theirs, "w") as terminal:
            monkeypatch.setenv("TERM", "xterm")
            monkeypatch.setattr(sys, "stderr", terminal)
            model = torch.nn.Linear(3, 2)
            gradtide.fit(model, (X, Y), validation=(X, Y), batch_size=10, epochs=2, progress=wanted)
            monkeypatch.undo()
            print("the end", file=terminal, flush=True)
            seen = ""
            while "the end" not in seen:
                seen += os.read(ours, 4096).decode()
        os.close(ours)
        assert all(word in seen for word in words), seen
        assert len(re.findall(r"epoch \d/2  loss .*validation_loss", seen)) == (2 if words else 0)
        assert bool(words) == (seen != "the end\r\n")


SCRIPT = """
import torch, gradtide
from gradtide.train.steering.progress import _InLog
_InLog.every_s = _InLog.epoch_s = 1e-9
x, y = torch.ones(40, 3), torch.zeros(40, dtype=torch.long)
for options in ({}, {"split": "auto"}):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    gradtide.fit(model, (x, y), validation=(x, y), batch_size=10, epochs=3, **options)
"""


def test_in_a_job_whole_lines_of_the_first_worker_pass_the_launcher(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [loaded_python(), "-m", "gradtide", "run", "--workers", "2", "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("gradtide: job")]
    step = r"\[0\] epoch \d/3  step \d/4  loss [\d.e-]+"
    epoch = r"\[0\] epoch \d/3  loss [\d.e-]+  accuracy \S+  validation_loss \S+  validation_accuracy \S+  lr \S+"
    rate = r"(  [\d,]+ samples/s)?(  (took )?\d:\d\d:\d\d( left)?)?"
    assert [line for line in lines if not re.fullmatch(f"({step}|{epoch}){rate}", line)] == []
    assert sum("took" in line for line in lines) == 2
    assert len(lines) > 24

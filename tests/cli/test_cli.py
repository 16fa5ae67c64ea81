"""The command as a person uses it: real processes, exit codes, what is left on disk."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from gradtide.cli import main
from gradtide.train.record import read_metrics
from loaded_python import loaded_python


def gradtide(*arguments, cwd, timeout=120, python=None):
    command = [python or loaded_python(), "-m", "gradtide", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=timeout)


def test_train_compares_two_devices_with_one_and_leaves_metrics_and_a_curve(tmp_path):
    options = ("--epochs", "2", "--batch-size", "64", "--name", "demo", "--baseline")
    done = gradtide("train", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("test accuracy", "samples/s", "synchronised", "computing", "2 devices", "1 device"):
        assert word in done.stdout
    lines = read_metrics(tmp_path / "runs" / "demo" / "metrics.jsonl")
    assert {line["run"] for line in lines} == {"2 devices", "1 device"}
    assert sum(line["kind"] == "batch" for line in lines) == 2 * 2 * 23
    assert (tmp_path / "runs" / "demo" / "curve.png").stat().st_size > 5000


def test_train_as_json_prints_one_object_and_nothing_else(tmp_path):
    done = gradtide("train", "--epochs", "1", "--json", "--devices", "cpu:0,cpu:1,cpu:2", "--scale-batch", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    totals = result["runs"]["3 devices"]
    assert totals["steps"] == 2  # 1437 samples in batches of 3 x 256
    assert totals["wire_bytes"] == 2 * 2 * 2 * 4 * 129_068
    assert done.stderr == ""


@pytest.mark.slow
def test_workers_that_diverge_say_so_once_with_the_step(tmp_path):
    options = ("--workers", "2", "--model", "mlp", "--lr", "1e20", "--epochs", "1", "--name", "far")
    done = gradtide("train", *options, cwd=tmp_path)
    said = [line for line in done.stderr.splitlines() if "the loss is" in line]
    assert len(said) == 1, done.stderr
    assert "DataError: the loss is nan at step 2; lower the learning rate or look at the data" in said[0]
    assert "Traceback" not in done.stderr
    assert done.returncode == 2


@pytest.mark.quick
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "tpu:1"], "unknown device 'tpu:1'"),
        (["--devices", "cuda:7"], "no device 'cuda:7'"),
        (["--devices", "300"], "300 devices but only 256 samples in a batch"),
        (["--batch-size", "0"], "batch size 0; it must be 1 or more"),
        (["--model", "resnet"], "unknown model 'resnet'; choose one of lenet, mlp"),
        (["--data", "cifar"], "unknown data 'cifar'; choose digits or fashion-mnist"),
        (["--data-dir", "x"], "--data-dir goes with --data fashion-mnist"),
        (["--data", "fashion-mnist", "--data-dir", "nowhere"], "train-images-idx3-ubyte.gz is missing"),
        (["--strategy", "rnig"], "no strategy is called 'rnig'"),
        (["--lr-scaling", "linear"], "give both or neither"),
        (["--output", "/proc/runs"], "can't write"),
        (["--name", "a/b"], "must be a plain folder name"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2_and_leaves_nothing(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gradtide", "train", "--epochs", "1", *arguments])
    with pytest.raises(SystemExit) as ended:  # in this process: importing torch a dozen times would take half a minute
        main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("gradtide: ")
    assert message in line
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_ends_the_process_with_2(tmp_path):
    done = gradtide("train", "--devices", "tpu:1", cwd=tmp_path, python=sys.executable)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gradtide: unknown device 'tpu:1'; use a number, cpu:0, cpu:1, ... or cuda:0, cuda:1, ...\n"


@pytest.mark.timing
def test_ctrl_c_ends_a_run_within_a_second_and_keeps_the_metrics(tmp_path):
    command = [sys.executable, "-m", "gradtide", "train", "--epochs", "10000", "--name", "long"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "runs" / "long" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size > 2000):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        os.sched_yield()
    process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - asked < 1 + 2 * is_loaded()
    assert process.returncode == 130
    assert "interrupted; the metrics so far are in runs/long/metrics.jsonl" in errors
    assert "Traceback" not in errors
    assert len(read_metrics(metrics)) > 5


def is_loaded():
    """Another job on these cores may keep a device's thread from finishing its step: then the second is not ours."""
    return os.getloadavg()[0] > os.cpu_count()


def test_help_and_version_answer_and_doctor_says_what_there_is(tmp_path):
    done = gradtide("--help", cwd=tmp_path, python=sys.executable)
    for command in ("train", "bench", "doctor"):
        assert command in done.stdout
    assert "..." not in done.stdout.partition("Commands:")[2]  # no sentence is cut off
    assert gradtide("run", "-h", cwd=tmp_path).stdout.count(" run [OPTIONS]") == 1
    assert gradtide("--version", cwd=tmp_path).stdout.startswith("gradtide 0.")
    found = json.loads(gradtide("doctor", "--json", cwd=tmp_path).stdout)
    assert found["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert found["torch"]["backends"]["gloo"] is True
    assert found["advice"]
    assert "cores" in gradtide("doctor", cwd=tmp_path).stdout


@pytest.mark.slow  # a dozen processes that load torch
def test_bench_train_runs_every_contender_in_turn_and_writes_its_figures(tmp_path):
    options = ("--rounds", "1", "--steps", "1", "--batch-size", "8", "--output", "bench.json")
    done = gradtide("bench", "train", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "bench.json").read_text())
    names = [row["name"] for row in content["results"]]
    assert names[0] == "plain, 1 thread"
    assert {"DDP over Gloo, 2 processes", "gradtide, 2 devices", "textbook's loop"} < set(names)
    assert content["results"][0]["ratio"] == 1
    assert all(row["per_s"] > 0 for row in content["results"])
    assert content["machine"]["packages"]["torch"].startswith("2.")


def test_bench_train_names_a_model_that_it_does_not_know(tmp_path):
    mistake = gradtide("bench", "train", "--model", "resnet", cwd=tmp_path)
    assert mistake.returncode == 2
    assert "unknown model 'resnet'" in mistake.stderr

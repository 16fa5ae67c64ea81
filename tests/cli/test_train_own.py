"""`gradtide train my_module:make_model`: a user's own model and data, in a folder of theirs."""

import json
import subprocess

import torch
from safetensors.torch import load_file

from loaded_python import loaded_python

OWN = """
import torch
from torch import nn


def make_model():
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))


def make_data():
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 5, generator=random), torch.randint(0, 3, (60,), generator=random)
    return (x[:40], y[:40]), (x[40:], y[40:])


def make_schedule(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)


def right(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean()


def tell(event):
    if type(event).__name__ == "FitEnd":
        print("told of the end")
"""
ASKED = ["my_module:make_model", "--data", "my_module:make_data", "--batch-size", "8", "--name", "own"]
MORE = [
    "--metric",
    "my_module:right",
    "--schedule",
    "my_module:make_schedule",
    "--clip-norm",
    "1",
    "--optimizer",
    "Adam",
    "--schedule-per",
    "step",
    "--callback",
    "my_module:tell",
]


def gradtide(folder, *arguments):
    command = [loaded_python(), "-m", "gradtide", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_a_model_of_ones_own_is_trained_resumed_and_exported_by_one_command(tmp_path):
    (tmp_path / "my_module.py").write_text(OWN)
    checkpoints = ["--checkpoint-every", "4", "--lr", "0.01"]
    first = gradtide(tmp_path, "train", *ASKED, *MORE, *checkpoints, "--epochs", "2")
    assert first.returncode == 0, first.stderr
    assert "told of the end" in first.stdout
    lines = [json.loads(line) for line in (tmp_path / "runs/own/metrics.jsonl").read_text().splitlines()]
    last = [line["metrics"]["right"] for line in lines if line["kind"] == "epoch"][-1]
    assert ["right", f"{last:.4g}"] in [line.split() for line in first.stdout.splitlines()]
    final = load_file(tmp_path / "runs/own/model.safetensors")
    assert {name.partition(".")[0] for name in final} == {"0", "1", "2"}
    assert len(final) == 9  # and nothing else, so that load_state_dict takes it
    again = gradtide(tmp_path, "train", *ASKED, *MORE, *checkpoints, "--epochs", "3", "--resume")
    assert again.returncode == 0, again.stderr
    assert "gradtide: going on after step 8, from " in again.stderr
    exported = gradtide(tmp_path, "checkpoint", "export", "runs/own", "model.pt")
    assert "of the final model" in exported.stdout, exported.stderr
    final = load_file(tmp_path / "runs/own/model.safetensors")
    assert all(torch.equal(final[name], tensor) for name, tensor in torch.load(tmp_path / "model.pt").items())
    (tmp_path / "runs/own/model.safetensors").unlink()  # as if it had not ended
    exported = gradtide(tmp_path, "checkpoint", "export", "runs/own", "last.safetensors")
    assert "tensors of step 12" in exported.stdout, exported.stderr


def test_what_is_not_there_is_said_in_one_line(tmp_path):
    (tmp_path / "my_module.py").write_text(OWN)
    for asked, said in {
        "no_module:make": "no_module:make: there is no module 'no_module' here",
        "my_module:make": "my_module has no 'make'",
        "my_module:make_data": "gave a tuple; it must give a torch.nn.Module",
    }.items():
        done = gradtide(tmp_path, "train", asked, "--epochs", "1")
        assert done.returncode == 2
        assert said in done.stderr
        assert done.stderr.count("\n") == 1


def test_what_ones_own_function_raises_is_shown_without_our_frames_around_it_and_then_as_one_line(tmp_path):
    (tmp_path / "my_module.py").write_text(OWN + "\n\ndef broken():\n    raise ValueError('mine')\n")
    done = gradtide(tmp_path, "train", "my_module:broken", "--data", "my_module:make_data")
    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-2:] == ["ValueError: mine", "gradtide: ValueError: mine (my_module.py:30)"]
    assert not any("typer" in line or "gradtide/cli" in line for line in lines)
    done = gradtide(tmp_path, "train", "my_module:make_model", "--data", "digits", "--name", "other")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("gradtide: RuntimeError: ")
    assert "mat1 and mat2 shapes cannot be multiplied" in last  # torch 2.15 says whose
    assert "; the inputs are float32 (128, 1, 28, 28); the model's first parameter, 0.weight" in done.stderr

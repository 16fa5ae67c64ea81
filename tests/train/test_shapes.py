"""Batches that a model or a loss can't compute with: torch's own error, and beside it what was given."""

import re
import subprocess

import pytest
import torch
from torch import nn

import gradtide
from loaded_python import loaded_python

X, Y = torch.zeros(8, 10), torch.arange(8) % 3
MISTAKES = {
    "other inputs": (X[:, :7], Y, "float32 ({rows}, 7); the model's first parameter, weight, is float32 (3, 10)"),
    "another dtype": (X.double(), Y, "the inputs are float64 ({rows}, 10); the model's first parameter, weight, is"),
    "float classes": (X, Y.float(), "targets float32 ({rows},); classes are whole numbers of int64: targets.long()"),
    "classes beyond": (X, torch.full((8,), 7), "targets go from 7 to 7, and 3 outputs are of the classes 0 to 2"),
    "a column": (X, Y[:, None], "the targets int64 ({rows}, 1); classes are one number a sample: targets.squeeze(-1)"),
    "other shapes": (X, torch.zeros(8, 4), "the outputs are float32 ({rows}, 3), the targets float32 ({rows}, 4)"),
}  # fmt: skip


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_torchs_error_says_what_was_given_and_the_model_stays_as_it_was(mistake, devices):
    x, y, line = MISTAKES[mistake]
    model, expected = nn.Linear(10, 3), line.format(rows=8 // devices)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for work in (gradtide.fit, gradtide.evaluate):
        with pytest.raises((RuntimeError, IndexError)) as failed:
            work(model, (x, y), devices=devices)
        (note,) = failed.value.__notes__
        assert note.startswith("gradtide: ")
        assert expected in note
    assert all(map(torch.equal, before, model.parameters()))


def test_predict_says_it_too_and_an_error_of_the_models_own_kind_has_no_note():
    with pytest.raises(RuntimeError) as failed:
        gradtide.predict(nn.Linear(10, 3), X[:, :7])
    assert "the inputs are float32 (8, 7)" in failed.value.__notes__[0]

    class Own(nn.Linear):
        def forward(self, x):
            raise KeyError("mine")

    with pytest.raises(KeyError) as failed:
        gradtide.fit(Own(10, 3), (X, Y))
    assert not hasattr(failed.value, "__notes__")


def test_the_last_line_of_a_job_says_it(tmp_path):
    script = "import gradtide, torch; gradtide.fit(torch.nn.Linear(10, 3), (torch.zeros(8, 7), torch.zeros(8).long()))"
    (tmp_path / "script.py").write_text(script)
    command = [loaded_python(), "-m", "gradtide", "run", "--workers", "2", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert re.search(r"RuntimeError: (addmm: )?mat1 and mat2 shapes cannot be multiplied", last)
    assert "; the inputs are float32 (4, 7); the model's first parameter, weight, is float32 (3, 10)" in last

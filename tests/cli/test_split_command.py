"""gradtide split, as a user types it."""

import json
import sys

import pytest
from typer.testing import CliRunner

from gradtide.cli.app import app
from gradtide.errors import ConfigError, DataError, DeviceError, OutputError
from gradtide.schedule.step.files import layout_from_json


def split(*words):
    found = CliRunner().invoke(app, ["split", *words], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def test_a_small_model_is_planned_drawn_saved_and_compared_with_torchs_schedule(tmp_path):
    picture, layout = tmp_path / "step.svg", tmp_path / "layout.json"
    asked = ("lenet", "--devices", "2", "--memory", "1GB", "--batch", "16", "--threads", "1")
    text = split(*asked, "--draw", str(picture), "--json", str(layout), "--rival", "torch:1F1B")
    for words in ("lenet, 16 samples, on one host (2 devices)", "copies alone", "torch:1F1B", "lower bound", "on 1,"):
        assert words in text
    assert "<svg" in picture.read_text()
    saved = layout_from_json(layout.read_text(), "layout.json")
    assert saved.stages[0].first == 0
    assert saved.stages[-1].last == len(saved.units)
    assert json.loads(layout.read_text())


def test_a_model_of_ones_own_is_named_by_module_and_function(tmp_path, monkeypatch):
    (tmp_path / "my_split_model.py").write_text(
        "import torch\n"
        "def make():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)), torch.zeros(2, 4)\n"
        "def wrong():\n"
        "    return 7\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert "my_split_model:make, 8 samples" in split("my_split_model:make", "--batch", "8", "--threads", "1")
    with pytest.raises(ConfigError, match="must return a model and an example batch, not int"):
        split("my_split_model:wrong")
    sys.modules.pop("my_split_model", None)


@pytest.mark.parametrize(
    ("error", "words", "asked"),
    [
        (ConfigError, "no model is called 'alexnt'; did you mean 'alexnet'", ("alexnt",)),
        (ConfigError, "write module:function", ("no_such_module:make",)),
        (DeviceError, "one device or more, not 0", ("lenet", "--devices", "0")),
        (
            ConfigError,
            "no order is called 'zerobubble'; did you mean 'zero-bubble'",
            ("lenet", "--order", "zerobubble"),
        ),
        (DeviceError, "pcie-4gpu has 4 devices, not 5", ("lenet", "--devices", "5", "--topology", "pcie-4gpu")),
        (ConfigError, "no schedule is called 'torch:2F2B'", ("lenet", "--rival", "torch:2F2B")),
        (ConfigError, "8 samples make 1 to 8 micro-batches, not 9", ("lenet", "--batch", "8", "--micro-batches", "9")),
        (ConfigError, "--batch must be 1 or more, not 0", ("lenet", "--batch", "0")),
        (OutputError, "its name must end in .svg, .png, .pdf", ("lenet", "--draw", "step.jpg")),
        (OutputError, "there is no folder no/such", ("lenet", "--draw", "no/such/step.svg")),
        (OutputError, "there is no folder no/such", ("lenet", "--json", "no/such/layout.json")),
        (OutputError, "it is a folder", ("lenet", "--json", "/")),
        (ConfigError, "both name a.svg", ("lenet", "--json", "a.svg", "--draw", "a.svg")),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_measured(error, words, asked):
    with pytest.raises(error, match=words):
        split(*asked)


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("--servers 2 is for copies of a whole model", ("--servers", "2")),
        ("--every 10 is for copies of a whole model", ("--every", "10")),
        ("--sync ring is for copies of a whole model", ("--sync", "ring")),
        ("--compress int8 is for copies of a whole model", ("--compress", "int8")),
        ("--accumulate 2 is for copies of a whole model", ("--accumulate", "2")),
        ("--balance is for copies of a whole model", ("--balance",)),
        ("--strategy ring is for copies of a whole model", ("--strategy", "ring")),
        ("--scale-batch is for copies of a whole model", ("--scale-batch",)),
        ("with --split every worker is a device", ("--devices", "2")),
        ("with --split every worker is a device", ("--devices", "cpu:0,cpu:1")),
    ],
)
def test_training_a_split_model_refuses_what_is_for_copies_before_a_worker_is_started(tmp_path, words, asked):
    with pytest.raises(ConfigError, match=words):
        train("auto", *asked, "--output", str(tmp_path / "runs"))
    assert not list(tmp_path.iterdir())


def test_a_layout_file_that_is_not_there_is_told_before_a_worker_is_started(tmp_path):
    with pytest.raises(DataError, match=r"no layout can be read from .*none\.json"):
        train(str(tmp_path / "none.json"), "--output", str(tmp_path / "runs"))


def train(layout, *words):
    return CliRunner().invoke(app, ["train", "--workers", "2", "--split", layout, *words], catch_exceptions=False)

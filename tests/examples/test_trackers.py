"""examples/trackers.py: what Weights & Biases and MLflow keep of a run on two workers, without server and network."""

import json
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from loaded_python import loaded_python

pytestmark = pytest.mark.slow  # 130 MB and 25 packages to install

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = """
import json, sys, gradtide, trackers
history = trackers.main(sys.argv[1])
if gradtide.is_main():
    json.dump(history.columns(), open("seen.json", "w"))
"""
ALONE = {
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_TRACKING_URI": "file:./mlruns",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def seen_by(tracker, folder):
    """The figures of a run of the example on two workers; its files are in the folder."""
    if find_spec(tracker) is None:
        pytest.skip(f"{tracker} is not installed: pip install 'gradtide[trackers]'")
    (folder / "script.py").write_text(SCRIPT)
    paths = os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
    command = [loaded_python(), "-m", "gradtide", "run", "--workers", "2", "script.py", tracker]
    around = {**os.environ, **ALONE, "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=folder, env=around, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "seen.json").read_text())


def test_weights_and_biases_has_every_figure_of_every_epoch_once(tmp_path):
    columns = seen_by("wandb", tmp_path)
    (kept,) = tmp_path.glob("wandb/offline-run-*/*.wandb")  # of one worker
    data = kept.read_bytes()
    assert set(columns) == {"loss", "accuracy", "validation_loss", "validation_accuracy", "lr"}
    for name, values in columns.items():
        assert len(values) == 3
        assert all(repr(value).encode() in data for value in values), name


def test_mlflow_has_every_figure_of_every_epoch_and_that_the_run_is_over(tmp_path, monkeypatch):
    columns = seen_by("mlflow", tmp_path)
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    import mlflow

    client = mlflow.MlflowClient()
    (run,) = client.search_runs(["0"])
    assert (run.info.run_name, run.info.status) == ("digits", "FINISHED")
    for name, values in columns.items():
        assert [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, name)] == [
            (12 * (epoch + 1), value) for epoch, value in enumerate(values)
        ]

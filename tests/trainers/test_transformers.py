"""transformers.Trainer over gradtide, with one line more, beside the same over Gloo: the same weights."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gradtide

HERE = Path(__file__).parent
PLAIN = {"max_steps": 6, "gradient_accumulation_steps": 2, "max_grad_norm": 0.1, "lr_scheduler_type": "cosine"}


def weights(folder, backend, options):
    launcher = [sys.executable, "-m", "gradtide", "run", "--workers", "2"]
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*launcher, HERE / "transformers_runs.py", folder, backend, json.dumps(options)],
        env=os.environ | quiet,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return torch.load(folder / f"{backend}.pt")


@pytest.mark.slow
@pytest.mark.parametrize("options", [PLAIN, PLAIN | {"resume": True}], ids=["clipped and accumulated", "resumed"])
def test_a_causal_model_trained_by_transformers_equals_the_one_over_gloo(options, tmp_path):
    over_gradtide, over_gloo = (weights(tmp_path, backend, options) for backend in ("gradtide", "gloo"))
    assert over_gradtide.dtype == torch.float64
    assert (over_gradtide - over_gloo).abs().max() < 1e-10


def test_init_does_nothing_where_no_launcher_started_the_program(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    gradtide.init()
    assert not torch.distributed.is_initialized()


def test_init_after_another_backend_was_chosen_is_refused_in_one_line(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(gradtide.errors.ConfigError, match=r"goes over gloo already; call gradtide\.init\(\) first"):
            gradtide.init()
    finally:
        torch.distributed.destroy_process_group()

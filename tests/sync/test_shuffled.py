"""An unseeded shuffle in a job that outlives its workers: in every epoch each sample is trained on once."""

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from loaded_python import loaded_python

HERE = Path(__file__).parent
BATCHES, SAMPLES = 6, 30


def run(folder, options, arguments):
    command = [loaded_python(), "-m", "gradtide", "run", *options, str(HERE / "shuffled_script.py"), str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=120)
    return ran.returncode, ran.stdout + ran.stderr


def trained(folder):
    """The samples of each batch, as they were in the step that counted: that of the last generation."""
    noted = defaultdict(lambda: defaultdict(list))
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            batch, generation, *samples = map(int, line.split())
            noted[batch][generation] += samples
    return {batch: noted[batch][max(noted[batch])] for batch in sorted(noted)}


@pytest.mark.parametrize(
    ("kind", "options", "deaths"),
    [
        ("shuffle", ["--workers", "2", "--max-restarts", "2"], ["0:0:8", "1:0:12"]),
        pytest.param("shuffle", ["--workers", "3", "--min-workers", "2"], ["0:0:3"], marks=pytest.mark.slow),
        pytest.param("processes", ["--workers", "2", "--max-restarts", "1"], ["1:0:9"], marks=pytest.mark.slow),
        pytest.param("lazy", ["--workers", "2", "--max-restarts", "1"], ["1:0:8"], marks=pytest.mark.slow),
        pytest.param("huggingface", ["--workers", "2", "--max-restarts", "1"], ["1:0:9"], marks=pytest.mark.slow),
    ],
)
def test_each_sample_once_whoever_dies(tmp_path, kind, options, deaths):
    if kind == "huggingface":
        pytest.importorskip("datasets")
    code, output = run(tmp_path, options, [kind, *deaths])
    assert code == 0, output
    for death in deaths:
        worker, incarnation, step = death.split(":")
        assert len((tmp_path / f"{worker}.{incarnation}").read_text().splitlines()) == int(step)
    batches = trained(tmp_path)
    assert list(batches) == list(range(1, 3 * BATCHES + 1))
    for epoch in range(3):
        given = [n for batch in range(epoch * BATCHES + 1, (epoch + 1) * BATCHES + 1) for n in batches[batch]]
        assert sorted(given) == list(range(SAMPLES))


def test_who_came_later_gives_the_order_that_one_process_has_once_the_others_are_gone(tmp_path):
    """Worker 1 comes again in the second epoch; worker 0 dies before the last batch of it."""
    code, output = run(tmp_path, ["--workers", "2", "--max-restarts", "2"], ["seeded", "1:0:10", "0:0:16"])
    assert code == 0, output
    loader = DataLoader(range(SAMPLES), 4, shuffle=True, generator=torch.Generator().manual_seed(0))
    wanted = [sorted(batch.tolist()) for _ in range(3) for batch in loader]
    assert [sorted(batch) for batch in trained(tmp_path).values()] == wanted


@pytest.mark.slow
def test_an_order_that_died_with_its_worker_is_not_made_up(tmp_path):
    code, output = run(tmp_path, ["--workers", "3", "--min-workers", "2"], ["lazy", "0:0:3"])
    assert code != 0
    assert "whose sampler gave the order of this epoch is gone" in output
    assert "manual_seed(0)" in output

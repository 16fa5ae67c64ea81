"""A model that copies can't train in the memory there is trains when it is split: under real limits, a process each."""

import json
import signal
import subprocess
import sys
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup/memory")  # the first version's controller
LIMIT = 850_000_000  # a process; of it about 350 MB are Python, torch and what gradtide compiles
TIMEOUT_S = 180


@contextmanager
def cells(count):
    """Cgroups with the limit, for one process each."""
    made = [ROOT / f"gradtide-{uuid.uuid4().hex}" for _ in range(count)]
    try:
        for cell in made:
            try:
                cell.mkdir()
                (cell / "memory.limit_in_bytes").write_text(str(LIMIT))
            except OSError as error:
                pytest.skip(f"no memory cgroup can be made here: {error}")
        yield made
    finally:
        for cell in made:
            if cell.is_dir():
                cell.rmdir()


def start(way, rank, meeting, cell):
    command = [sys.executable, str(Path(__file__).with_name("in_cgroup.py")), way, str(rank), meeting, str(cell)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(way, made):
    """(exit code, what was printed, what went wrong) of each process."""
    meeting = f"cells-{uuid.uuid4().hex}"
    started = [start(way, rank, meeting, cell) for rank, cell in enumerate(made)]
    try:
        told = [one.communicate(timeout=TIMEOUT_S) for one in started]
        return [(one.returncode, *texts) for one, texts in zip(started, told, strict=True)]
    finally:
        for one in started:
            one.kill()
            one.wait()


@pytest.mark.slow
def test_a_model_too_large_for_copies_trains_when_it_is_split():
    """Copies share their parameters; to compute activations again would spare them 5 of more than 1,000 MB."""
    with cells(2) as made:
        assert -signal.SIGKILL in [code for code, _, _ in run("copies", made)]
    with cells(2) as made:
        trained = run("split", made)
    assert [code for code, _, _ in trained] == [0, 0], trained
    ((code, alone, wrong),) = run("alone", [""])
    assert code == 0, wrong
    for _, losses, _ in trained:
        assert json.loads(losses) == pytest.approx(json.loads(alone), abs=1e-5)

"""Nothing to import: torch finds the backend by its entry point."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from clock import at_most

ROOT = Path(__file__).parents[2]


@pytest.fixture
def installed(tmp_path):
    """An environment in which gradtide is installed with the entry points of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = tmp_path / "gradtide-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: gradtide\nVersion: 0.1.0\n")
    lines = [f"{name} = {target}" for name, target in project["entry-points"]["torch.backends"].items()]
    (folder / "entry_points.txt").write_text("\n".join(["[torch.backends]", *lines, ""]))
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}


def run(program, environment):
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=True
    ).stdout


def test_importing_torch_registers_the_backend_in_a_blink_and_never_fails_for_it(installed):
    """What torch calls is timed by itself: an import of torch takes seconds, and differs by tenths."""
    program = """
import sys, time, importlib.metadata
entry, = importlib.metadata.entry_points(group="torch.backends", name="gradtide")
import torch
assert "gradtide" in torch.distributed.Backend.backend_list
loaded, taken = [name for name in sys.modules if name.startswith("gradtide")], []
for _ in range(5):
    for name in loaded:
        del sys.modules[name]
    begin = time.perf_counter()
    entry.load()()
    taken.append(time.perf_counter() - begin)
sys.modules["torch.distributed"] = None  # a torch without it
entry.load()()
print(min(taken), *sorted(loaded))
"""
    seconds, *loaded = run(program, installed).split()
    assert float(seconds) < at_most(0.01)
    assert loaded == ["gradtide", "gradtide.registration"]


@pytest.mark.parametrize("version", ["1.13.1", "2.12.0", "3.0.0"])
def test_under_a_torch_that_is_too_old_or_not_tested_importing_prints_nothing(tmp_path, version):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    program = "import torch, gradtide, gradtide.registration as r; r.register(); print(torch.__version__)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{version}\n", "")


def test_a_program_needs_two_lines(installed, tmp_path):
    program = f"""
import torch.distributed as dist
dist.init_process_group("gradtide", init_method="file://{tmp_path}/store", rank=0, world_size=1)
import torch
tensor = torch.ones(2)
dist.all_reduce(tensor)
print(dist.get_backend(), tensor.tolist())
dist.destroy_process_group()
"""
    assert run(program, installed).strip() == "gradtide [1.0, 1.0]"

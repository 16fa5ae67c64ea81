"""The package as users get it: built, checked, and installed without extras where nothing else of ours is."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import gradtide
from gradtide.extras import EXTRAS

ROOT = Path(__file__).parent.parent
SOURCES = (
    "src",
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "SECURITY.md",
    "constraints.txt",
)

FIRST_HOUR = """
import torch
import gradtide

torch.manual_seed(0)
x = torch.randn(256, 8)
y = (x.sum(1) > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
gradtide.fit(model, (x, y), devices=2, batch_size=32, epochs=5, lr=0.2)
assert gradtide.evaluate(model, (x, y), devices=2).accuracy > 0.9

with gradtide.local_servers(2) as servers, gradtide.connect(servers.address) as store:
    store.init("w", torch.zeros(4), update=gradtide.update("sgd", lr=0.5))
    store.push("w", torch.ones(4)).wait()
    assert store.pull("w").tolist() == [-0.5] * 4
print("trained, pushed and pulled")
"""


def run(*command, folder, check=True):
    away = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in away}
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True, timeout=1200
    )
    assert not check or done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def fresh_python(folder):
    run(sys.executable, "-m", "venv", folder, folder=folder.parent)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the wheel and the source archive, made from a copy: building writes into the sources."""
    folder = tmp_path_factory.mktemp("built")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, folder)
    python = fresh_python(folder / "tools")
    run(python, "-m", "pip", "install", "-q", "build", "twine", folder=folder)
    run(python, "-m", "build", "--outdir", folder / "dist", ".", folder=folder)
    archives = [*(folder / "dist").iterdir()]
    assert len(archives) == 2
    checked = run(python, "-m", "twine", "check", "--strict", *archives, folder=folder).stdout
    assert checked.count("PASSED") == len(archives)
    return folder / "dist"


@pytest.mark.slow
def test_the_wheel_plans_trains_pushes_and_pulls_in_a_clean_venv_without_extras(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    python = fresh_python(tmp_path / "clean")
    command = python.with_name("gradtide")
    run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel, folder=tmp_path)
    run(python, "-m", "pip", "check", folder=tmp_path)

    found = run(
        python, "-c", "import gradtide.extras as e; print(e.__file__, *e.missing())", folder=tmp_path
    ).stdout.split()
    assert found[0].startswith(str(tmp_path))
    assert found[1:] == [*EXTRAS]
    assert run(command, "--version", folder=tmp_path).stdout == f"gradtide {gradtide.__version__}\n"
    assert "rings" in run(command, "plan", "dgx1-v100", "--size", "160MB", folder=tmp_path).stdout
    (tmp_path / "first_hour.py").write_text(FIRST_HOUR)
    assert run(python, "first_hour.py", folder=tmp_path).stdout.endswith("trained, pushed and pulled\n")
    assert "pip install 'gradtide[" in run(command, "doctor", folder=tmp_path).stdout
    for words, extra in (
        (("plan", "dgx1-v100", "--size", "1MB", "--draw", "plan.svg"), "plot"),
        (("train", "--devices", "1"), "digits"),
        (("dashboard", "unix:/none"), "dashboard"),
        (("run", "--engine", "ray", "first_hour.py"), "ray"),
    ):
        done = run(command, *words, folder=tmp_path, check=False)
        assert done.returncode == 2, done.stderr
        assert f"pip install 'gradtide[{extra}]'" in done.stderr
        assert len(done.stderr.splitlines()) == 1


DDP = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gradtide")
model = DistributedDataParallel(torch.nn.Linear(4, 2))
model(torch.ones(3, 4)).sum().backward()
dist.all_reduce(ones := torch.ones(2))
assert ones.tolist() == [2.0, 2.0]
print(dist.get_rank(), torch.__version__)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_what_pip_installs_today_works_without_constraints(built, tmp_path, version):
    """The newest torch, numba and numpy: five gigabytes for each version of Python."""
    name = shutil.which(f"python{version}")
    if name is None or subprocess.run([name, "--version"], capture_output=True).returncode:
        pytest.skip(f"no Python {version} here")
    (wheel,) = built.glob("*.whl")
    run(name, "-m", "venv", tmp_path / "clean", folder=tmp_path)
    python = tmp_path / "clean" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", wheel, folder=tmp_path)
    (tmp_path / "first_hour.py").write_text(FIRST_HOUR)
    assert run(python, "first_hour.py", folder=tmp_path).stdout.endswith("trained, pushed and pulled\n")
    (tmp_path / "ddp.py").write_text(DDP)
    torchrun = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
    for command in ((python, *torchrun, "ddp.py"), (python.with_name("gradtide"), "run", "--workers", "2", "ddp.py")):
        done = run(*command, folder=tmp_path)
        assert len(done.stdout.splitlines()) == 2
        assert "nanobind" not in done.stderr


@pytest.mark.slow
def test_the_wheel_has_what_the_package_has_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    package = Path(gradtide.__file__).parent
    there = {path.relative_to(package.parent).as_posix() for path in package.rglob("*") if path.is_file()}
    there = {name for name in there if "__pycache__" not in name}
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == there

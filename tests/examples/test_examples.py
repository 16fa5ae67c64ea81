"""The examples are programs for one process but for the lines that say so, and give what one process gives."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import forms
import pytest
import torch
from run_forms import run_forms

from loaded_python import loaded_python

HERE = Path(__file__).parent


def start(*arguments, python=sys.executable):
    """One thread each: there are more processes than cores."""
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.Popen(
        [python, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**environment, "OMP_NUM_THREADS": "1"},
    )


def finish(process):
    with process:
        try:
            said, _ = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, said
    return said


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Two workers train every form, while this process makes what is wanted of them."""
    folder = tmp_path_factory.mktemp("together")
    for name, way in forms.CASES:
        (folder / f"{name},{way}.py").write_text(forms.along(name, way))
    command = ("-m", "gradtide", "run", "--workers", 2, "--servers", 1)
    workers = start(*command, HERE / "run_forms.py", folder, python=loaded_python())
    yield folder, workers
    if workers.returncode is None:
        workers.kill()
        finish(workers)


@pytest.fixture(scope="module")
def alone(together, tmp_path_factory):
    """Trained by one process: without gradtide's lines, and with them."""
    folder = tmp_path_factory.mktemp("alone")
    for name in forms.NAMES:
        (folder / f"{name},plain.py").write_text(forms.plain(forms.text_of(name)))
        (folder / f"{name},wrapped.py").write_text(forms.text_of(name))
    given = sys.argv, torch.get_default_dtype()
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            run_forms(folder)
    finally:
        sys.argv = given[0]
        torch.set_default_dtype(given[1])
    return folder


@pytest.fixture(scope="module")
def trained(together, alone):
    """By two workers; one of them prints, and nobody is warned of anything."""
    folder, workers = together
    said = finish(workers)
    assert "Warning" not in said
    assert {line[:3] for line in said.splitlines() if not line.startswith("gradtide: ")} == {"[0]"}
    return folder


def check(alone, name, found):
    wanted, found = (torch.load(path, weights_only=True) for path in (alone / f"{name},plain.0.pt", found))
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert value.dtype == torch.float64
        assert torch.allclose(found[key], value, rtol=0, atol=1e-10), (
            f"{key}: off by {(found[key] - value).abs().max()}"
        )


@pytest.mark.parametrize("name", forms.NAMES)
def test_an_example_wrapped_in_one_process_is_the_plain_one(alone, name):
    check(alone, name, alone / f"{name},wrapped.0.pt")


@pytest.mark.parametrize(("name", "way"), forms.CASES)
def test_two_workers_end_with_the_parameters_of_the_example_without_gradtide(alone, trained, name, way):
    for rank in range(2):
        check(alone, name, trained / f"{name},{way}.{rank}.pt")


@pytest.mark.parametrize("name", forms.NAMES)
def test_an_example_differs_from_its_plain_form_by_whole_lines_that_wrap_cut_and_weigh(name):
    text = forms.text_of(name)
    marked = [line.strip().removesuffix(forms.MARK) for line in text.splitlines() if line.endswith(forms.MARK)]
    allowed = (
        "import gradtide",
        "= gradtide.DataParallel(",
        "= gradtide.shard(",
        "= model.no_sync",
        "model.weigh(terms)",
    )
    assert len(marked) <= 5
    for line in marked:
        assert any(word in line for word in allowed), line
    assert forms.WRAP.search(text)
    code = [line.split("#")[0] for line in forms.plain(text).split('"""', 2)[2].splitlines()]
    assert {line.strip() for line in code if "gradtide" in line} <= {"from gradtide.train.digits import load_digits"}


def test_torchrun_starts_an_example_as_it_is_and_one_worker_prints_and_saves(tmp_path):
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    best = tmp_path / "best.pt"
    said = finish(start(*command, forms.FOLDER / "digits.py", "--epochs", 1, "--best", best, python=loaded_python()))
    assert said.count("epoch 1: ") == said.count("test: 0.") == 1
    assert torch.load(best, weights_only=True).keys() == {
        f"{n}.{kind}" for n in (0, 2, 5) for kind in ("weight", "bias")
    }

"""What the scripts say when something is missing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def clone(tmp_path):
    folder = tmp_path / "a folder with spaces"
    folder.mkdir()
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    return folder


def run(clone, script, **environment):
    command = ["bash", str(clone / "scripts" / script)]
    env = {**os.environ, **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, cwd=clone.parent)


def fake_python(clone, body):
    path = clone.parent / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("script", ["demo", "test"])
def test_an_old_python_is_named(clone, script):
    python = fake_python(clone, 'case "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac')
    done = run(clone, script, PYTHON=python)
    assert done.returncode == 2
    assert (
        done.stderr
        == f"gradtide: {python} is Python 3.9.2; gradtide needs 3.11 or newer: set PYTHON=/path/to/python3.11\n"
    )


def test_a_missing_python_is_named(clone):
    done = run(clone, "demo", PYTHON="/no/such/python")
    assert done.returncode == 2
    assert done.stderr.startswith("gradtide: no /no/such/python found; install Python 3.11")


def test_a_missing_venv_module_is_named(clone):
    python = fake_python(clone, 'case "$2" in *ensurepip*) exit 1;; esac; exit 0')
    done = run(clone, "demo", PYTHON=python)
    assert done.returncode == 2
    assert done.stderr == f"gradtide: {python} has no venv module; on Debian or Ubuntu: apt-get install python3-venv\n"


def test_no_network_is_named_and_the_next_call_tries_again(clone):
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    for _ in range(2):
        done = run(clone, "demo", PYTHON=sys.executable, **nowhere)
        assert done.returncode == 2
        assert "pip could not install; check the network or your pip index, then run this again" in done.stderr
    assert not list((clone / ".venv").glob("installed*"))

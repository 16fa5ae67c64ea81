"""`gradtide checkpoint` and `gradtide restore` as commands."""

import os
import re
import shutil
import signal
import subprocess

import pytest
import safetensors.torch
import torch
from typer.testing import CliRunner

import gradtide
from gradtide.cli.app import app
from gradtide.errors import ConfigError, DataError, OutputError
from loaded_python import loaded_python

TENSORS = {"layer.weight": torch.randn(3, 4), "counts": torch.arange(7)}


def invoke(*words):
    result = CliRunner().invoke(app, ["checkpoint", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


@pytest.fixture
def imported(tmp_path):
    safetensors.torch.save_file(TENSORS, tmp_path / "plain.safetensors")
    invoke("import", tmp_path / "plain.safetensors", tmp_path / "ck", "--update", "add")
    return tmp_path


def test_a_plain_file_becomes_a_checkpoint_and_comes_back(imported):
    assert "step-00000001" in invoke("ls", imported / "ck")
    assert "all as they were written" in invoke("verify", imported / "ck")
    invoke("export", imported / "ck", imported / "back.safetensors")
    invoke("export", imported / "ck", imported / "back.pt")
    for found in (
        safetensors.torch.load_file(imported / "back.safetensors"),
        torch.load(imported / "back.pt", weights_only=True),
    ):
        assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())


def test_every_mistake_of_these_commands_is_one_clear_line(imported):
    shutil.copytree(imported / "ck", imported / "run" / "checkpoints")
    for words, kind, message in (
        (("ls", imported / "nowhere"), DataError, "is no checkpoint and has none in it"),
        (("verify", imported), DataError, "is no checkpoint and has none in it"),
        (("verify", imported / "run"), DataError, "is the folder of a run; its checkpoints are in"),
        (("export", imported / "ck", imported / "plain.safetensors"), OutputError, "is there already"),
        (("export", imported / "ck", imported / "x.bin"), ConfigError, "names no format; let it end in .safetensors"),
        (("import", imported / "x.pt", imported / "ck"), ConfigError, "is a pickle, which may run code"),
        (("import", imported / "x.safetensors", imported / "ck"), DataError, "can't be read: No such file"),
        (("import", imported / "plain.safetensors", imported / "ck", "--argument", "lr=x"), ConfigError, "NAME=NUMBER"),
    ):
        with pytest.raises(kind, match=re.escape(message)):
            invoke(*words)


def test_restore_starts_a_store_with_a_checkpoint_and_ends_when_told(imported):
    command = [loaded_python(), "-m", "gradtide", "restore", str(imported / "ck"), "--servers", "3"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    said = process.stdout.readline()
    assert said.startswith("2 keys on 3 servers at unix:")
    address = said.split()[-1]
    with gradtide.connect(address) as store:
        assert torch.equal(store.pull("layer.weight"), TENSORS["layer.weight"])
        store.push("counts", torch.ones(7, dtype=torch.int64)).wait()
        assert torch.equal(store.pull("counts"), TENSORS["counts"] + 1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    process.stdout.close()
    assert not os.path.exists(os.path.dirname(address.removeprefix("unix:")))

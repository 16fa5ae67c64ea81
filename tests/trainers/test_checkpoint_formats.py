"""Checkpoints that others read: what is exported is read by the real packages, bit for bit, and comes back."""

import json
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed import checkpoint as dcp
from typer.testing import CliRunner

from gradtide.cli.app import app
from gradtide.errors import ConfigError, DataError, OutputError
from gradtide.store.snapshot.export import read_plain

TENSORS = {
    "layer.weight": torch.randn(30, 40),
    "layer.bias": torch.randn(30, dtype=torch.float64),
    "half": torch.randn(5, 7).bfloat16(),
    "counts": torch.arange(7),
    "scalar": torch.tensor(2.5),
}


def invoke(*words):
    result = CliRunner().invoke(app, ["checkpoint", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


@pytest.fixture
def kept(tmp_path):
    """A folder with a checkpoint of TENSORS in it."""
    save_file(TENSORS, tmp_path / "plain.safetensors")
    invoke("import", tmp_path / "plain.safetensors", tmp_path / "ck")
    return tmp_path


def equal(found, tensors=TENSORS):
    return found.keys() == tensors.keys() and all(
        found[name].dtype == tensor.dtype and torch.equal(found[name], tensor) for name, tensor in tensors.items()
    )


def test_a_checkpoint_in_hugging_faces_format_has_several_files_with_an_index_and_comes_back(kept):
    invoke("export", kept / "ck", kept / "hf", "--format", "hf", "--shard-bytes", 1000)
    files = sorted(path.name for path in (kept / "hf").iterdir())
    assert len(files) > 2
    assert "model.safetensors.index.json" in files
    invoke("import", kept / "hf", kept / "again")
    invoke("export", kept / "again", kept / "back.safetensors")
    assert equal(read_plain(kept / "back.safetensors"))
    assert not [path for path in kept.iterdir() if path.name.startswith(".")]


def test_torchs_distributed_checkpoint_reads_what_is_exported_for_it(kept):
    invoke("export", kept / "ck", kept / "dcp", "--format", "dcp")
    found = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
    dcp.load(found, checkpoint_id=kept / "dcp", no_dist=True)
    assert equal(found)


def test_every_mistake_with_these_formats_is_one_clear_line(kept, monkeypatch):
    invoke("export", kept / "ck", kept / "dcp", "--format", "dcp")
    invoke("export", kept / "ck", kept / "hf", "--format", "hf", "--shard-bytes", 1000)
    index = kept / "hf" / "model.safetensors.index.json"
    whole = json.loads(index.read_text())
    with pytest.raises(ConfigError, match=r"^.*\.metadata is a pickle, which may run code.*$"):
        invoke("import", kept / "dcp", kept / "new")
    with pytest.raises(OutputError, match=r"hf is there already"):
        invoke("export", kept / "ck", kept / "hf", "--format", "hf")
    with pytest.raises(ConfigError, match=r"--format 'gguf' is unknown; choose hf or dcp"):
        invoke("export", kept / "ck", kept / "x", "--format", "gguf")
    with pytest.raises(OutputError, match=r"x can't be written: No such file"):
        invoke("export", kept / "ck", kept / "nowhere" / "x", "--format", "hf")
    for changed, text in (
        ({"counts": "../plain.safetensors"}, "it must name files beside it"),
        (whole["weight_map"] | {"more": whole["weight_map"]["counts"]}, "disagree about more"),
        ("text", "is no index of safetensors"),
    ):
        index.write_text(json.dumps({"weight_map": changed}))
        with pytest.raises(DataError, match=text):
            invoke("import", kept / "hf", kept / "new")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        ConfigError, match=r"^--format hf needs huggingface_hub: pip install 'gradtide\[huggingface\]'$"
    ):
        invoke("export", kept / "ck", kept / "x", "--format", "hf")
    assert not (kept / "x").exists()


@pytest.mark.slow
def test_transformers_loads_an_exported_model_bit_for_bit(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=40, num_key_value_heads=2, **sizes)
    state = LlamaForCausalLM(config).state_dict()
    save_file(state, tmp_path / "plain.safetensors")
    invoke("import", tmp_path / "plain.safetensors", tmp_path / "ck")
    invoke("export", tmp_path / "ck", tmp_path / "hf", "--format", "hf", "--shard-bytes", 4000)
    config.save_pretrained(tmp_path / "hf")
    loaded, told = LlamaForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not told["missing_keys"]
    assert equal(loaded.state_dict(), state)

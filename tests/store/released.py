"""What a release wrote, frozen in golden/VERSION/, and how the present code reads it.

    python tests/store/released.py --freeze     once, when a version is released; nothing there is changed after that

structs.json, wire.json and the files of golden/   as they were then
store/, fit/         checkpoints: of a store with rounds, momentum and a compressed key; of a training in mid-epoch
machine.toml, cluster.toml, run.json, keys   a user's files
content.json         what reading each of them gave
"""

import argparse
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import torch
from golden_bytes import GOLDEN
from golden_files import FILES

import gradtide
from gradtide.checkpoint.manifest import verify
from gradtide.checkpoint.places import open_place
from gradtide.checkpoint.shelf import find_checkpoint
from gradtide.checkpoint.tensor_file import TensorFile
from gradtide.observe.event_log import LogReader
from gradtide.observe.run_facts import RunFacts, read_facts, write_facts
from gradtide.schedule.serialize import schedule_from_json
from gradtide.store.coordinator.journal import Journal
from gradtide.store.snapshot.export import collect_values
from gradtide.store.snapshot.shard_file import read_shards
from gradtide.topology.files import read_topology, write_topology
from gradtide.topology.model import Topology
from gradtide.topology.presets import preset
from gradtide.train.record import read_metrics
from gradtide.transport.keys import parse_keys

__all__ = ["MAJOR", "READERS", "SUM", "VERSIONS", "advice", "frozen_sum", "is_within", "resumed_from"]

SUM = "sha256"
VERSIONS = sorted(path for path in GOLDEN.iterdir() if path.is_dir())  # that were released
MAJOR = [folder for folder in VERSIONS if folder.name.split(".")[0] == gradtide.__version__.split(".")[0]]
WHAT_TO_DO = """
    {what} of gradtide {version} is no longer read as it was. Users have such bytes on their disks and in their jobs.
    - A field that is new needs a default, and stands last where fields have no names (array_like).
    - A field or struct that has another name keeps its encoded one (rename=, tag=).
    - What can't be read as it is gets a new number of its format; the old one is turned into the new when it is read.
    The files in tests/store/golden/{version}/ stay as they are. Only the next major version may stop reading them."""
CLUSTER = """
[[hosts]]
count = 4
kind = "pcie-box"

[fabric]
hosts_per_leaf = 2
spines = 1
oversubscription = 2

[[override]]
name = "host3.nic0"
times = 0.5
"""
KEYS = "".join(f"gradtide-key worker w3 {digits * 32}\n" for digits in ("0a", "1b"))


def advice(folder: Path, what: str) -> str:
    """What to do about what is not read any more."""
    return WHAT_TO_DO.format(what=what, version=folder.name)


def frozen_sum(folder: Path) -> str:
    """Of all names and bytes in it, but for the sum itself."""
    found = sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUM):
        found.update(f"{path.relative_to(folder)} {sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def is_within(old: Any, new: Any) -> bool:
    """Whether all that was said is said still: a struct may have got more fields, which are at its end if unnamed."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(key in new and is_within(value, new[key]) for key, value in old.items())
    if isinstance(old, list):
        return isinstance(new, list) and len(old) <= len(new) and all(map(is_within, old, new))
    return type(old) is type(new) and old == new


# --- how each is read: plain data, the same for all times ---


def _journal(path: Path) -> Any:
    with Journal(path) as journal:
        return journal.read()


def _events(path: Path) -> Any:
    return [{"at_s": at.at_s, "event": type(at.event).__name__, **asdict(at.event)} for at in LogReader(path).read()]


def _tensors(path: Path) -> Any:
    with TensorFile(open_place(path.parent), path.name) as file:
        found, _ = file.read(file.slots[0].start, file.slots[-1].end)
    return {name: _values(tensor) for name, tensor in found.items()}


def _values(tensor: torch.Tensor) -> Any:
    whole = tensor.to(torch.float64) if tensor.dtype.is_floating_point else tensor
    return [str(tensor.dtype), list(tensor.shape), str(whole.tolist())]  # a text, since NaN and complex are no JSON


def _checkpoint(path: Path) -> Any:
    place, _ = find_checkpoint(path)
    manifest = verify(place)
    shards = [[word, [_values(value) for value in values]] for word, values in read_shards(place, manifest)]
    values = {name: _values(value) for name, value in collect_values(place, manifest).items()}
    return {"manifest": manifest, "shards": shards, "values": values}


def _topology(path: Path) -> Any:
    found: Topology = read_topology(path)
    return {
        "name": found.name,
        "nodes": [asdict(node) for node in found.nodes],
        "links": list(map(asdict, found.links)),
    }


READERS: dict[str, Callable[[Path], Any]] = {
    "journal": _journal,
    "events.jsonl": _events,
    "metrics.jsonl": lambda path: list(read_metrics(path)),
    "schedule.json": lambda path: asdict(schedule_from_json(path.read_text(encoding="utf-8"))),
    "shard.safetensors": _tensors,
    "tensors.safetensors": _tensors,
    "store": _checkpoint,
    "fit": _checkpoint,
    "machine.toml": _topology,
    "cluster.toml": _topology,
    "run.json": lambda path: asdict(read_facts(path.parent) or RunFacts("none", 0)),
    "keys": lambda path: [[k.role, k.name, k.secret.hex()] for k in parse_keys(path, path.read_bytes())],
}


# --- how they were made ---


def _write_store(path: Path) -> None:
    with gradtide.local_servers(2) as servers:
        store = gradtide.connect(servers.address, 0, workers=1, consistency="bsp")
        numbers = torch.tensor([[1.0, -2.0], [4.0, 0.5]])
        store.init("layer.weight", numbers, update=gradtide.update("sgd", lr=0.5, momentum=0.5))
        store.init("layer.bias", numbers[0], update=gradtide.update("sgd", lr=0.25), compress="int8")
        for _ in range(2):
            store.push({"layer.weight": 0.25 * numbers, "layer.bias": numbers[1]}).wait()
        store.checkpoint(path)
        store.close()


def resumed_from(path: Path, *, every: int = 0) -> tuple[torch.nn.Module, Any]:
    """A training of three steps an epoch, which goes on with the checkpoint there if there is one."""
    model = torch.nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0]]))
        model.bias.fill_(0.5)
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [0.0, 2.0], [1.0, 2.0]])
    history = gradtide.fit(
        model, (x, x.sum(1, keepdim=True)), loss="mse", devices=1, batch_size=2, epochs=2, optimizer="adam", lr=0.125,
        checkpoints=gradtide.Checkpoints(str(path), every=every, keep=1, resume=not every),
    )  # fmt: skip
    return model, history


def _freeze() -> None:
    folder = GOLDEN / gradtide.__version__
    if folder.exists():
        raise SystemExit(f"{folder.name} is frozen: what was released is not written again; raise the version first")
    folder.mkdir()
    for name in ("structs.json", "wire.json", *FILES):
        shutil.copy(GOLDEN / name, folder)
    _write_store(folder / "store")
    model, _ = resumed_from(folder / "fit", every=4)
    write_topology(preset("ethernet-cluster:2x2@25"), folder / "machine.toml")
    (folder / "cluster.toml").write_text(CLUSTER.lstrip(), encoding="utf-8")
    (folder / "keys").write_text(KEYS, encoding="utf-8")
    write_facts(folder, RunFacts("2 workers ü", 2, 1, "unix:/s"))
    content = {name: msgspec.to_builtins(read(folder / name)) for name, read in READERS.items()}
    content["fit goes on"] = {name: value.tolist() for name, value in model.state_dict().items()}
    lines = [f"{json.dumps(name)}: {msgspec.json.encode(read).decode()}" for name, read in content.items()]
    (folder / "content.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    (folder / "journal.lock").unlink()
    (folder / SUM).write_text(frozen_sum(folder) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--freeze", action="store_true", required=True, help="write golden/VERSION/ of this version")
    parser.parse_args()
    _freeze()

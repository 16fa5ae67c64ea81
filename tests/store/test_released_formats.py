"""What a release has written or said is read by every later version, and nothing that was released is changed."""

import json
import re
import shutil
from pathlib import Path

import msgspec
import pytest
import torch
from golden_wire import read_back
from released import MAJOR, READERS, SUM, VERSIONS, advice, frozen_sum, is_within, resumed_from

import gradtide

CHANGELOG = Path(__file__).parent.parent.parent / "CHANGELOG.md"


def by_version(names):
    return [pytest.param(folder, name, id=f"{folder.name}-{name}") for folder in MAJOR for name in names]


@pytest.mark.quick
@pytest.mark.parametrize("folder", VERSIONS, ids=lambda folder: folder.name)
def test_nothing_that_was_released_is_changed(folder):
    kept = (folder / SUM).read_text().strip()
    assert frozen_sum(folder) == kept, f"tests/store/golden/{folder.name}/ is frozen: git checkout it"


def test_every_version_that_has_a_date_is_kept():
    dated = re.findall(r"^## (\S+) \(\d", CHANGELOG.read_text(encoding="utf-8"), re.MULTILINE)
    assert dated
    assert sorted(dated) == [folder.name for folder in VERSIONS], "python tests/store/released.py --freeze"


@pytest.mark.parametrize(("folder", "name"), by_version(READERS))
def test_a_file_that_was_released_is_read_as_it_was(folder, name, tmp_path):
    copy = tmp_path / name  # a journal is locked where it is
    (shutil.copytree if (folder / name).is_dir() else shutil.copy)(folder / name, copy)
    kept = json.loads((folder / "content.json").read_text(encoding="utf-8"))[name]
    try:
        found = msgspec.to_builtins(READERS[name](copy))
    except Exception as error:
        raise AssertionError(advice(folder, name)) from error
    assert is_within(kept, json.loads(msgspec.json.encode(found))), advice(folder, name)


@pytest.mark.parametrize("folder", MAJOR, ids=lambda folder: folder.name)
def test_a_training_goes_on_with_the_checkpoint_of_then(folder):
    model, history = resumed_from(folder / "fit")
    kept = json.loads((folder / "content.json").read_text(encoding="utf-8"))["fit goes on"]
    assert history.resumed
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, torch.tensor(kept[name]))


@pytest.mark.parametrize("folder", MAJOR, ids=lambda folder: folder.name)
def test_a_store_begins_with_the_checkpoint_of_then(folder, forks):
    values = json.loads((folder / "content.json").read_text(encoding="utf-8"))["store"]["values"]
    restored = gradtide.local_servers(1, forks=forks, restore=folder / "store")
    with restored as servers, gradtide.connect(servers.address) as store:
        for name, (_, _, value) in values.items():
            assert str(store.pull(name).to(torch.float64).tolist()) == value


@pytest.mark.parametrize(("folder", "kind"), by_version(read_back))
def test_what_was_said_then_is_understood(folder, kind):
    kept = json.loads((folder / "wire.json").read_text(encoding="utf-8"))[kind]
    read_back[kind]({name: bytes.fromhex(digits) for name, digits in kept.items()})


@pytest.mark.quick
def test_more_fields_are_within_and_fewer_or_others_are_not():
    assert is_within({"a": [1, [2]]}, {"a": [1, [2, 3]], "b": 4})
    for other in ({"a": [1]}, {"b": [1, [2]]}, {"a": [1, [3]]}, {"a": [True, [2]]}, [1]):
        assert not is_within({"a": [1, [2]]}, other)

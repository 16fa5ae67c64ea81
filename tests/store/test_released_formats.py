"""What a release has written or said is read by every later version, and nothing that was released is changed."""

import json
import shutil
from typing import get_args

import msgspec
import pytest
import torch
from golden_structs import all_structs, key_of
from golden_wire import read_back
from released import READERS, SUM, frozen_sum, is_within, released, resumed_from

import gradtide
from gradtide.store.wire import messages

VERSIONS = released()
MAJOR = [folder for folder in VERSIONS if folder.name.split(".")[0] == gradtide.__version__.split(".")[0]]
MESSAGES = get_args(messages.Message)
WHAT_TO_DO = """
    {what} of gradtide {version} is no longer read as it was. Users have such bytes on their disks and in their jobs.
    - A field that is new needs a default, and stands last where fields have no names (array_like).
    - A field or struct that has another name keeps its encoded one (rename=, tag=).
    - What can't be read as it is gets a new number of its format; the old one is turned into the new when it is read.
    The files in tests/store/golden/{version}/ stay as they are. Only the next major version may stop reading them."""


def by_version(names):
    return [pytest.param(folder, name, id=f"{folder.name}-{name}") for folder in MAJOR for name in names]


def advice(folder, what):
    return WHAT_TO_DO.format(what=what, version=folder.name)


@pytest.mark.quick
@pytest.mark.parametrize("folder", VERSIONS, ids=lambda folder: folder.name)
def test_nothing_that_was_released_is_changed(folder):
    kept = (folder / SUM).read_text().strip()
    assert frozen_sum(folder) == kept, f"tests/store/golden/{folder.name}/ is frozen: git checkout it"


def test_this_version_is_kept_if_it_is_released():
    assert VERSIONS, "python tests/store/released.py --freeze"


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


@pytest.mark.parametrize("folder", MAJOR, ids=lambda folder: folder.name)
def test_every_struct_that_was_released_is_understood(folder):
    structs = {struct.__name__: struct for found in all_structs().values() for struct in found}
    keys = {key_of(struct): struct for struct in structs.values()}
    for key, kept in json.loads((folder / "structs.json").read_text(encoding="utf-8")).items():
        now = keys.get(key) or structs.get(kept["was"].split()[0])
        assert now is not None, advice(folder, kept["was"])
        for name, encoded in kept.items():
            if name != "was":
                data = bytes.fromhex(encoded["msgpack"])
                again = msgspec.msgpack.encode(msgspec.msgpack.decode(data, type=now))
                plain = [msgspec.msgpack.decode(each) for each in (data, again)]
                assert is_within(*plain), advice(folder, f"{kept['was']} ({name})")
                assert now not in MESSAGES or type(messages.decode(data)) is now, advice(folder, kept["was"])


@pytest.mark.parametrize(("folder", "kind"), by_version(read_back))
def test_what_was_said_then_is_understood(folder, kind):
    kept = json.loads((folder / "wire.json").read_text(encoding="utf-8"))[kind]
    read_back[kind]({name: bytes.fromhex(digits) for name, digits in kept.items()})


@pytest.mark.quick
def test_more_fields_are_within_and_fewer_or_others_are_not():
    assert is_within({"a": [1, [2]]}, {"a": [1, [2, 3]], "b": 4})
    for other in ({"a": [1]}, {"b": [1, [2]]}, {"a": [1, [3]]}, {"a": [True, [2]]}, [1]):
        assert not is_within({"a": [1, [2]]}, other)

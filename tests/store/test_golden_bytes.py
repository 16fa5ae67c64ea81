"""What goes over a wire or to a disk is what it was, byte for byte, whatever Python calls it now.

Where a format is meant to change: `python tests/store/golden_bytes.py --write`, and read what the diff says.
"""

import json
from typing import get_args

import msgspec
import pytest
from golden_bytes import GOLDEN, file_bytes, kept_structs, kept_wires, struct_bytes, wire_bytes
from golden_files import FILES
from golden_structs import all_structs, variants
from golden_wire import WIRES, read_back
from msgspec import inspect
from released import MAJOR, advice, is_within

from gradtide.store.wire import messages

STRUCTS = all_structs()
NOW = struct_bytes()
KEPT = kept_structs()
WIRE = kept_wires()
WHAT_TO_DO = """
    gradtide would write other bytes than before. If that is not meant, keep the encoded name (tag=, rename=) or order.
    If it is: `python tests/store/golden_bytes.py --write`, read what `git diff` says, and tell users in CHANGELOG.md.
    What was released stays readable: tests/store/test_released_formats.py."""


def called(key):
    return KEPT[key]["was"]


def test_every_struct_has_its_bytes_and_no_bytes_have_lost_their_struct():
    fresh = sorted(struct.__qualname__ for key in STRUCTS.keys() - KEPT.keys() for struct in STRUCTS[key])
    assert not fresh, "new, or encoded in another way: golden_bytes.py --write"
    assert not sorted(map(called, KEPT.keys() - STRUCTS.keys())), "gone, or encoded in another way"


def test_every_message_of_the_store_and_what_it_consists_of_is_among_them():
    wanted = {struct for struct in vars(messages).values() if isinstance(struct, type)}
    wanted |= {*get_args(messages.Message), *get_args(messages.Step)}
    assert len(wanted) > 50
    assert wanted <= {struct for found in STRUCTS.values() for struct in found}


def test_every_optional_field_is_set_to_something_else_than_its_default():
    for struct, *_ in STRUCTS.values():
        made = variants(struct)
        optional = [field.name for field in inspect.type_info(struct).fields if not field.required]
        for name in optional:
            default = getattr(made["defaults"], name)
            assert any(getattr(value, name) != default for value in made.values()), f"{struct.__name__}.{name}"


@pytest.mark.parametrize("key", KEPT, ids=called)
def test_a_struct_is_encoded_as_it_was(key):
    named = {"was": called(key)}  # for people to read
    assert {**NOW[key], **named} == {**KEPT[key], **named}, WHAT_TO_DO


@pytest.mark.parametrize("key", KEPT, ids=called)
def test_a_struct_is_decoded_as_it_was(key):
    for struct in STRUCTS[key]:
        for name, value in variants(struct).items():
            kept = KEPT[key][name]
            assert msgspec.msgpack.decode(bytes.fromhex(kept["msgpack"]), type=struct) == value
            if "json" in kept:
                assert msgspec.json.decode(kept["json"], type=struct) == value


def test_the_store_decodes_its_messages_as_it_did():
    of_messages = {key: struct for key, (struct, *_) in STRUCTS.items() if struct in get_args(messages.Message)}
    assert len(of_messages) == len(get_args(messages.Message))
    for key, struct in of_messages.items():
        for name, value in variants(struct).items():
            data = bytes.fromhex(KEPT[key][name]["msgpack"])
            assert messages.decode(data) == value
            assert messages.encode(value) == data


@pytest.mark.parametrize("folder", MAJOR, ids=lambda folder: folder.name)
def test_every_struct_that_was_released_is_understood(folder):
    structs = {struct.__name__: struct for found in STRUCTS.values() for struct in found}
    keys = {key: found[0] for key, found in STRUCTS.items()}
    for key, kept in json.loads((folder / "structs.json").read_text(encoding="utf-8")).items():
        now = keys.get(key) or structs.get(kept["was"].split()[0])
        assert now is not None, advice(folder, kept["was"])
        for name, encoded in kept.items():
            if name != "was":
                data = bytes.fromhex(encoded["msgpack"])
                again = msgspec.msgpack.encode(msgspec.msgpack.decode(data, type=now))
                plain = [msgspec.msgpack.decode(each) for each in (data, again)]
                assert is_within(*plain), advice(folder, f"{kept['was']} ({name})")
                if now in get_args(messages.Message):
                    assert type(messages.decode(data)) is now, advice(folder, kept["was"])


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_written_as_it_was(name, tmp_path):
    assert file_bytes(name, tmp_path) == (GOLDEN / name).read_bytes(), WHAT_TO_DO


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_then_is_read_as_it_was(name, tmp_path):
    (tmp_path / name).write_bytes((GOLDEN / name).read_bytes())
    FILES[name].read(tmp_path / name)


@pytest.mark.parametrize("kind", WIRES)
def test_what_is_said_is_what_was_said(kind, tmp_path):
    assert wire_bytes(kind, tmp_path) == WIRE[kind], WHAT_TO_DO


@pytest.mark.parametrize("kind", read_back)
def test_what_was_said_is_understood(kind):
    read_back[kind]({name: bytes.fromhex(digits) for name, digits in WIRE[kind].items()})


def test_nothing_is_kept_that_nobody_writes():
    assert {path.name for path in GOLDEN.iterdir() if path.is_file()} == {"structs.json", "wire.json", *FILES}
    assert WIRE.keys() == WIRES.keys()

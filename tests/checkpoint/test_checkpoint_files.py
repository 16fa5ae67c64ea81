"""Files, manifests and shelves of checkpoints: what is there is whole, and what is wrong with it is named."""

import json
import mmap
import os
import random
import subprocess

import points
import pytest
import safetensors.torch
import torch

from gradtide.checkpoint.direct import DIRECT_BYTES, PAGE_BYTES
from gradtide.checkpoint.manifest import MANIFEST, read_manifest, verify
from gradtide.checkpoint.places import open_place
from gradtide.checkpoint.shelf import Shelf, find_checkpoint
from gradtide.checkpoint.tensor_file import TensorFile, TensorGroup, write_file
from gradtide.errors import ConfigError, DataError, OutputError

pytestmark = pytest.mark.quick

TENSORS = {
    "a": torch.randn(3, 4),
    "flags": torch.tensor([True, False, True]),
    "nothing": torch.empty(0, 7),
    "one": torch.tensor(2.5, dtype=torch.float64),
    "halves": torch.randn(5).bfloat16(),
    "numbers": torch.arange(9),
}


def take(shelf, step, seed=0, files=2, elements=5000):
    """A checkpoint of some random numbers that its step names."""
    folder = shelf.new_folder(step)
    generator = torch.Generator().manual_seed(seed)
    entries = [
        write_file(
            shelf.place,
            folder,
            f"{i}.safetensors",
            [TensorGroup("p", {"x": torch.randn(elements, generator=generator)})],
        )
        for i in range(files)
    ]
    return shelf.commit(folder, step, tuple(entries))


@pytest.fixture(params=["file", "memory"])
def shelf(request, tmp_path):
    return Shelf(tmp_path if request.param == "file" else f"memory://test/{os.urandom(4).hex()}")


def test_any_reader_of_safetensors_reads_a_file_and_so_do_we(tmp_path):
    place = open_place(tmp_path)
    entry = write_file(
        place, "", "t.safetensors", [TensorGroup("first", TENSORS), TensorGroup("second", {"z": torch.ones(3)})]
    )
    theirs = safetensors.torch.load_file(tmp_path / "t.safetensors")
    with TensorFile(place, "t.safetensors") as file:
        ours = {name: t for part in entry.parts for name, t in file.read(part.start, part.end)[0].items()}
    for name, tensor in {**TENSORS, "z": torch.ones(3)}.items():
        assert torch.equal(theirs[name], tensor)
        assert torch.equal(ours[name], tensor)
        assert ours[name].dtype == tensor.dtype


def test_what_others_wrote_as_safetensors_is_read(tmp_path):
    safetensors.torch.save_file(TENSORS, tmp_path / "t.safetensors")
    with TensorFile(open_place(tmp_path), "t.safetensors") as file:
        found, _ = file.read(len(file.header), max(slot.end for slot in file.slots))
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())


@pytest.mark.parametrize("size", [0, 1, DIRECT_BYTES - 1, DIRECT_BYTES, DIRECT_BYTES + 1, 3 * DIRECT_BYTES + 77])
def test_a_file_past_the_page_cache_is_what_was_given_whatever_its_size(tmp_path, size):
    content = os.urandom(size)
    open_place(tmp_path).write("x", [content[: size // 3], content[size // 3 :]])
    assert (tmp_path / "x").read_bytes() == content


def test_whole_pages_are_written_from_where_they_are_between_whatever_comes(tmp_path):
    """Pages after a header of pages, after a ragged piece, and after what brings the file to a page again."""
    pages = [mmap.mmap(-1, size) for size in (1 << 20, DIRECT_BYTES, 1 << 20, 5 << 20)]
    for at, memory in enumerate(pages):
        memory[:] = bytes([at + 1]) * len(memory)
    rest = os.urandom(2 * PAGE_BYTES)
    content = [rest, pages[0], pages[1], rest[:77], pages[2], rest[: PAGE_BYTES - 77], pages[3], rest[:5]]
    open_place(tmp_path).write("x", [memoryview(part) for part in content])
    assert (tmp_path / "x").read_bytes() == b"".join(bytes(part) for part in content)


def test_the_newest_complete_checkpoint_is_found_and_the_last_are_kept(shelf):
    assert shelf.newest() is None
    for step in (100, 200, 300):
        take(shelf, step)
    unfinished = shelf.new_folder(250)
    shelf.place.write(f"{unfinished}/0.safetensors", [b"half of it"])
    later = shelf.new_folder(400)
    shelf.place.write(f"{later}/0.safetensors", [b"half of it"])
    assert shelf.newest().manifest.step == 300
    assert shelf.next_step() == 401
    shelf.keep_last(2)
    assert [taken.manifest.step for taken in shelf.complete()] == [200, 300]
    assert [step for step, _ in shelf.folders()] == [200, 300, 400]  # 400 may still become one
    place, manifest = find_checkpoint(shelf.place.address)
    assert verify(place) == manifest


def test_old_checkpoints_that_cannot_be_removed_or_read_stay_with_a_word_and_the_new_one_stays_too(tmp_path):
    shelf = Shelf(tmp_path)
    taken = [take(shelf, step) for step in (1, 2, 3, 4)]
    with open(os.path.join(taken[0].address, MANIFEST), "r+b") as file:
        file.write(b"!")
    busy = os.path.join(taken[1].address, "busy")
    os.mkdir(busy)
    if subprocess.run(["mount", "-t", "tmpfs", "none", busy], capture_output=True).returncode:
        pytest.skip("a folder is kept busy by a mount, which needs rights")
    try:
        with pytest.warns(UserWarning, match=f"(?s){taken[0].address}.*{taken[1].address}"):
            shelf.keep_last(1)
    finally:
        subprocess.run(["umount", busy], check=True)
    assert shelf.newest().folder == taken[3].folder
    assert [name for _, name in shelf.folders()] == [taken[i].folder for i in (0, 1, 3)]
    assert not shelf.is_complete(taken[1].folder)  # its manifest was the first thing to go
    verify(open_place(taken[3].address))
    with open(os.path.join(taken[3].address, MANIFEST), "r+b") as file:
        file.write(b"!")
    with pytest.raises(DataError, match="is no manifest"):  # which may be the newest
        shelf.newest()


def test_a_flipped_byte_is_found_wherever_it_is_and_its_file_is_named(tmp_path):
    taken = take(Shelf(tmp_path), 1, elements=100)
    place, rng = open_place(taken.address), random.Random(1)
    for entry in (*taken.manifest.files, None):
        path = os.path.join(taken.address, entry.name if entry else MANIFEST)
        with open(path, "rb") as file:
            good = file.read()
        for position in {0, 7, len(good) - 1, *(rng.randrange(len(good)) for _ in range(20))}:
            bad = bytearray(good)
            bad[position] ^= 1 << rng.randrange(8)
            with open(path, "wb") as file:
                file.write(bad)
            if entry is None and bytes(bad).split() == good.split():
                continue
            with pytest.raises(DataError, match=os.path.basename(path)):
                verify(place)
        with open(path, "wb") as file:
            file.write(good)
    verify(place)


def test_what_is_no_checkpoint_is_one_clear_line(tmp_path):
    with pytest.raises(DataError, match=r"is no checkpoint and has none in it; give a folder with a manifest.json"):
        find_checkpoint(tmp_path)
    taken = take(Shelf(tmp_path), 7)
    path = os.path.join(taken.address, MANIFEST)
    with open(path) as file:
        found = json.load(file)
    with open(path, "w") as file:
        json.dump({**found, "gradtide_checkpoint": 2}, file)
    with pytest.raises(
        DataError, match="has format 2, and this gradtide reads format 1; use the gradtide that wrote it"
    ):
        read_manifest(open_place(taken.address))
    with open(path, "w") as file:
        file.write("{}")
    with pytest.raises(DataError, match="is no manifest of gradtide"):
        find_checkpoint(taken.address)
    other = take(Shelf(tmp_path / "other"), 8)
    os.unlink(os.path.join(other.address, "1.safetensors"))
    with pytest.raises(DataError, match=r"1.safetensors is missing"):
        verify(open_place(other.address))
    with pytest.raises(ConfigError, match="is no address that fsspec knows"):
        open_place("nosuch://bucket/x")
    with pytest.raises(ConfigError, match="would leave none"):
        Shelf(tmp_path).keep_last(0)


def test_a_manifest_is_not_written_for_files_that_are_not_there(tmp_path):
    shelf = Shelf(tmp_path)
    entry = take(shelf, 1).manifest.files[0]
    with pytest.raises(DataError, match="does everybody who writes a checkpoint see the same"):
        shelf.commit(shelf.new_folder(2), 2, (entry,))
    assert shelf.newest().manifest.step == 1


def checkpoints_under(fault, count, tmp_path):
    """Takes checkpoint after checkpoint, each in a process to which something happens; the newest is always whole."""
    shelf = Shelf(tmp_path)
    take(shelf, 1, seed=1)
    status, calls = points.run_in_child(lambda: (take(shelf, 2, seed=2), shelf.keep_last(2)), 0, fault)
    assert status == 0
    committed, rng = 2, random.Random(3)
    chosen = list(range(1, calls + 1)) if count >= calls else sorted(rng.sample(range(1, calls + 1), count))
    chosen += [rng.randrange(1, calls + 1) for _ in range(count - len(chosen))]
    for number, at in enumerate(chosen, 3):
        status, _ = points.run_in_child(lambda n=number: (take(shelf, n, seed=n), shelf.keep_last(2)), at, fault)
        newest = shelf.newest()
        assert newest.manifest.step in (committed, number), (at, status)
        committed = newest.manifest.step
        verify(open_place(newest.address))
        with TensorFile(open_place(newest.address), "1.safetensors") as file:
            found, _ = file.read(*(lambda part: (part.start, part.end))(newest.manifest.files[1].parts[0]))
        generator = torch.Generator().manual_seed(committed)
        torch.randn(5000, generator=generator)
        assert torch.equal(found["x"], torch.randn(5000, generator=generator))
    return committed


def test_a_checkpoint_that_is_killed_at_any_point_leaves_the_newest_whole(tmp_path):
    assert checkpoints_under(points.kill, 60, tmp_path) > 2


@pytest.mark.slow
def test_a_checkpoint_that_is_killed_at_two_hundred_points_leaves_the_newest_whole(tmp_path):
    assert checkpoints_under(points.kill, 200, tmp_path) > 2


def test_io_errors_at_any_point_leave_the_newest_whole(tmp_path):
    assert checkpoints_under(points.fail, 60, tmp_path) > 2


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_the_newest_whole_and_says_so(small_disk):
    shelf = Shelf(small_disk)
    take(shelf, 1)
    with pytest.raises(OutputError, match=r"1.safetensors can't be written: No space left on device"):
        take(shelf, 2, elements=200_000)
    assert shelf.newest().manifest.step == 1
    verify(open_place(shelf.newest().address))

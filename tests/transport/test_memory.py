import gc
import mmap
import os

import pytest
import torch

from gradtide.errors import CommunicationError, ConfigError
from gradtide.transport.memory import PrivatePages, address_of, create_memory, gather_pages, map_memory, tensor_over

pytestmark = pytest.mark.quick


def _mapped(label):
    with open("/proc/self/maps") as maps:
        return sum(f"gradtide-{label}" in line for line in maps)


def test_two_mappings_of_one_memory_see_each_other():
    descriptor = create_memory("both", 4096)
    first, second = map_memory(os.dup(descriptor), 4096), map_memory(descriptor, 4096)
    tensor_over(first, torch.float32, (3,), 64).fill_(7)
    assert tensor_over(second, torch.float32, (3,), 64).tolist() == [7, 7, 7]


def test_memory_can_neither_shrink_nor_grow():
    descriptor = create_memory("sealed", 8192)
    for size in (4096, 16384):
        with pytest.raises(PermissionError):
            os.truncate(descriptor, size)
    os.close(descriptor)


def test_memory_that_could_shrink_is_refused_and_its_descriptor_closed():
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.truncate(unsealed, 4096)
    with pytest.raises(CommunicationError, match="not sealed against shrinking"):
        map_memory(unsealed, 4096)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(unsealed)


def test_a_pipe_is_refused_as_memory():
    reading, writing = os.pipe()
    os.close(writing)
    with pytest.raises(CommunicationError, match="not sealed"):
        map_memory(reading, 4096)


def test_memory_shorter_than_promised_is_refused():
    with pytest.raises(CommunicationError, match="4096 bytes of shared memory where 8192 were expected"):
        map_memory(create_memory("short", 4096), 8192)


def test_more_memory_than_a_file_can_have_is_a_clear_error():
    with pytest.raises(
        ConfigError, match=r"can't map 1125899906842624 bytes of shared memory \(Cannot allocate memory\)"
    ):
        map_memory(create_memory("huge", 1 << 50), 1 << 50)


def test_a_tensor_keeps_its_mapping_alive_and_the_last_one_lets_it_go():
    mapping = map_memory(create_memory("alive", 4096), 4096)
    tensor = tensor_over(mapping, torch.int64, (512,))
    part = tensor[10:20]
    del mapping, tensor
    gc.collect()
    part.fill_(3)
    assert _mapped("alive") == 1
    del part
    assert _mapped("alive") == 0


def test_an_empty_tensor_needs_no_memory():
    assert tensor_over(mmap.mmap(-1, 4096), torch.float32, (3, 0)).shape == (3, 0)


def test_large_memory_begins_on_a_large_page_and_keeps_what_is_in_it_when_its_pages_are_gathered():
    size = (5 << 20) + 4096
    descriptor = create_memory("large", size)
    first, second = map_memory(os.dup(descriptor), size), map_memory(descriptor, size)
    assert address_of(first) % (2 << 20) == address_of(second) % (2 << 20) == 0
    whole = tensor_over(first, torch.uint8, (size,)).copy_(torch.arange(size) % 251)
    for part in range(3):
        gather_pages(second, part, 3)
    assert torch.equal(tensor_over(second, torch.uint8, (size,)), whole)
    del first, second, whole
    gc.collect()
    assert _mapped("large") == 0


@pytest.mark.parametrize("size", [3 * 4096, (4 << 20) + 4096])
def test_a_private_mapping_shows_what_others_write_until_it_is_written_to(size):
    descriptor = create_memory("private", size)
    shared, private = map_memory(os.dup(descriptor), size), map_memory(descriptor, size, private=True)
    all_see, own = (tensor_over(mapping, torch.uint8, (size,)) for mapping in (shared, private))
    pages = PrivatePages(private, size)
    all_see.fill_(1)
    assert own.sum() == size
    assert not pages.any()
    own[5000] = 7
    assert pages.any()
    all_see.fill_(2)
    assert own[[0, 4999, 5000, 8191, 8192]].tolist() == [2, 1, 7, 1, 2]
    assert all_see[5000] == 2
    assert pages.any()
    pages.forget()
    assert not pages.any()
    assert own[5000] == 2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradtide.launch.lines import Lines, mark

pytestmark = pytest.mark.quick


@given(st.lists(st.text("ab\n", max_size=20).map(str.encode), max_size=8))
def test_however_output_is_cut_every_line_comes_once_and_whole(pieces):
    lines = Lines(b"[3] ")
    shown = b"".join(lines.feed(piece) for piece in pieces) + lines.flush()
    expected = b"".join(pieces)
    ended = expected if not expected or expected.endswith(b"\n") else expected + b"\n"
    assert shown == b"".join(b"[3] " + line for line in ended.splitlines(keepends=True))


def test_a_line_waits_for_its_end():
    lines = Lines(b"> ")
    assert lines.feed(b"be") == b""
    assert lines.feed(b"gun\nnext") == b"> begun\n"
    assert lines.flush() == b"> next\n"
    assert lines.flush() == b""


def test_a_progress_bar_is_shown_in_the_state_that_it_is_in():
    lines = Lines(b"> ")
    assert lines.feed(b"\r10%\r20%") == b""
    assert lines.in_progress
    assert lines.progress() == b"> 20%\n"
    assert not lines.in_progress
    assert lines.feed(b"\r30%") == b""
    assert lines.progress() == b"> 30%\n"
    assert lines.feed(b"\r90%\r100%\n") == b"> 100%\n"


def test_line_ends_of_another_system_are_line_ends():
    assert Lines(b"> ").feed(b"one\r\ntwo\r\n") == b"> one\n> two\n"


def test_output_without_line_ends_does_not_fill_the_memory():
    lines, shown = Lines(b""), 0
    for _ in range(40):
        shown += len(lines.feed(b"x" * (1 << 20)))
    assert shown > 30 << 20


def test_marks_are_as_wide_as_the_widest_and_coloured_only_if_wanted():
    assert mark(3, 4, False) == b"[3] "
    assert mark(3, 12, False) == b"[ 3] "
    assert mark(3, 4, True).startswith(b"\033[")


def test_what_nanobind_says_of_memory_that_we_froze_is_not_the_workers():
    lines, said = Lines(b"> "), b"mine\n - leaked nothing\n"
    for count in (b"4 instances", b"64 types"):
        said += b"nanobind: leaked " + count + b'!\n - leaked type "a.b"\n - ... skipped remainder\n'
    said += b"nanobind: this is likely caused by a reference counting issue in the binding code.\n"
    said += b"See https://nanobind.readthedocs.io/en/latest/refleaks.html\n - mine\n"
    shown = b"".join(lines.feed(bytes([byte])) for byte in said)
    assert shown == b"> mine\n>  - leaked nothing\n>  - mine\n"
    assert Lines(b"> ").feed(said) == shown

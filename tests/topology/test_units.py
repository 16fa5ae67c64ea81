import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradtide.errors import TopologyError
from gradtide.topology.units import (
    format_bytes_per_s,
    format_seconds,
    format_size,
    parse_bytes_per_s,
    parse_seconds,
    parse_size_bytes,
    parse_size_range,
)

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("4KB", 4000), ("4kB", 4000), ("4KiB", 4096), ("160MB", 160_000_000), (" 1.5 GB ", 1_500_000_000), ("17", 17),
     ("17 B", 17), ("1TiB", 2**40), ("1e3 B", 1000), (".5KB", 500)],
)  # fmt: skip
def test_sizes_are_decimal_unless_they_say_binary(text, size_bytes):
    assert parse_size_bytes(text) == size_bytes


def test_rates_and_times_are_the_floats_nearest_to_what_is_written():
    assert parse_bytes_per_s("16 GB/s") == 16e9
    assert parse_bytes_per_s("100 Gbit/s") == 12.5e9
    assert parse_bytes_per_s("100Gbps") == 12.5e9
    assert parse_bytes_per_s("1 GiB/s") == 2.0**30
    assert parse_seconds("1.5 us") == 1.5e-6
    assert parse_seconds("3µs") == 3e-6
    assert parse_seconds("0 s") == 0


def test_a_range_of_sizes_has_two_ends_in_order():
    assert parse_size_range("4KB..1GB") == (4000, 10**9)
    for wrong in ("4KB", "4KB..", "1GB..4KB"):
        with pytest.raises(TopologyError):
            parse_size_range(wrong)


@pytest.mark.parametrize(
    ("parse", "text", "answer"),
    [
        (parse_bytes_per_s, "16 GBs", "did you mean GB/s?"),
        (parse_bytes_per_s, "16 gb/S", "did you mean GB/s?"),
        (parse_bytes_per_s, "16 Gb/s", "write GB/s for bytes or Gbit/s for bits"),
        (parse_bytes_per_s, "100 Gbits", "did you mean Gbit/s?"),
        (parse_bytes_per_s, "16", "has no unit"),
        (parse_bytes_per_s, "-1 GB/s", "is negative"),
        (parse_bytes_per_s, "fast", "is not a rate"),
        (parse_seconds, "3 usec", "did you mean us?"),
        (parse_seconds, "3 sec", "did you mean s?"),
        (parse_seconds, "3 furlongs", "no unit of time"),
        (parse_size_bytes, "160 mb", "did you mean MB?"),
        (parse_size_bytes, "160 MiBs", "did you mean MiB?"),
        (parse_size_bytes, "1.5 B", "whole number of bytes"),
        (parse_size_bytes, "nan", "is not a size"),
        (parse_size_bytes, "٣ MB", "is not a size"),
        (parse_size_bytes, "1e99999999 B", "is not a size"),
        (parse_size_bytes, "1e99 B", "larger than anything"),
        (parse_size_bytes, "x" * 1_000_000, "is not a size"),
    ],
)  # fmt: skip
def test_a_wrong_unit_is_answered_with_the_nearest_in_one_short_line(parse, text, answer):
    with pytest.raises(TopologyError) as caught:
        parse(text)
    assert answer in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@settings(derandomize=True)
@given(st.floats(min_value=1e-3, max_value=1e15))
def test_what_is_written_is_read_back_as_the_same_float(value):
    assert parse_bytes_per_s(format_bytes_per_s(value)) == value
    assert parse_seconds(format_seconds(value / 1e9)) == value / 1e9


def test_people_read_the_unit_that_fits():
    assert format_bytes_per_s(12.5e9) == "12.5 GB/s"
    assert format_seconds(1.5e-6) == "1.5 us"
    assert format_seconds(0.0) == "0 s"
    assert format_size(160e6) == "160 MB"

"""Codecs: what each must do, what each promises by its mathematics, and what strangers may not make of them."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gradtide.compress import (
    CODECS,
    FORMATS,
    Compress,
    Form,
    as_compress,
    codec_of_tag,
    pack,
    payload_bytes,
    read,
    text_of_tag,
    unpack,
)
from gradtide.compress.powersgd import expand, orthonormalise, refill, thin
from gradtide.errors import ConfigError, DataError
from gradtide.testing.check_codec import check_codec


def codec_of(text):
    return as_compress(text).make()


def through(codec, values, rows=1, draw=0):
    """What arrives of these values, and what is left."""
    left, out = values.copy(), np.empty_like(values)
    form = Form(len(values), values.dtype, rows)
    unpack(codec, pack(codec, left, form, draw), form, out)
    return out, left


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CODECS)
def test_every_codec_keeps_the_contract(name, dtype):
    check_codec(codec_of(name), dtype)


# --- what a user says ---


def test_texts_and_options_are_one_frozen_thing():
    assert as_compress("topk:0.05") == Compress("topk", ratio=0.05)
    assert as_compress("powersgd:2") == Compress("powersgd", rank=2)
    assert as_compress(None) is None
    assert repr(Compress("powersgd", rank=4, after=200)) == "Compress('powersgd', rank=4, after=200)"
    assert str(Compress("topk", ratio=0.01)) == "topk:0.01"
    assert len({Compress("int8"), as_compress("int8"), Compress("int8", after=1)}) == 2
    assert Compress("powersgd", rank=4).make().rank == 4
    with pytest.raises(AttributeError, match="never changes"):
        Compress("int8").after = 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("gzip", "no codec is called that; there are fp16, bf16, int8, onebit, powersgd, topk, auto"),
        ("topk:2", "a share above 0, at most 1"),
        ("topk:0", "a share above 0, at most 1"),
        ("topk:much", "topk takes ratio"),
        ("int8:4", "int8 takes no option"),
        ("powersgd:0", "rank 0 makes no sense"),
        ("powersgd:1.5", "rank=1.5 of powersgd makes no sense"),
        (8, "give a codec's name"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(given, said):
    with pytest.raises(ConfigError, match=said) as raised:
        as_compress(given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "options", [{"after": -1}, {"after": True}, {"rank": 4}, {"ratio": True}, {"ratio": float("nan")}, {"ratio": "x"}]
)
def test_options_of_another_codec_or_without_sense_are_refused(options):
    with pytest.raises(ConfigError):
        Compress("topk", **options)


# --- conservation ---

WHOLE = st.integers(-(2**15), 2**15).map(float)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["onebit", "topk:0.1", "topk:0.5", "topk:1"]),
    dtype=st.sampled_from([np.float32, np.float64]),
    steps=st.lists(arrays.arrays(np.float64, 77, elements=WHOLE), min_size=1, max_size=6),
)
def test_of_whole_numbers_nothing_is_ever_lost_or_rounded(name, dtype, steps):
    codec, left, given_so_far, arrived = codec_of(name), np.zeros(77, dtype), np.zeros(77), np.zeros(77)
    for values in steps:
        given_so_far += values
        out, left = through(codec, left + values.astype(dtype))
        arrived += out
        assert np.array_equal(arrived + left, given_so_far)


@settings(max_examples=60, deadline=None)
@given(
    values=arrays.arrays(
        np.float32, st.integers(1, 300), elements=st.floats(allow_nan=False, allow_infinity=False, width=32)
    ),
    ratio=st.sampled_from([0.001, 0.1, 0.5, 0.99, 1.0]),
)
def test_topk_takes_the_largest_bit_for_bit_and_no_others(values, ratio):
    codec = Compress("topk", ratio=ratio).make()
    out, left = through(codec, values)
    assert np.array_equal((out + left).view(np.uint32) & 0x7FFFFFFF, values.view(np.uint32) & 0x7FFFFFFF)
    order = np.argsort(-np.abs(values), kind="stable")[: codec.kept(Form(len(values), values.dtype))]
    assert not left[order].any()
    rest = np.delete(np.arange(len(values)), order)
    assert np.array_equal(left[rest], values[rest])
    norm, count = np.linalg.norm(values.astype(np.longdouble)), len(order) / len(values)
    assert np.linalg.norm(left.astype(np.longdouble)) ** 2 <= (1 - count) * norm**2 * (1 + 1e-12)


def test_topk_of_everything_is_dense():
    values = np.random.default_rng(0).standard_normal(5001)
    out, left = through(codec_of("topk:1"), values)
    assert np.array_equal(out, values)
    assert not left.any()


def test_a_bit_a_value_keeps_eight_ninths_of_what_signs_can_say():
    values = np.random.default_rng(1).standard_normal(4096) * np.exp(np.random.default_rng(2).standard_normal(4096))
    _, left = through(codec_of("onebit"), values)
    best = (values**2).sum() - np.abs(values).sum() ** 2 / len(values)  # with the mean itself as the scale
    kept = (values**2).sum() - best
    assert (left**2).sum() <= best + kept / 9 + 1e-9


# --- int8 ---


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_byte_a_value_is_right_on_average(dtype):
    """10^5 draws of eight values: the mean is within five of its own deviations."""
    codec, draws = codec_of("int8"), 100_000
    values = np.array([1.0, -0.7311, 0.0037, 0.5, -0.125, 0.9999, 1 / 3, 0.0], dtype)
    tile = np.tile(values, 125)  # the lots of places must be as good as those of draws
    form, total, out = Form(1000, tile.dtype), np.zeros(8), np.empty_like(tile)
    for draw in range(draws // 125):
        unpack(codec, pack(codec, tile, form, draw), form, out)
        total += out.reshape(125, 8).sum(0)
    step = 1 / 127
    place = np.abs(values.astype(float)) / step
    deviation = step * np.sqrt((place % 1) * (1 - place % 1)) / np.sqrt(draws)
    assert (np.abs(total / draws - values) <= 5 * deviation + 1e-6).all()
    assert (np.abs(out.reshape(125, 8) - values) <= step + 1e-6).all()


def test_zeros_beside_others_stay_zeros():
    """A lot of exactly 1 would make something of them: one of 2^24 did."""
    codec, values, out = codec_of("int8"), np.zeros(1 << 20, np.float32), np.empty(1 << 20, np.float32)
    values[::1024] = 1
    form = Form(len(values), values.dtype)
    for draw in range(64):
        unpack(codec, pack(codec, values, form, draw), form, out)
        assert np.array_equal(out, values)


def test_lots_differ_by_draw_and_are_the_same_for_the_same_draw():
    codec, values = codec_of("int8"), np.random.default_rng(3).standard_normal(3000).astype(np.float32)
    payloads = [pack(codec, values, Form(3000, values.dtype), draw).tobytes() for draw in (5, 5, 6, 5 << 32)]
    assert payloads[0] == payloads[1]
    assert len(set(payloads)) == 3


# --- halves ---


def test_halves_saturate_and_round_to_the_nearest():
    values = np.array([1e6, -1e6, 65504.0, 1 / 3, 0.0, 1e-9], np.float32)
    found = np.empty_like(values)
    form = Form(len(values), values.dtype)
    unpack(FORMATS["fp16"](), pack(FORMATS["fp16"](), values, form, 0), form, found)  # as it was without scales
    assert np.array_equal(found, np.float16([65504, -65504, 65504, 1 / 3, 0, 0]))
    out, _ = through(codec_of("bf16"), np.array([3.4e38, -3.4e38, 1.0], np.float32))
    assert np.isfinite(out).all()
    assert out[0] > 3.38e38


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [
        (np.float32, [1e-8, 1e-7, 1.0, 1e6, 1e-30, 1e30, 1.2e-38, 3.4e38]),
        (np.float64, [1e-8, 1e6, 1e-300, 1e300, 2.3e-308, 1.7e308]),
    ],
)
def test_halves_have_eleven_digits_of_whatever_size_the_values_of_a_block_are(dtype, sizes):
    """Each block is of another size, and they have no part in each other's scale."""
    dice = np.random.default_rng(8)
    values = np.concatenate([size * dice.uniform(0.1, 1, 1024) * dice.choice([-1, 1], 1024) for size in sizes])
    values[::5] = 0.0
    values = values.astype(dtype)[:-100]
    out, _ = through(codec_of("fp16"), values)
    there = values != 0
    assert not out[~there].any()
    assert (np.abs(out[there].astype(np.longdouble) / values[there] - 1) <= 2**-11 * (1 + 1e-6)).all()


def test_where_halves_suffice_scales_change_no_digit():
    values = (np.random.default_rng(9).uniform(0.01, 1000, 5000) * (-1) ** np.arange(5000)).astype(np.float32)
    assert np.array_equal(through(codec_of("fp16"), values)[0], values.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_smallest_numbers_and_the_largest_are_halves_too(dtype):
    limits = np.finfo(dtype)
    smallest = limits.smallest_subnormal if dtype is np.float32 else limits.smallest_normal
    for value in (smallest, limits.smallest_normal, limits.max):
        values = np.array([value, -value, 0.0], dtype)
        out, _ = through(codec_of("fp16"), values)
        assert np.allclose(out.astype(np.longdouble) / value, [1, -1, 0], rtol=0, atol=2**-10)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0, 3e38])
def test_a_scale_that_halves_do_not_have_is_refused(wrong):
    codec, values = codec_of("fp16"), np.ones(100, np.float32)
    form = Form(100, values.dtype)
    payload = pack(codec, values, form, 0)
    payload[16:20].view(np.float32)[0] = wrong
    with pytest.raises(DataError, match="a scale is not finite, or below 0"):
        read(codec, payload, form)


# --- bytes ---

BYTES = {  # of GIVEN, by tag: what a tag stands for never changes
    "fp16": "01040001080000000800000000000000003e00b400000042fffb1914004000bc",
    "bf16": "02040001080000000800000000000000c03f80be0000404080c7833a004080bf",
    "scaled_fp16": "0704000108000000080000000000000000000040003a00b00000003efff71910003c00b800000000",
    "int8": "03040001080000000800000000000000e4f10044000000008100000000000000",
    "onebit": "040400010800000008000000000000000000004692000000",
    "topk": "0504000101000000080000000000000000e07fc704000000",
}
GIVEN = np.array([1.5, -0.25, 0.0, 3.0, -65504.0, 1e-3, 2.0, -1.0], np.float32)


@pytest.mark.parametrize("tag", BYTES)
def test_what_was_encoded_under_a_tag_is_decoded_as_it_was(tag):
    codec, form, out = FORMATS[tag](), Form(len(GIVEN), GIVEN.dtype), np.empty_like(GIVEN)
    payload = pack(codec, GIVEN.copy(), form, 7)
    assert payload.tobytes().hex() == BYTES[tag]
    unpack(codec, np.frombuffer(bytes.fromhex(BYTES[tag]), np.uint8), form, out)
    assert np.array_equal(out, through(codec, GIVEN, draw=7)[0])


def test_every_tag_has_its_bytes_but_one_whose_sums_are_made_by_another_library():
    assert BYTES.keys() == FORMATS.keys() - {"powersgd"}
    assert {text_of_tag(tag) for tag in FORMATS} == set(CODECS)
    assert text_of_tag("scaled_fp16") == "fp16"
    assert as_compress("fp16").tag == "scaled_fp16"
    assert as_compress("topk:0.05").tag == "topk:0.05"
    assert codec_of_tag("topk:0.05") == as_compress("topk:0.05").make()
    assert type(codec_of_tag("fp16")) is FORMATS["fp16"]


@pytest.mark.parametrize("name", CODECS)
def test_nothing_at_all_is_encoded_too(name):
    assert len(through(codec_of(name), np.empty(0, np.float32))[0]) == 0


# --- powersgd ---


@pytest.mark.parametrize(("rows", "columns"), [(6, 9), (9, 6), (7, 7), (1, 5)])
@pytest.mark.parametrize("depends", [False, True])
def test_thin_matrices_of_full_rank_are_the_whole_one(rows, columns, depends):
    matrix = np.random.default_rng(4).standard_normal((rows, columns))
    if depends and rows > 2:
        matrix[2] = matrix[0] - 2 * matrix[1]
    right = np.zeros((min(rows, columns), columns))
    refill(right, 0)
    left = thin(matrix, right, transposed=True)
    orthonormalise(left)
    found = np.empty_like(matrix)
    expand(left, thin(matrix, left, transposed=False), found, 0)
    assert np.abs(found - matrix).max() < 1e-10


@settings(max_examples=30, deadline=None)
@given(matrix=arrays.arrays(np.float64, (12, 20), elements=st.floats(-1e6, 1e6)), rank=st.integers(1, 6))
def test_what_thin_matrices_leave_out_is_kept(matrix, rank):
    codec, values = Compress("powersgd", rank=rank).make(), matrix.ravel()
    out, left = through(codec, values, rows=12)
    assert np.abs(out + left - values).max() <= 1e-10 * max(1.0, np.abs(values).max())
    assert np.linalg.norm(left) <= np.linalg.norm(values) * (1 + 1e-12)


def test_directions_without_length_are_left_out_and_drawn_anew():
    rows = np.array([[3.0, 4.0, 0.0], [6.0, 8.0, 0.0], [0.0, 0.0, 0.0]])
    orthonormalise(rows)
    assert np.allclose(rows, [[0.6, 0.8, 0], [0, 0, 0], [0, 0, 0]])
    refill(rows, 1)
    assert np.allclose(rows @ rows.T, np.eye(3))


# --- error feedback ---


def test_signs_alone_go_wrong_where_feedback_goes_right():
    """Karimireddy et al. (2019), counterexample 2: of f(x) = eps |x1 + x2| + |x1 - x2| the sign of a subgradient is
    always along x1 - x2, so that x1 + x2 stays what it was. With what was left out added, it does not."""

    def run(feedback):
        x, left, codec = np.array([1.0, 1.0]), np.zeros(2), codec_of("onebit")
        for step in range(4000):
            along, across = np.sign(x.sum()), np.sign(x[0] - x[1]) or 1.0
            gradient = 0.5 * along * np.ones(2) + across * np.array([1.0, -1.0])
            rate = 0.1 / np.sqrt(step + 1)
            out, rest = through(codec, rate * gradient + left)
            left = rest if feedback else left
            x = x - out
        return abs(x.sum()) * 0.5 + abs(x[0] - x[1])

    assert run(feedback=False) > 0.9
    assert run(feedback=True) < 0.05


# --- strangers ---


def topk_payload(places, values=None, count=10, kept=None):
    codec, form = codec_of("topk:0.3"), Form(count, np.dtype(np.float32))
    values = [1.0] * len(places) if values is None else values
    head = struct.pack("<BBBBIQ", 5, 4, 0, 1, len(places) if kept is None else kept, count)
    raw = head + np.float32(values).tobytes() + np.uint32(places).tobytes()
    raw += bytes(-len(raw) % 8)
    return codec, np.frombuffer(raw, np.uint8), form


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (topk_payload([1, 2, 10]), "a place beyond the 10 values"),
        (topk_payload([1, 2, 2**32 - 1]), "a place beyond the 10 values"),
        (topk_payload([1, 3, 2]), "not in order, or twice there"),
        (topk_payload([1, 2, 2]), "not in order, or twice there"),
        (topk_payload([1, 2, 3], [1, np.nan, 1]), "a value is not finite"),
        (topk_payload([1, 2, 3], kept=11), "keeps 11 of 10 values"),
        (topk_payload([1, 2, 3], kept=2**32 - 1), "keeps 4294967295 of 10 values"),
        (topk_payload([1, 2, 3, 4]), "keeps 4, and 3 are expected"),
        (topk_payload([1, 2, 3, 4], kept=3), "bytes, and 40 are expected"),
    ],
)
def test_hostile_payloads_are_refused_before_anything_is_made_of_them(payload, said):
    codec, raw, form = payload
    out = np.full(10, 5, np.float32)
    with pytest.raises(DataError, match=said):
        unpack(codec, raw, form, out)
    assert (out == 5).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0, 3e38])
@pytest.mark.parametrize("name", ["int8", "onebit"])
def test_a_scale_that_is_none_is_refused(name, wrong):
    codec, values = codec_of(name), np.ones(100, np.float32)
    form = Form(100, values.dtype)
    payload = pack(codec, values, form, 0)
    payload[16:20].view(np.float32)[0] = wrong
    if name == "onebit" and wrong == 3e38:  # large, and yet a number
        return
    with pytest.raises(DataError, match="a scale is not finite, or below 0"):
        read(codec, payload, form)


@pytest.mark.parametrize("name", CODECS)
def test_payloads_are_as_long_as_the_formula_says(name):
    count, codec = 1_000_000, codec_of(name)
    form = Form(count, np.dtype(np.float32), 1000)
    formula = {"fp16": 2 * count, "bf16": 2 * count, "int8": count, "onebit": count / 8}
    formula |= {"topk": 8 * count / 100, "powersgd": 4 * 4 * 2000}
    assert payload_bytes(codec, form) <= 1.03 * formula[name]

"""bench frugal --compress: its arithmetic, who takes part, and small runs between two hosts."""

import re
from pathlib import Path

import numpy as np
import pytest

from gradtide.bench.frugal.codec_speed import codecs_of, formula_bytes, measure_codecs
from gradtide.bench.frugal.contenders import DENSE, NEVER, contenders_of
from gradtide.bench.frugal.learner import ways_of
from gradtide.bench.frugal.smaller import (
    CODECS_BESIDE,
    SmallerFound,
    SmallerSettings,
    bench_smaller,
    bytes_per_s,
    rows_of,
)
from gradtide.compress import CODECS, Form, as_compress, payload_bytes
from gradtide.errors import ConfigError
from gradtide.schedule.predict.frugal_choice import BOTH, FEWER, SMALLER, WHOLE, frugal_choice
from gradtide.testing.hosts import several_hosts

MLP = [(4096, 784), (4096,), (4096, 4096), (4096,), (10, 4096), (10,)]


@pytest.mark.parametrize("codec", codecs_of(CODECS_BESIDE))
def test_a_payload_is_at_most_three_hundredths_longer_than_its_formula(codec):
    made = as_compress(codec).make()
    forms = [Form(int(np.prod(shape)), np.dtype(np.float32), shape[0] if len(shape) > 1 else 1) for shape in MLP]
    assert 1 <= sum(payload_bytes(made, form) for form in forms) / formula_bytes(codec, MLP) <= 1.03


@pytest.mark.quick
def test_formulas_are_those_of_the_table_in_the_docs():
    assert formula_bytes(None, [(10, 20), (10,)]) == 840
    assert formula_bytes("fp16", [(10, 20), (10,)]) == 420
    assert formula_bytes("int8", [(10, 20), (10,)]) == 210
    assert formula_bytes("onebit", [(10, 20), (8,)]) == 26
    assert formula_bytes("topk:0.1", [(10, 20)]) == 160
    assert formula_bytes("powersgd:2", [(10, 20), (10,)]) == 4 * 2 * 30 + 40
    assert {codec.partition(":")[0] for codec in codecs_of(CODECS_BESIDE)} == set(CODECS)  # none is left out


@pytest.mark.quick
def test_every_codec_stands_beside_the_hook_of_torch_that_is_like_it():
    names = [which.name for which in contenders_of(["fp16", "int8", "topk:0.01", "powersgd:4"])]
    assert names[:2] == [NEVER, DENSE]
    assert names[2:5] == ["fp16", "DDP's fp16 hook, Gloo", "DDP's fp16 hook, gradtide"]
    assert names[5:] == [
        *("int8", "int8 over servers", "topk:0.01", "topk:0.01 over servers"),
        *("powersgd:4", "DDP's PowerSGD hook, gradtide"),
    ]


def test_a_step_is_held_against_computing_and_the_formulas_bytes_at_the_wires_rate():
    steps = {
        NEVER: {"payload": None, "sent": [10.0], "seconds": [0.2, 0.1, 0.3]},
        DENSE: {"payload": 4000, "sent": [4100.0], "seconds": [0.8, 0.6, 0.7]},
        "int8": {"payload": 1010, "sent": [1050.0], "seconds": [0.6, 0.5, 0.4]},
    }
    contenders = [which for which in contenders_of(["int8"]) if which.name in steps]
    never, dense, int8 = rows_of(contenders, steps, [(1000,)], 10_000.0)
    assert (never.of_ideal, never.formula_bytes) == (1.0, 0.0)
    assert (dense.ideal_s, dense.step_s) == (pytest.approx(0.6), 0.7)
    assert (int8.ideal_s, int8.of_ideal) == (pytest.approx(0.3), pytest.approx(0.6))
    found = SmallerFound([], [], {"a": [1.0, 2.0, 4.0], "b": [2.0, 2.0, 6.0]})
    assert found.ratio("a", "b") == 1.5


def test_codecs_are_timed_in_both_directions():
    names = ["fp16", "int8"]
    speeds = measure_codecs(names, 8192, 1)
    assert [speed.codec for speed in speeds] == names
    assert all(speed.encode_per_s > 0 and speed.decode_per_s > 0 for speed in speeds)


@pytest.mark.quick
def test_what_makes_no_sense_is_refused():
    for wrong, said in (
        (SmallerSettings(codecs="zip"), "no codec is called that"),
        (SmallerSettings(codecs="auto"), "name codecs"),
        (SmallerSettings(codecs=","), "names none"),
        (SmallerSettings(rate="fast"), "write it as 100mbit"),
        (SmallerSettings(rounds=0), "1 round or more"),
        (SmallerSettings(model="vgg"), "unknown model"),
    ):
        with pytest.raises(ConfigError, match=said):
            wrong.check()
    assert (bytes_per_s("100mbit"), bytes_per_s("1gbit")) == (12.5e6, 125e6)


def test_accuracy_is_compared_for_every_codec_and_with_fewer_rounds():
    ways = ways_of(("int8", "topk:0.01"))
    assert list(ways) == ["every step together", "int8", "topk:0.01", "Local(8), int8"]
    assert (ways["Local(8), int8"].every, ways["Local(8), int8"].compress) == (8, "int8")


# --- the choice at the beginning of docs/frugal.md ---


@pytest.mark.quick
def test_the_simplest_way_that_is_nearly_as_fast_as_the_fastest_is_taken():
    assert frugal_choice(1e6, 125e6, 0.1).take == WHOLE
    assert frugal_choice(25e6, 125e6, 0.1).take == SMALLER
    assert frugal_choice(80e6, 125e6, 0.1).take == FEWER
    assert frugal_choice(80e6, 12.5e6, 0.1).take == BOTH
    many = frugal_choice(80e6, 12.5e6, 0.1, workers=16)  # all get 15 payloads, and would get 2 gradients
    assert many.seconds[SMALLER] > many.seconds[WHOLE]


def test_the_table_in_the_docs_is_what_is_predicted():
    text = (Path(__file__).parents[2] / "docs/frugal.md").read_text()
    rows = re.findall(r"^\| (\d+) MB \| (.+) \|$", text, re.MULTILINE)
    assert len(rows) == 6
    for size, cells in rows:
        for rate, cell in zip((0.1, 1, 10, 100), cells.split(" | "), strict=True):
            choice = frugal_choice(float(size) * 1e6, rate * 1e9 / 8, 0.1)
            seconds = [f"{choice.seconds[name]:.2f}" for name in dict.fromkeys([WHOLE, choice.take])]
            assert cell.replace("`", "") == f"{choice.take}: {' instead of '.join(reversed(seconds))}"


# --- small runs ---


@pytest.fixture
def namespaces():
    try:
        with several_hosts(2, ""):
            pass
    except ConfigError as error:
        pytest.skip(str(error))


def small(codecs):
    settings = SmallerSettings("lenet", 8, "1gbit", codecs, rounds=1, turn_s=0.01, codec_values=4096)
    found = bench_smaller(settings, lambda text: None)
    assert [row.name for row in found.rows] == [which.name for which in contenders_of(codecs_of(codecs))]
    assert all(0 < row.step_s_min <= row.step_s <= row.step_s_max for row in found.rows)
    return {row.name: row for row in found.rows}


@pytest.mark.slow
def test_a_codec_is_measured_beside_torchs_hooks_and_its_bytes_are_counted(namespaces):
    rows = small("fp16")
    assert rows["fp16"].payload_bytes == pytest.approx(rows["fp16"].formula_bytes, rel=0.01)
    for name in ("fp16", "DDP's fp16 hook, Gloo", "DDP's fp16 hook, gradtide"):
        assert 1 < rows[name].wire_bytes / rows[name].formula_bytes < 1.4  # a small model's flags and headers count
    assert rows[DENSE].wire_bytes > 1.5 * rows["fp16"].wire_bytes


@pytest.mark.slow
def test_servers_and_thin_matrices_are_measured(namespaces):
    rows = small("int8,powersgd:2")
    assert rows["int8 over servers"].payload_bytes == pytest.approx(rows["int8"].payload_bytes, rel=0.1)
    assert rows["DDP's PowerSGD hook, gradtide"].wire_bytes < rows[DENSE].wire_bytes / 2

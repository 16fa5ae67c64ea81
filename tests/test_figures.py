"""Every figure from one place: pages show what docs/figures has, and what a benchmark writes can be shown."""

import doctest
import importlib.util
import json
import re
import shutil
from dataclasses import fields
from pathlib import Path

import pytest

from gradtide.bench import report
from gradtide.bench.allreduce import AllreduceFigure
from gradtide.bench.checkpoint import Figures as CheckpointFigures
from gradtide.bench.frugal import balance
from gradtide.bench.frugal.accuracy import AccuracyRow
from gradtide.bench.frugal.smaller import SmallerRow
from gradtide.bench.hosts.collectives import HostsFigure
from gradtide.bench.hosts.planning import PlanningCost
from gradtide.bench.launch import LaunchFigure
from gradtide.bench.store import StoreResult
from gradtide.bench.train import CONTENDERS as DEVICES
from gradtide.bench.training.workers import CONTENDERS as WORKERS

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "docs/figures").glob("*.json"))
WRITTEN = {  # beginning of a file's name -> what the benchmark writes, where it is one that is run as it stands
    "allreduce-": AllreduceFigure,
    "balance": report.Row,
    "checkpoint": CheckpointFigures,
    "compress-accuracy": AccuracyRow,
    "compress-speed": SmallerRow,
    "frugal-accuracy": AccuracyRow,
    "frugal-speed": report.Row,
    "hosts-": HostsFigure,
    "launch": LaunchFigure,
    "lightning": report.Row,
    "overlap-deep": report.Row,
    "overlap-mlp": report.Row,
    "plan-superpod": PlanningCost,
    "split-": report.Row,
    "store-peers": StoreResult,
    "train-": report.Row,
}

spec = importlib.util.spec_from_file_location("render_figures", ROOT / "docs/render_figures.py")
render_figures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(render_figures)

pytestmark = pytest.mark.quick


@pytest.fixture
def copy(tmp_path):
    """README, pages and figures, to be changed."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("images", "grafana"))
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


def shown(results, folder, table, page="<!-- figures: all -->\n<!-- end -->"):
    """A page, with figures of a file called "all"."""
    (folder / "all.json").write_text(json.dumps(results))
    (folder / "all.table").write_text(table)
    return render_figures.Figures(folder).write_into(page)


def test_every_page_shows_what_the_figures_say():
    assert render_figures.update(ROOT, write=False) == [], "run scripts/figures"


def test_readme_and_benchmarks_show_the_same():
    """Without what writes them: a reader's look at both."""
    readme, page = (ROOT / "README.md").read_text(), (ROOT / "docs/benchmarks.md").read_text()
    row = r"^\| \**{}\** \| \**([\d,.]+)\** \|"
    ours, theirs = re.search(r"^\| MLP .*\| ([\d,]+) samples/s; DDP over Gloo: ([\d,]+)", readme, re.MULTILINE).groups()
    assert re.search(row.format("gradtide, shared parameters"), page, re.MULTILINE)[1] == ours
    assert re.search(row.format("DDP over Gloo"), page, re.MULTILINE)[1] == theirs
    starting = re.search(r"`gradtide run`: ([\d.]+) s", readme)[1]
    assert f"{float(re.search(row.format('gradtide run, gradtide group'), page, re.MULTILINE)[1]):.1f}" == starting


@pytest.mark.parametrize("page", ["README.md", "docs/benchmarks.md"])
def test_no_table_of_figures_is_written_by_hand(page):
    assert re.findall(r"^\|.*", render_figures.TABLE.sub("", (ROOT / page).read_text()), re.MULTILINE) == []


def test_sentences_have_no_marks_that_nobody_would_check():
    assert [str(page) for page in render_figures.pages(ROOT) if re.search("<!-- ?[{=]", page.read_text())] == []


def test_pages_say_what_was_measured_and_not_what_was_wanted():
    wanted = re.compile(r"^\|.*\| (?:asked for|goal) \||\bGoals?\b|\(goal", re.MULTILINE)
    assert [str(page) for page in render_figures.pages(ROOT) if wanted.search(page.read_text())] == []


def test_a_line_that_differs_is_named_and_mended(copy):
    page = copy / "README.md"
    right = page.read_text()
    page.write_text(re.sub(r"[\d,]+ samples/s; DDP", "751 samples/s; DDP", right))
    was, should_be = render_figures.update(copy, write=False)
    assert was.startswith("README.md: - | MLP with 80 MB of gradients")
    assert should_be.startswith("README.md: + | MLP with 80 MB of gradients")
    render_figures.update(copy, write=True)
    assert page.read_text() == right


def test_what_a_benchmark_writes_is_on_all_pages_by_one_command(copy):
    for name, contenders in (("train-workers-mlp", WORKERS), ("train-lenet", DEVICES)):
        seconds = {contender: [0.5, 0.25, 1.0 + i] for i, contender in enumerate(contenders)}
        settings = {"model": "mlp", "rounds": 3}
        found = report.rows(seconds, 1000 if name == "train-lenet" else 1234)
        report.write(copy / f"docs/figures/{name}.json", found, {"settings": settings}, {"seconds": seconds})
    render_figures.update(copy, write=True)
    assert "| 2,468 samples/s; DDP over Gloo: 2,468;" in (copy / "README.md").read_text()
    assert (
        "| **gradtide, shared parameters** | **2,468** | **206** | **4,936** | **1.00** |"
        in (copy / "docs/benchmarks.md").read_text()
    )
    assert render_figures.update(copy, write=False) == []


def test_a_result_file_says_by_which_command_when_and_where(tmp_path, monkeypatch):
    arguments = [
        "gradtide",
        "bench",
        "train",
        "--output",
        str(tmp_path / "a.json"),
        "--model",
        "mlp",
        f"--output={tmp_path}",
    ]
    monkeypatch.setattr("sys.argv", arguments)
    report.write(tmp_path / "a.json", [SmallerRow("int8", 8.0, 8.0, 8.0, 2.0, 1.0, 3.0, 1.0)])
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["command"] == "gradtide bench train --model mlp"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["measured"])
    assert found["machine"]["packages"]["torch"]
    assert found["results"][0]["of_ideal"] == 0.5  # a property


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_of_figures_is_complete_and_as_its_benchmark_writes_it(path):
    content = json.loads(path.read_text())
    assert {"command", "measured", "machine", "results"} <= content.keys()
    kind = next((kind for name, kind in WRITTEN.items() if path.stem.startswith(name)), None)
    if kind:
        known = {field.name for field in fields(kind)} | {n for n, v in vars(kind).items() if isinstance(v, property)}
        assert {field for row in content["results"] for field in row} <= known
    contenders = {"train-lenet": DEVICES, "train-workers-": WORKERS, "balance": balance.CONTENDERS}
    names = next((names for name, names in contenders.items() if path.stem.startswith(name)), None)
    assert names is None or [row["name"] for row in content["results"]] == list(names)


def test_every_file_of_figures_is_on_a_page():
    pages = "".join(page.read_text() for page in render_figures.pages(ROOT))
    shown = {path.stem: path.read_text() for path in sorted((ROOT / "docs/figures").glob("*.table"))}
    assert [name for name in shown if f"<!-- figures: {name} -->" not in pages] == []
    forms = "".join(shown.values())
    assert [path.stem for path in FILES if not re.search(rf"(^|[ {{]){path.stem}[ \n/\[]", forms, re.MULTILINE)] == []


def test_a_table_has_a_line_for_each_group_and_a_form_for_each_figure(tmp_path):
    results = [
        {"case": {"size_bytes": 4096}, "name": name, "seconds": seconds, "runs": [3, 1, 2]}
        for name, seconds in (("ours", 2e-6), ("MPI 5.0", 5e-6))
    ]
    table = """all by case_size_bytes bold ours
| bytes | µs | x | runs |
| {case_size_bytes:,} | {[ours].seconds:us.1f} | {[MPI 5.0].seconds / [ours].seconds:.1f} | {runs_min} to {runs_max} |
"""
    assert (
        "\n\n| bytes | µs | x | runs |\n|---|---|---|---|\n| **4,096** | **2.0** | **2.5** | **1 to 3** |\n\n"
        in shown({"results": results}, tmp_path, table)
    )
    assert "| 5 µs |" in shown({"results": results}, tmp_path, "| at most |\n| {max all[4096].seconds:us.0f} µs |\n")


def test_what_was_not_measured_is_left_empty(tmp_path):
    results = [{"name": "a", "least": 1, "most": 2}, {"name": "b"}]
    table = "all\n| | s |\n| {name} | {least} to {most} |\n"
    assert "| a | 1 to 2 |\n| b | |\n" in shown({"results": results}, tmp_path, table)


def test_a_file_says_more_of_a_contender_by_its_name(tmp_path):
    content = {"settings": {"predicted_s": {"a": 2.5}}, "verdict": {"worst": 0.5}, "results": [{"name": "a"}]}
    table = "| s | worst |\n| {all[a].predicted_s} | {all/verdict.worst:pt.0f} % |\n"
    assert "| 2.5 | 50 % |" in shown(content, tmp_path, table)


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ("{none[a].s}", "docs/figures has no none"),
        ("{all[a].t}", r"all\[a\].t should be one figure, and is none"),
        ("{all[x].s}", r"all\[x\].s should be one figure, and is \[1, 2\]"),
        ("{all[a]s}", "is not understood"),
    ],
)
def test_a_form_that_means_nothing_is_refused(tmp_path, form, error):
    results = [{"name": "a", "kind": "x", "s": 1}, {"name": "b", "kind": "x", "s": 2}, {"name": "c"}]
    with pytest.raises(render_figures.WrongFigure, match=error):
        shown({"results": results}, tmp_path, f"| s |\n| {form} |\n")


@pytest.mark.parametrize(
    ("page", "error"),
    [
        ("<!-- figures: all -->\n", "ends with <!-- end -->"),
        ("<!-- figures: all\n| a |\n| {s} |\n-->\n<!-- end -->", "begins with <!-- figures: NAME -->"),
        ("<!-- figures: other -->\n<!-- end -->", "has no other.table"),
    ],
)
def test_a_mark_that_means_nothing_is_refused(tmp_path, page, error):
    with pytest.raises(render_figures.WrongFigure, match=error):
        shown({"results": [{"name": "a", "s": 1}]}, tmp_path, "all\n| s |\n| {s} |\n", page)


def test_the_examples_in_its_docstrings_hold():
    assert doctest.testmod(render_figures).failed == 0

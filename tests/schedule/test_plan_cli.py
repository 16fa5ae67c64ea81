import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradtide.cli.app import app
from gradtide.errors import GradtideError, ScheduleError
from gradtide.schedule.serialize import schedule_from_json
from gradtide.schedule.verify import verify


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_json_has_the_golden_figures():
    data = json.loads(run("pcie-4gpu", "--size", "160MB", "--json"))
    golden = {"root": 60e-3, "host": 80e-3, "sharded": 15e-3, "ring": 15e-3}
    rows = {row["name"]: row for row in data["strategies"]}
    for name, seconds in golden.items():
        assert rows[name]["bandwidth_seconds"] == pytest.approx(seconds, rel=1e-9)
        assert rows[name]["seconds"] == pytest.approx(seconds, rel=0.01)
        assert {"busiest_link", "wire_bytes", "steps"} <= set(rows[name])
    assert data["bound_seconds"] == pytest.approx(40e-3 / 3, rel=1e-6)


def test_the_table_has_the_winner_first_the_bound_last_and_one_sentence_why():
    lines = run("pcie-4gpu", "--size", "160MB").splitlines()
    assert "all_reduce of 160 MB on pcie-4gpu" in lines[0]
    assert lines[2].split()[0] == "packed-trees"
    bound = next(line for line in lines if "lower bound" in line)
    assert "13.33 ms" in bound
    assert any(line.startswith("packed-trees is best with") for line in lines)


def test_files_are_written_for_the_winner(tmp_path: Path):
    paths = {
        kind: tmp_path / name for kind, name in (("draw", "p.svg"), ("timeline", "t.json"), ("schedule", "s.json"))
    }
    run("ring:4", "--size", "1MB", *(text for kind, path in paths.items() for text in (f"--{kind}", str(path))))
    assert "<svg" in paths["draw"].read_text()
    names = {event.get("args", {}).get("name") for event in json.loads(paths["timeline"].read_text())["traceEvents"]}
    assert "gpu0 → gpu1" in names
    verify(schedule_from_json(paths["schedule"].read_text()))


def test_a_schedule_of_one_s_own_is_proven_and_compared(tmp_path: Path):
    mine = tmp_path / "mine.json"
    run("ring:4", "--size", "1MB", "--schedule", str(mine))
    data = json.loads(run("ring:4", "--size", "1MB", "--json", "--rival", str(mine)))
    rows = {row["name"]: row["seconds"] for row in data["strategies"]}
    assert rows["mine.json"] == pytest.approx(data["strategies"][0]["seconds"])


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('"deps": []', '"deps": [0]', r"mine.json: op 0 .*circle, 0 -> 0"),
        ('"all_reduce"', '"reduce"', r"mine.json: is a schedule of reduce, but all_reduce is asked for"),
        ('"gpu3"', '"gpu7"', r"mine.json: must have the devices gpu0, gpu1, gpu2, gpu3 as its first ranks"),
        ('"chunk": 0', '"chunk": "x"', r"mine.json: op 0 of the list: field chunk must be a whole number"),
        ('{"gradtide', 'rubbish{"gradtide', r"mine.json: is not JSON"),
    ],
)
def test_a_schedule_that_is_wrong_is_refused_by_file_op_and_field(tmp_path: Path, old: str, new: str, fault: str):
    mine = tmp_path / "mine.json"
    run("ring:4", "--size", "1MB", "--schedule", str(mine))
    mine.write_text(mine.read_text().replace(old, new, 1))
    with pytest.raises(ScheduleError, match=fault) as error:
        run("ring:4", "--size", "1MB", "--rival", str(mine))
    assert "\n" not in str(error.value)


def test_a_hundred_megabytes_of_rubbish_are_refused_at_once(tmp_path: Path):
    rubbish = tmp_path / "rubbish.json"
    with rubbish.open("wb") as file:
        file.truncate(100_000_000)
    with pytest.raises(ScheduleError, match=r"rubbish\.json: is longer than"):
        run("ring:4", "--size", "1MB", "--rival", str(rubbish))


@pytest.mark.parametrize("place", ["pcie-4gpu", pytest.param("dgx-h100", marks=pytest.mark.slow)])
def test_sizes_tell_who_wins_from_where_on(tmp_path: Path, place: str):
    data = json.loads(run(place, "--sizes", "4KB..16MB", "--json", "--output", str(tmp_path / "sizes.png")))
    assert len(data["winners"]) > 1
    assert data["winners"][0]["from_bytes"] == 4000
    assert data["winners"][-1]["to_bytes"] == 16_000_000
    assert (tmp_path / "sizes.png").stat().st_size > 10_000
    assert data["winners"][-1]["name"] in run(place, "--sizes", "4KB..16MB")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["pcie-4gpu"], "either --size"),
        (["pcie-4gpu", "--size", "1MB", "--sizes", "1KB..1MB"], "either --size"),
        (["pcie-4gpu", "--size", "1MB", "--output", "x.png"], "--output is the plot of --sizes"),
        (["pcie-4gpu", "--sizes", "1KB..1MB", "--draw", "x.svg"], "go with one size"),
        (["pcie-4gpu", "--sizes", "1MB..1MB"], "to a larger size"),
        (["pcie-4gpu", "--size", "160 MBytes"], "MBytes"),
        (["pcie-4gpu", "--size", "1MB", "--devices", "gpu0,gpu7"], "no device 'gpu7'"),
        (["nowhere.toml", "--size", "1MB"], "nowhere.toml"),
        (["rail:2x2x2@100", "--size", "1MB", "--without", "host1.nic9"], "did you mean 'host1.nic1'"),
        (["rail:2x2x2@100", "--size", "1MB", "--degrade", "host1.nic1"], "is not NAME=FACTOR"),
        (["ring:4", "--size", "1MB", "--hosts", "2..4"], "ring:4 has no number of hosts"),
        (["rail:2x2x2@100", "--size", "1MB", "--hosts", "8..4"], "the smaller first"),
        (["rail:2x2x2@100", "--size", "1MB", "--hosts", "4-8"], "a range such as 4..128"),
        (["rail:2x2x2@100", "--size", "1MB", "--hosts", "2..4", "--draw", "x.svg"], "leave --hosts out"),
        (["rail:2x2x2@100", "--sizes", "1KB..1MB", "--upgrade"], "--upgrade goes with one plan"),
        (["ring:4", "--size", "1MB", "--host-kind", "dgx2"], "goes with Slurm"),
        (["ring:4", "--size", "1MB", "--schedule", "/nonexistent/x.json"], "/nonexistent/x.json"),
    ],
)
def test_mistakes_are_one_clear_line(arguments: list[str], fault: str):
    with pytest.raises(GradtideError, match=fault) as error:
        CliRunner().invoke(app, ["plan", *arguments], catch_exceptions=False)
    assert "\n" not in str(error.value)


def test_a_reader_that_has_seen_enough_is_no_error():
    words = f"{shlex.quote(sys.executable)} -m gradtide plan ring:4 --size 1MB | true"
    assert subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=60).stderr == ""


def test_hosts_give_the_time_and_the_bound_of_each_size_of_the_cluster(tmp_path: Path):
    plot = tmp_path / "hosts.svg"
    arguments = ("rail:2x2x2@100", "--size", "100MB", "--hosts", "2..3", "--degrade", "leaf0=0.5")
    data = json.loads(run(*arguments, "--json", "--output", str(plot)))
    assert data["hosts"] == [2, 3]
    assert [row["devices"] for row in data["plans"]] == [4, 6]
    assert all(row["seconds"] >= row["bound_seconds"] > 0 for row in data["plans"])
    assert plot.read_text().startswith("<?xml")
    lines = run(*arguments).splitlines()
    assert lines[0] == "all_reduce of 100 MB on rail:HOSTSx2x2@100, leaf0 × 0.5"
    assert [line.split()[0] for line in lines[1:]] == ["hosts", "2", "3"]


def test_upgrade_says_what_a_tenth_more_is_worth():
    assert "Upgrade gpu-switch first: 10 % more on gpu-switch is worth" in run(
        "pcie-4gpu", "--size", "1MB", "--upgrade"
    )
    assert json.loads(run("pcie-4gpu", "--size", "1MB", "--upgrade", "--json"))["upgrades"]["gpu-switch"] > 0.05


@pytest.mark.parametrize(
    ("words", "said"),
    [(["nosuch"], "no topology is called 'nosuch'"), (["pcie-4gpu"], "plan needs either --size, as 160MB, or --sizes")],
)
def test_an_unknown_topology_is_named_before_a_size_is_asked_for(words, said):
    with pytest.raises(GradtideError, match=said):
        CliRunner().invoke(app, ["plan", *words], catch_exceptions=False)

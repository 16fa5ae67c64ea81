import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gradtide.cli.app import app
from gradtide.errors import ConfigError, TopologyError
from gradtide.topology.files import read_topology
from gradtide.topology.presets import PRESETS, preset

pytestmark = pytest.mark.quick


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["topology", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_list_names_every_preset():
    output = run("list")
    assert all(known.form in output for known in PRESETS)
    assert [row["name"] for row in json.loads(run("list", "--json"))] == [known.form for known in PRESETS]


def test_a_reader_that_stops_at_once_gets_the_picture_and_no_traceback(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)  # as `| head` does, only sooner
    command = [sys.executable, "-u", "-m", "gradtide", "plan", "ring:2", "--size", "1KB", "--draw", "it.svg"]
    with open(writing, "w") as nobody:
        done = subprocess.run(command, stdout=nobody, stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=120)
    assert (done.returncode, done.stderr) == (1, "")
    assert (tmp_path / "it.svg").exists()


def test_every_picture_that_is_written_is_named(tmp_path):
    for words in (["topology", "show", "ring:2"], ["plan", "ring:2", "--size", "1KB"]):
        shown = CliRunner().invoke(app, [*words, "--draw", str(tmp_path / "it.svg")], catch_exceptions=False)
        assert shown.stdout.endswith(f"\nwritten: {tmp_path / 'it.svg'}\n")
    shown = CliRunner().invoke(app, ["topology", "show", "ring:2", "--json", "--draw", str(tmp_path / "it.svg")])
    assert json.loads(shown.stdout)["name"] == "ring:2"
    assert shown.stderr == f"written: {tmp_path / 'it.svg'}\n"


def test_show_prints_nodes_and_links_as_table_json_and_toml(tmp_path):
    table = run("show", "pcie-4gpu")
    assert "gpu0 ↔ switch" in table
    assert "16 GB/s" in table
    described = json.loads(run("show", "pcie-4gpu", "--json"))
    assert len(described["nodes"]) == 6
    assert described["links"][0]["bytes_per_s"] == 16e9
    (tmp_path / "it.toml").write_text(run("show", "dgx2", "--toml"))
    assert read_topology(tmp_path / "it.toml") == preset("dgx2")
    with pytest.raises(ConfigError, match="not both"):
        run("show", "dgx2", "--toml", "--json")


def test_show_draws_and_takes_the_rates_of_nvidia_smi_text(tmp_path):
    matrix = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tNV4\t0-7\nGPU1\tNV4\tX\t0-7\n"
    (tmp_path / "topo.txt").write_text(matrix)
    output = run("show", str(tmp_path / "topo.txt"), "--nvlink", "20 GB/s", "--pcie", "32 GB/s",
                 "--draw", str(tmp_path / "it.svg"))  # fmt: skip
    assert "4 × 20 GB/s" in output
    assert "32 GB/s" in output
    assert (tmp_path / "it.svg").read_text().startswith("<?xml")


def test_a_name_that_looks_like_markup_is_printed_as_it_is(tmp_path):
    text = run("show", "ring:2", "--toml").replace('"gpu0"', '"[red]x[/red]"')
    (tmp_path / "odd.toml").write_text(text)
    assert "[red]x[/red]" in run("show", str(tmp_path / "odd.toml"))


def test_check_says_what_is_there_or_raises_the_first_mistake(tmp_path):
    (tmp_path / "it.toml").write_text(run("show", "pcie-4gpu", "--toml"))
    assert "fine (4 devices, 1 host, 1 switch, 10 one-way links)" in run("check", str(tmp_path / "it.toml"))
    assert json.loads(run("check", str(tmp_path / "it.toml"), "--json"))["device"] == 4
    (tmp_path / "it.toml").write_text("[[node]]\n")
    with pytest.raises(TopologyError, match="line 1, field 'name' of node 1: is missing"):
        run("check", str(tmp_path / "it.toml"))


def test_probe_writes_a_file_that_check_accepts(tmp_path):
    output = run("probe", "--seconds", "0.2", "--output", str(tmp_path / "it.toml"))
    assert "process0 → process1" in output
    assert "2 devices" in run("check", str(tmp_path / "it.toml"))
    with pytest.raises(ConfigError, match="--seconds must be above 0"):
        run("probe", "--seconds", "0")


def test_a_mistake_is_one_line_on_stderr_and_exit_code_2():
    words = [sys.executable, "-m", "gradtide", "topology", "show", "rign:4"]
    result = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "gradtide: no topology is called 'rign:4'; did you mean ring:N?\n"


def test_help_loads_nothing_heavy():
    code = (
        "import sys\nfrom gradtide.cli.app import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'scipy', 'matplotlib'} & set(sys.modules)\nsys.exit(str(heavy) if heavy else 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "topology" in result.stdout


def test_a_large_cluster_is_shown_by_kinds_unless_all_is_asked_for(tmp_path):
    table = run("show", "superpod:32")
    assert "superpod:32: 32 machines; --all shows every node and link" in table
    assert [line.split() for line in table.splitlines() if line.startswith(" nic ")] == [["nic", "nic", "256"]]
    assert any(line.split() == ["leaf-spine", "8", "×", "50", "GB/s", "500", "ns", "64"] for line in table.splitlines())
    assert "host31.gpu7" in run("show", "superpod:32", "--all")


def test_slurms_file_is_shown_and_checked_with_the_kind_of_its_hosts(tmp_path):
    conf = tmp_path / "topology.conf"
    conf.write_text("SwitchName=s0 Nodes=n[0-1]\nSwitchName=s1 Nodes=n[2-3]\nSwitchName=top Switches=s[0-1]\n")
    assert "fine (4 devices, 3 switches, 4 nics, 20 one-way links)" in run("check", str(conf))
    assert "n3.gpu7" in run("show", str(conf), "--host-kind", "dgx-h100")

"""Whatever a file holds, reading it gives a topology or one clear line, soon."""

import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradtide.errors import TopologyError
from gradtide.topology.formats.host_texts import parse_host_list
from gradtide.topology.formats.nvidia_smi import parse_nvidia_smi
from gradtide.topology.formats.slurm import parse_slurm
from gradtide.topology.formats.toml_file import format_toml, parse_toml
from gradtide.topology.presets import preset

TOML = format_toml(preset("pcie-4gpu"))
MATRIX = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\nGPU0\tX\tNV2\tPIX\t0-7\nGPU1\tNV2\tX\tPHB\t0-7\nNIC0\tPIX\tPHB\tX\t\n"

PIECES = ["[[link]]\n", "[[node]]\n", '"""', "'", "=", "-", "1e999", "NV99", "GPU0", "N/A", "SYS", "\n", "\t", "\x00"]
MEGABYTE = 1_000_000
edits = st.tuples(st.integers(0, 10_000), st.integers(0, 12), st.text(max_size=6) | st.sampled_from(PIECES))


def mangled(text: str, changes: list[tuple[int, int, str]]) -> str:
    for place, cut, new in changes:
        at = place % (len(text) + 1)
        text = text[:at] + new + text[at + cut :]
    return text


def refusal(read: Callable[[], object]) -> str:
    """What a reader says, or nothing if it could read."""
    try:
        read()
    except TopologyError as error:
        return str(error)
    return ""


def check_refusal(text: str, file: str) -> None:
    assert not text or text.startswith(file)
    assert len(text.splitlines()) <= 1
    assert len(text) < 400


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(edits, min_size=1, max_size=4))
def test_a_mangled_toml_file_is_read_or_refused_in_one_line(changes):
    check_refusal(refusal(lambda: parse_toml(mangled(TOML, changes), "box.toml", "box")), "box.toml")


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(edits, min_size=1, max_size=4))
def test_a_mangled_matrix_is_read_or_refused_in_one_line(changes):
    check_refusal(refusal(lambda: parse_nvidia_smi(mangled(MATRIX, changes), "topo.txt", "box")), "topo.txt")


CLUSTER = """[[hosts]]
count = 6
kind = "dgx-a100"
nics = 4
nic = "100 Gbit/s"
[fabric]
hosts_per_leaf = 2
rails = true
spines = 2
oversubscription = 2
[[override]]
name = "host3.nic0"
times = 0.1
"""
SLURM = "SwitchName=s0 Nodes=n[0-3],m LinkSpeed=200\nSwitchName=s1 Nodes=n[4-7]\nSwitchName=top Switches=s[0-1]\n"
HOSTS = "node[00-03] topo.txt 200 Gbit/s  # four\nlogin topo.txt\n"


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.lists(edits, min_size=1, max_size=4))
def test_a_mangled_cluster_is_read_or_refused_in_one_line(changes):
    check_refusal(refusal(lambda: parse_toml(mangled(CLUSTER, changes), "box.toml", "box")), "box.toml")


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.lists(edits, min_size=1, max_size=4))
def test_a_mangled_topology_conf_is_read_or_refused_in_one_line(changes):
    check_refusal(refusal(lambda: parse_slurm(mangled(SLURM, changes), "topology.conf", "it")), "topology.conf")


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.lists(edits, min_size=1, max_size=4))
def test_a_mangled_list_of_hosts_is_read_or_refused_in_one_line(changes):
    text = mangled(HOSTS, changes)
    check_refusal(refusal(lambda: parse_host_list(text, "hosts.list", "it", lambda file: MATRIX)), "hosts.list")


@pytest.mark.parametrize(
    "text",
    [
        "x" * MEGABYTE,
        "[[link]]\n" * (MEGABYTE // 9),
        "".join(f"k{i} = 1\n" for i in range(MEGABYTE // 12)),
        'name = """' + "\n" * MEGABYTE,
        "a" + ".a" * MEGABYTE + " = 1",
    ],
    ids=["letters", "headers", "keys", "lines", "dots"],
)
def test_a_megabyte_below_the_cap_is_refused_within_seconds(text):
    start = time.process_time()
    with pytest.raises(TopologyError):
        parse_toml(text, "box.toml", "box")
    assert time.process_time() - start < 10


def test_the_largest_matrix_takes_seconds_at_most():
    names = [f"GPU{i}" for i in range(256)]
    rows = ["\t".join([n, *("X" if n == m else "PIX" for m in names)]) for n in names]
    start = time.process_time()
    topology = parse_nvidia_smi("\t" + "\t".join(names) + "\n" + "\n".join(rows), "topo.txt", "box")
    assert len(topology.nodes) == 258
    assert time.process_time() - start < 10

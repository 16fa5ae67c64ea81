import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clock import at_most
from gradtide.errors import OutputError, TopologyError
from gradtide.topology.files import read_topology, topology_named, write_topology
from gradtide.topology.formats.toml_file import format_toml, parse_toml
from gradtide.topology.model import Link, Node, NodeKind, Topology
from gradtide.topology.presets import PRESETS, preset

GOOD = """\
name = "pair"

[[node]]
name = "a"
kind = "device"

[[node]]
name = "b"
kind = "device"

[[link]]
between = ["a", "b"]
bandwidth = "16 GB/s"
latency = "3 us"
"""


@pytest.mark.parametrize("known", PRESETS, ids=lambda known: known.form)
def test_every_preset_survives_a_file(known, tmp_path):
    write_topology(preset(known.example), tmp_path / "it.toml")
    assert topology_named(str(tmp_path / "it.toml")) == preset(known.example)


names = st.text(min_size=1, max_size=8).filter(str.isprintable)


@settings(derandomize=True, max_examples=50)
@given(name=st.text(max_size=8), machine=st.text(max_size=8), wire=st.text(max_size=3), data=st.data())
def test_any_names_and_figures_survive_the_text(name, machine, wire, data):
    ends = data.draw(st.lists(names, min_size=2, max_size=2, unique=True))
    rate, latency_s = data.draw(st.floats(1e-3, 1e15)), data.draw(st.floats(0, 1e3))
    count = data.draw(st.integers(1, 9))
    a, b = ends
    links = (Link(a, b, rate, latency_s, count, wire), Link(b, a, rate, latency_s, count, wire))
    topology = Topology(name, (Node(a, NodeKind.DEVICE, machine), Node(b, NodeKind.HOST)), links)
    assert parse_toml(format_toml(topology), "text", "other") == topology


def test_a_one_way_link_a_count_and_a_shared_wire_survive():
    links = (Link("a", "b", 1e9, 1e-6, 2, "bus"), Link("b", "a", 2e9, 1e-6, 1, "bus"))
    topology = Topology("bus", (Node("a", NodeKind.DEVICE), Node("b", NodeKind.DEVICE)), links)
    assert parse_toml(format_toml(topology), "text", "") == topology


@pytest.mark.parametrize(
    ("old", "new", "answer"),
    [
        ('between = ["a", "b"]', 'between = ["a", "bb"]',
         "line 12, field 'between' of link 1: a link names the node 'bb', which is not described; did you mean 'b'?"),
        ('between = ["a", "b"]', 'from = "a"\nto = "z"', "line 13, field 'to' of link 1: a link names the node 'z'"),
        ('between = ["a", "b"]', 'from = "a"', "line 11, field 'to' of link 1: is missing"),
        ('between = ["a", "b"]', 'between = ["a", "b"]\nto = "b"', "line 12, field 'between' of link 1: give either"),
        ('between = ["a", "b"]\n', "", "line 11, field 'between' of link 1: is missing; name the two ends"),
        ('between = ["a", "b"]', 'between = "a-b"', "line 12, field 'between' of link 1: expected two names"),
        ('between = ["a", "b"]', 'between = ["a", "a"]', "line 12, field 'between' of link 1: a link leads from 'a'"),
        ("16 GB/s", "-16 GB/s", "line 13, field 'bandwidth' of link 1: '-16 GB/s' is negative"),
        ("16 GB/s", "0 GB/s", "line 13, field 'bandwidth' of link 1: bandwidth must be above zero"),
        ("16 GB/s", "16 GBs", "line 13, field 'bandwidth' of link 1: '16 GBs': no unit of rate is called 'GBs'; "
         "did you mean GB/s?"),
        ('"16 GB/s"', "16e9", "line 13, field 'bandwidth' of link 1: 16000000000.0 has no unit"),
        ('bandwidth = "16 GB/s"\n', "", "line 11, field 'bandwidth' of link 1: is missing"),
        ("3 us", "3 uss", "line 14, field 'latency' of link 1: '3 uss': no unit of time is called 'uss'; did you mean"),
        ('latency = "3 us"', 'latencie = "3 us"', "line 14, field 'latencie' of link 1: there is no such field; "
         "did you mean 'latency'?"),
        ('latency = "3 us"', 'latency = "3 us"\ncount = 0', "line 15, field 'count' of link 1: count must be"),
        ('latency = "3 us"', 'latency = "3 us"\ncount = true', "line 15, field 'count' of link 1: count must be"),
        ('name = "b"', 'name = "a"', "line 8, field 'name' of node 2: node 'a' is there twice"),
        ('name = "b"', "name = 3", "line 8, field 'name' of node 2: expected text in quotes, not 3"),
        ('name = "b"\n', "", "line 7, field 'name' of node 2: is missing"),
        ('"device"\n\n[[link', '"devise"\n\n[[link', "line 9, field 'kind' of node 2: no kind of node is called "
         "'devise'; did you mean 'device'?"),
        ("[[link]]", "[[links]]", "line 11, field 'links': there is no such field; did you mean 'link'?"),
        ("[[link]]", "[link]", "line 11, field 'link': write one [[link]] table"),
        ('between = ["a", "b"]', 'from = "a"\nto = "b"', "line 8, field 'name' of node 2: device 'b' can't reach 'a'"),
        ('between = ["a", "b"]', 'from = "b"\nto = "a"', "line 8, field 'name' of node 2: device 'b' can't be reached"),
        ('kind = "device"', 'kind = "host"', "no node is a device"),
        ('name = "pair"', "name = pair", "line 1, column 8: Invalid value; expected TOML"),
        ('name = "pair"', "name = " + "[" * 1_900, "nested too deeply"),
        ('name = "pair"', "name = " + "9" * 5_000, "line 1: longer than 2,000 characters"),
        ('name = "pair"', 'name = """\n[[link]]\n"""', None),
    ],
)  # fmt: skip
def test_each_mistake_names_the_file_the_line_and_the_field(old, new, answer, tmp_path):
    path = tmp_path / "box.toml"
    path.write_text(GOOD.replace(old, new))
    if answer is None:
        assert read_topology(path).name == "[[link]]\n"
        return
    with pytest.raises(TopologyError) as caught:
        read_topology(path)
    assert str(caught.value).startswith(str(path))
    assert answer in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300 + len(str(path))


def test_a_header_inside_a_text_is_not_counted(tmp_path):
    path = tmp_path / "box.toml"
    path.write_text(GOOD.replace('name = "pair"', 'name = """\n[[link]]\n"""').replace("16 GB/s", "1 XB/s"))
    with pytest.raises(TopologyError, match="line 15, field 'bandwidth' of link 1"):
        read_topology(path)


def test_without_a_name_the_file_gives_its_own(tmp_path):
    (tmp_path / "box.toml").write_text(GOOD.replace('name = "pair"', ""))
    assert read_topology(tmp_path / "box.toml").name == "box"


def test_a_hundred_megabytes_of_rubbish_are_refused_at_once(tmp_path):
    path = tmp_path / "rubbish.toml"
    with path.open("wb") as file:
        file.truncate(100_000_000)
    start = time.process_time()
    with pytest.raises(TopologyError, match=r"rubbish.toml: larger than 2 MB"):
        read_topology(path)
    assert time.process_time() - start < at_most(1)


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"ok = 1\n\xff\xfe", "line 2: not text (byte 7 is not UTF-8)"),
        (b"\x00" * 1000, "line 1, column 1"),
        (b"", "no node is a device"),
        (b"[" * 1_000_000, "line 1: longer than 2,000 characters"),
        (b"name = 'x", "line 1"),
    ],
)
def test_binary_and_empty_files_are_refused_in_one_line(data, answer, tmp_path):
    (tmp_path / "x.toml").write_bytes(data)
    with pytest.raises(TopologyError) as caught:
        read_topology(tmp_path / "x.toml")
    assert answer in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_resolve_to_presets_and_paths_to_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "box").write_text(GOOD)
    assert topology_named("box").name == "pair"
    assert topology_named("ring:3").name == "ring:3"
    with pytest.raises(TopologyError, match="No such file"):
        topology_named("nowhere.toml")
    with pytest.raises(TopologyError, match="Is a directory"):
        topology_named(str(tmp_path))
    with pytest.raises(TopologyError, match="no topology is called 'nonesuch'"):
        topology_named("nonesuch")
    with pytest.raises(TopologyError, match="null"):
        topology_named("a\0/b.toml")
    with pytest.raises(OutputError, match="can't write"):
        write_topology(preset("ring:2"), tmp_path / "no" / "such.toml")


def test_a_file_that_would_not_be_read_back_is_not_written(tmp_path):
    with pytest.raises(OutputError, match=r"describe it by counts, with \[\[hosts\]\]"):
        write_topology(preset("superpod:700"), tmp_path / "large.toml")
    assert not list(tmp_path.iterdir())

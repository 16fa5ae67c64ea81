import re
from pathlib import Path

from documented import blocks
from gradtide.topology.formats.slurm import parse_slurm
from gradtide.topology.formats.toml_file import parse_toml
from gradtide.topology.presets import PRESETS

PAGE = (Path(__file__).parents[2] / "docs" / "topologies.md").read_text()


def block(begins: str) -> str:
    (found,) = (block.text for block in blocks("docs/topologies.md") if block.text.startswith(begins))
    return found


def test_the_file_in_the_docs_is_a_topology():
    topology = parse_toml(block('name = "my-box"'), "docs", "")
    assert len(topology.nodes) == 5
    assert len(topology.links) == 8
    assert {link.wire for link in topology.links} == {"", "old-bus"}


def test_the_cluster_in_the_docs_is_a_topology():
    topology = parse_toml(block('name = "two-generations"'), "docs", "")
    assert sum(node.kind == "device" for node in topology.nodes) == 256
    assert {link.bytes_per_s for link in topology.links if link.source == "host3.nic0"} == {5e9, 6.4e9}


def test_slurms_file_in_the_docs_is_a_topology():
    assert len(parse_slurm(block("SwitchName=s0"), "docs", "it").nodes) == 32 * 2 + 3


def test_the_docs_name_every_preset():
    assert all(f"| `{known.form}` |" in PAGE for known in PRESETS)


def test_the_pictures_of_the_docs_are_there():
    for name in re.findall(r"\]\((images/[^)]+)\)", PAGE):
        assert (Path(__file__).parents[2] / "docs" / name).exists()

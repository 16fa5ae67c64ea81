import re
from pathlib import Path

from gradtide.topology.formats.toml_file import parse_toml
from gradtide.topology.presets import PRESETS

PAGE = (Path(__file__).parents[2] / "docs" / "topologies.md").read_text()


def test_the_file_in_the_docs_is_a_topology():
    start = PAGE.index('    name = "my-box"')
    block = PAGE[start : PAGE.index("\n- Sizes are decimal")]
    topology = parse_toml(re.sub(r"(?m)^    ", "", block), "docs", "")
    assert len(topology.nodes) == 5
    assert len(topology.links) == 8
    assert {link.wire for link in topology.links} == {"", "old-bus"}


def test_the_docs_name_every_preset():
    assert all(f"| `{known.form}` |" in PAGE for known in PRESETS)


def test_the_pictures_of_the_docs_are_there():
    for name in re.findall(r"\]\((images/[^)]+)\)", PAGE):
        assert (Path(__file__).parents[2] / "docs" / name).exists()

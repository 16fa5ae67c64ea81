"""A reduction of one's own, as docs/store.md shows it, on servers that a script starts."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import gradtide
from gradtide.errors import ConfigError

PAGE = (Path(__file__).parent.parent.parent / "docs/store.md").read_text()


def shown(name):
    """The block of the page that begins with a comment that names this file."""
    return textwrap.dedent(re.search(rf"^    # {name}.*\n((?:    .*\n|\n)+?)(?=    # |\S)", PAGE, re.MULTILINE)[0])


def test_a_semiring_beside_a_script_is_known_to_its_local_servers(tmp_path):
    folder, elsewhere = tmp_path / "mine", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "my_rules.py").write_text(shown("my_rules.py"))
    script = shown("train.py").replace('store.pull("w")  # 5', 'print(store.pull("w").item())')
    (folder / "train.py").write_text(f"import gradtide, torch\n{script}")
    done = subprocess.run(
        [sys.executable, folder / "train.py"], cwd=elsewhere, capture_output=True, text=True, timeout=100
    )
    assert (done.stdout, done.stderr) == ("5.0\n", "")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("no_such_module:norm", "write package.module:name"),
        ("math:pi", "not a gradtide"),
        ("__main__:norm", "put it into a module of its own"),
    ],
)
def test_a_semiring_that_is_none_is_refused_before_anything_is_started(path, words):
    with pytest.raises(ConfigError, match=words):
        gradtide.local_servers(1, semirings=[path])

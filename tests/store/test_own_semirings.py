"""A reduction of one's own, as docs/store.md shows it, on servers that a script starts."""

import re
from pathlib import Path

import pytest
import torch

import gradtide
from gradtide.errors import ConfigError

PAGE = (Path(__file__).parent.parent.parent / "docs/store.md").read_text()


def shown(name):
    """The block of the page that begins with a comment that names this file."""
    return re.search(rf"```python\n(# {name}.*?)```", PAGE, re.DOTALL)[1]


def test_a_semiring_beside_a_script_is_known_to_its_local_servers(tmp_path, monkeypatch, capfd):
    """As `python mine/train.py` finds it: beside the script, not where that was started."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/my_rules.py").write_text(shown("my_rules.py"))
    monkeypatch.syspath_prepend(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    script = shown("train.py").replace('store.pull("w")  # 5', 'print(store.pull("w").item())\n    store.close()')
    exec(script, {"gradtide": gradtide, "torch": torch})
    assert capfd.readouterr() == ("5.0\n", "")


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

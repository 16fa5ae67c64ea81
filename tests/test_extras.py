"""What is installed only where it is wanted: one line names the command that installs it."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gradtide.extras import EXTRAS, require

ROOT = Path(__file__).parent.parent
WITHOUT = """
import sys
import tomllib
from pathlib import Path
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Nowhere())
import importlib.util
known = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in {names!r} else known(name, *more)
sys.argv = ["gradtide", *{words!r}]
from gradtide.cli import main
main()
"""


@pytest.mark.quick
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["plan", "dgx1-v100", "--size", "1MB", "--draw", "plan.svg"], "plot"),
        (["train", "--devices", "1"], "digits"),
    ],
)
def test_a_command_without_its_extra_names_the_pip_command_and_leaves_nothing(tmp_path, words, extra):
    program = WITHOUT.format(names=[EXTRAS[extra]], words=words)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert f"pip install 'gradtide[{extra}]'" in done.stderr
    assert done.stdout == ""
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_not_asked_for():
    require("plot", "drawing")


def test_every_extra_is_one_of_the_packages_and_is_named_where_it_is_missing():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sources = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    assert set(EXTRAS) == set(project) - {"browser", "demo", "dev", "docs", "trackers"}  # which no command needs
    for extra in EXTRAS:
        assert f"pip install 'gradtide[{extra}]'" in sources or f'require("{extra}"' in sources, extra

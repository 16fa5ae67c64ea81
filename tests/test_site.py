"""The site: every page is on it, and it is built without a warning."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


@pytest.mark.quick
def test_every_page_is_in_the_index():
    listed = set(re.findall(r"^([\w/-]+)$", (DOCS / "index.md").read_text(), re.MULTILINE))
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")} - {"index"}
    assert listed == pages


@pytest.mark.quick
def test_a_page_has_one_first_heading():
    """Each further one would be a page of its own in the site's lists."""
    for page in DOCS.rglob("*.md"):
        headings = [token.tag for token in MarkdownIt().parse(page.read_text()) if token.type == "heading_open"]
        assert headings.count("h1") == 1, page


@pytest.mark.quick
def test_the_home_page_begins_as_the_readme_does():
    readme, home = ((path / name).read_text() for path, name in ((ROOT, "README.md"), (DOCS, "index.md")))
    assert readme[readme.index("Install PyTorch") : readme.index("![")] in home


@pytest.mark.quick
def test_the_reference_has_every_public_name():
    import gradtide

    text = (DOCS / "reference" / "python.md").read_text()
    documented = set(re.findall(r"\.\. auto(?:class|function):: (\w+)", text)) | {"errors", "__version__"}
    assert documented == set(gradtide.__all__)


@pytest.mark.slow  # builds all of it
def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("sphinx", reason="pip install 'gradtide[docs]'")
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", str(DOCS), str(tmp_path / "site")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "gradtide.fit" in (tmp_path / "site" / "reference" / "python.html").read_text()
    commands = (tmp_path / "site" / "reference" / "commands.html").read_text()
    assert "gradtide run" in commands
    assert all(f">{option}" in commands for option in ("--step-timeout", "--upgrade"))  # of a Typer's and of argparse's

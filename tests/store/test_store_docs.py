import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_every_promise_of_the_page_names_a_test_that_exists():
    pages = "".join((ROOT / "docs" / page).read_text() for page in ("store.md", "checkpoints.md"))
    named = re.findall(r"`(test_\w+)`", pages)
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 20
    assert [name for name in named if f"def {name}(" not in sources] == []

import re
from pathlib import Path

import pytest

from gradtide.schedule.explain import short_seconds
from gradtide.schedule.plan import plan
from gradtide.schedule.request import STRATEGIES

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "planner.md").read_text()


def test_the_pictures_of_the_page_are_there():
    names = re.findall(r"\]\((images/[^)]+)\)", PAGE)
    assert len(names) == 7
    assert all((DOCS / name).stat().st_size > 1000 for name in names)


def test_the_page_names_every_strategy():
    assert all(f"`{name}`" in PAGE for name in STRATEGIES)


@pytest.mark.parametrize("where", ["pcie-4gpu", "dgx1-v100"])
def test_the_tables_of_the_page_are_what_the_tool_says(where: str):
    for row in plan(where, 160_000_000).table:
        times = f"{short_seconds(row.seconds)} +{short_seconds(row.bandwidth_seconds)} "
        assert re.search(rf"(?m)^     {row.name} +{times}", PAGE), row.name

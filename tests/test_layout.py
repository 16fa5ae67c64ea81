"""The house explains itself: every module is named where a reader looks for it, and no name stands for nothing."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

import gradtide

PACKAGE = Path(gradtide.__file__).parent
ROOT = Path(__file__).parent.parent
LAYOUT = (ROOT / "docs/layout.md").read_text()
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
ROOMS = sorted({path.parent for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE})


def listed(room: Path) -> list[str]:
    """The names that a room's docstring lists: of files, and of rooms within, which end in a stroke."""
    docstring = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    return re.findall(r"^([a-z0-9_]+(?:\.py|/)) ", docstring, re.MULTILINE)


def test_every_module_is_named_in_the_layout_or_in_its_rooms_docstring():
    named = {room: set(listed(room)) for room in ROOMS}
    missing = [str(m) for m in MODULES if f"`{m}`" not in LAYOUT and m.name not in named.get((PACKAGE / m).parent, ())]
    assert missing == []


@pytest.mark.parametrize("room", [str(room.relative_to(PACKAGE)) for room in ROOMS])
def test_a_rooms_docstring_lists_all_that_is_in_it_and_nothing_else(room):
    found = listed(PACKAGE / room)
    there = {path.name for path in (PACKAGE / room).glob("*.py")} - {"__init__.py"}
    there |= {f"{path.parent.name}/" for path in (PACKAGE / room).glob("*/__init__.py")}
    assert sorted(found) == sorted(there)


def test_no_folder_is_a_maze_and_no_class_name_is_defined_twice():
    sizes = {str(room.relative_to(PACKAGE)): len(listed(room)) for room in ROOMS}
    assert {room: size for room, size in sizes.items() if size > 16} == {}
    names = [
        node.name for m in MODULES for node in ast.parse((PACKAGE / m).read_text()).body if type(node) is ast.ClassDef
    ]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_no_two_modules_of_tests_have_one_name():
    """Folders of tests are no packages: whoever came second would get the other's."""
    names = [
        path.name for path in Path(__file__).parent.rglob("*.py") if path.name not in ("__init__.py", "conftest.py")
    ]
    assert [name for name, count in Counter(names).items() if count > 1] == []

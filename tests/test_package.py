import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import gradtide

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parent.parent
ROOMS = {"errors", "launch"}  # that are public names; the second can be called
SOURCES = sorted((ROOT / "src" / "gradtide").rglob("*.py"))


def loaded_after(statement):
    code = f"import sys\n{statement}\nprint(' '.join(sys.modules))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_every_export_is_there_and_listed_once():
    assert sorted(gradtide.__all__) == gradtide.__all__
    assert set(gradtide.__all__) == {*gradtide._EXPORTS, *ROOMS, "__version__"}
    for name in gradtide.__all__:
        assert getattr(gradtide, name) is not None
        assert name in dir(gradtide)


def test_every_room_is_found_by_its_name_and_no_submodule_replaces_a_public_name():
    """Nor may a module be called as a public name of its package is: the import of either would bring the other."""
    source = ROOT / "src" / "gradtide"
    rooms = {p.stem for p in source.glob("[a-z]*.py")} | {p.parent.name for p in source.glob("*/__init__.py")}
    assert {"collective", "errors", "store"} <= rooms
    assert rooms <= set(dir(gradtide))
    code = (
        f"ROOMS, PUBLIC = {sorted(rooms)}, {sorted(ROOMS)}\n"
        + """
import importlib, pkgutil, types
import gradtide

for room in ROOMS:
    assert getattr(gradtide, room).__name__ == "gradtide." + room
assert gradtide.collective.Group is gradtide.Group
assert issubclass(gradtide.errors.PeerLost, gradtide.errors.GradtideError)
assert gradtide.Timeouts(step_s=1).step_s == 1

def public(package):
    return {name: getattr(package, name) for name in getattr(package, "__all__", ())}

packages, count = {"gradtide": public(gradtide)}, 0
for found in pkgutil.walk_packages(gradtide.__path__, "gradtide."):
    try:
        module = importlib.import_module(found.name)
    except ModuleNotFoundError as error:  # what a rival is measured with need not be installed
        assert ".bench." in found.name and not error.name.startswith("gradtide"), error
        continue
    count += 1
    if found.ispkg:
        packages[found.name] = public(module)
assert count > 200
for name, before in packages.items():
    package = importlib.import_module(name)
    modules = {found.name for found in pkgutil.iter_modules(package.__path__)}
    for public_name, value in before.items():
        assert getattr(package, public_name) is value, (name, public_name)
        if name != "gradtide" or public_name not in PUBLIC:
            assert public_name not in modules, (name, public_name)
            assert not isinstance(value, types.ModuleType), (name, public_name)
"""
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_not_there_is_an_attribute_error():
    for name in ("nothing", "_nothing", "__path_hooks__"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
            getattr(gradtide, name)


def test_an_old_name_works_for_one_release_and_names_the_new_ones():
    tensors = [torch.ones(2), torch.ones(2)]
    for all_reduce in (gradtide.all_reduce, gradtide.collective.all_reduce):
        with pytest.warns(DeprecationWarning, match=r"gradtide\.sum_over_devices.*Group\.all_reduce") as warned:
            assert all_reduce(tensors) > 0
        assert warned[0].filename == __file__
    assert torch.equal(tensors[1], torch.full((2,), 4.0))
    assert not {"all_reduce"} & {*gradtide.__all__, *dir(gradtide), *gradtide.collective.__all__}


def test_no_page_and_no_message_spells_consistency_in_another_way():
    for path in (*SOURCES, ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        assert not re.search(r"bounded\((\d+|k)\)", path.read_text()), path


def test_importing_gradtide_or_its_command_line_loads_nothing_heavy():
    for statement in ("import gradtide", "import gradtide.cli.app"):
        loaded = loaded_after(statement)
        assert "gradtide" in loaded
        assert not {"torch", "numpy", "scipy", "matplotlib", "sklearn"} & set(loaded)


def test_the_planner_loads_no_torch():
    assert "torch" not in loaded_after("import gradtide.topology.presets, gradtide.schedule.strategies")


def test_data_parallel_is_there_without_numba():
    assert "numba" not in loaded_after("import gradtide.parallel.data_parallel")


def test_every_package_lists_its_files():
    for path in SOURCES:
        if path.name == "__init__.py" and path.parent.name not in ("gradtide", "strategies"):
            text = ast.get_docstring(ast.parse(path.read_text())) or ""
            listed = re.findall(r"^\s*([\w]+\.py)\s", text, re.MULTILINE)
            there = {p.name for p in path.parent.glob("*.py")} - {"__init__.py"}
            assert set(listed) == there, path


def test_every_path_that_the_layout_page_names_exists():
    text = (ROOT / "docs" / "layout.md").read_text()
    paths = [p for p in re.findall(r"`([\w./-]+)`", text) if "/" in p]
    assert len(paths) > 10
    for path in paths:
        assert (ROOT / path).exists() or (ROOT / "src" / "gradtide" / path).exists(), path


def test_every_link_in_the_pages_leads_somewhere():
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_nothing_in_the_package_can_run_code_that_it_was_sent():
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
                assert not names & {"pickle", "cloudpickle", "dill", "marshal", "shelve"}, path
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("eval", "exec", "torch.load"), f"{path}:{node.lineno}"
                assert "shell" not in {keyword.arg for keyword in node.keywords}, f"{path}:{node.lineno}"


def test_the_version_is_one_and_the_changelog_begins_with_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == gradtide.__version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] in (gradtide.__version__, "Unreleased")

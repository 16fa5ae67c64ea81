import ast
import re
import subprocess
import sys
from pathlib import Path

import gradtide

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "gradtide").rglob("*.py"))


def loaded_after(statement):
    code = f"import sys\n{statement}\nprint(' '.join(sys.modules))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_every_export_is_there_and_listed_once():
    assert sorted(gradtide.__all__) == gradtide.__all__
    assert set(gradtide.__all__) == {*gradtide._EXPORTS, "__version__"}
    for name in gradtide.__all__:
        assert getattr(gradtide, name) is not None
        assert name in dir(gradtide)


def test_importing_gradtide_or_its_command_line_loads_nothing_heavy():
    for statement in ("import gradtide", "import gradtide.cli.app"):
        loaded = loaded_after(statement)
        assert "gradtide" in loaded
        assert not {"torch", "numpy", "scipy", "matplotlib", "sklearn"} & set(loaded)


def test_the_planner_loads_no_torch():
    assert "torch" not in loaded_after("import gradtide.topology.presets, gradtide.schedule.strategies")


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

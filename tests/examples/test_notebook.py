"""examples/notebook.ipynb, run by a kernel; then what cells do that fail, are interrupted, or lose their kernel."""

import base64
import os
import re
import select
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="pip install -c constraints.txt nbclient ipykernel")
nbclient = pytest.importorskip("nbclient", reason="pip install -c constraints.txt nbclient ipykernel")
from jupyter_core.utils import run_sync  # noqa: E402
from nbclient.exceptions import CellExecutionError  # noqa: E402

NOTEBOOK = Path(__file__).parents[2] / "examples/notebook.ipynb"
SLEEP = """
import os, sys, time
def sleep():
    print("pid", os.getpid())
    time.sleep(600)
gradtide.launch(sleep, workers=2)
"""
FAIL = """
def fail():
    if gradtide.rank() == 1:
        raise ValueError("boom")
    time.sleep(600)
gradtide.launch(fail, workers=2)
"""


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    with client.setup_kernel():
        yield client


def shown(cell, mime):
    return [output["data"][mime] for output in cell.outputs if mime in output.get("data", {})]


def written(cell):
    return "".join(output["text"] for output in cell.outputs if output["output_type"] == "stream")


def run(client, source):
    """A cell of its own, as far as it comes."""
    cell = nbformat.v4.new_code_cell(source)
    client.nb.cells.append(cell)
    client.execute_cell(cell, len(client.nb.cells) - 1)
    return cell


def end_of(pid, timeout_s=30):
    """Waits for the end of a process that is not ours."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ended = bool(select.select([handle], [], [], timeout_s)[0])
    os.close(handle)
    return ended


def begin_sleeping(client):
    """Its workers' numbers, when they are under way."""
    client.kc.execute(SLEEP)
    found = []
    while len(found) < 2:
        message = run_sync(client.kc.get_iopub_msg)(timeout=60)
        found += re.findall(r"pid (\d+)", message["content"].get("text", ""))
    return [int(pid) for pid in found]


def test_the_example_runs_and_cells_that_fail_or_are_interrupted_leave_nothing(client):
    for number, cell in enumerate(list(client.nb.cells)):
        client.execute_cell(cell, number)
    cells = {cell.source.splitlines()[-1]: cell for cell in client.nb.cells if cell.cell_type == "code"}
    trained = next(cell for line, cell in cells.items() if line.startswith("history = gradtide.fit"))
    (bar,) = shown(trained, "text/html")
    assert "━" in bar
    assert re.search(r"epoch 8/8  step 20/20  loss \S+  [\d,]+ samples/s  took 0:\d\d:\d\d", bar)
    assert written(trained).count("validation_accuracy") == 8
    for line, heads in {"history": "validation_loss", 'gradtide.plan("dgx1-v100", "100MB")': "busiest link"}.items():
        (html,) = shown(cells[line], "text/html")
        assert f"<th>{heads}</th>" in html
        assert b"<svg" in base64.b64decode(re.search('data:image/svg.xml;base64,([^"]+)', html)[1])
    assert "data:image/svg" in shown(cells["history.plot()"], "text/html")[0]
    assert "of the held-out samples" in written(cells["history.plot()"])
    launched = written(cells["history = gradtide.launch(train, workers=2)"])
    assert {"[0] worker 0 of 2", "[1] worker 1 of 2"} <= set(launched.splitlines())

    pids = begin_sleeping(client)
    run_sync(client.km.interrupt_kernel)()
    reply = run_sync(client.kc.get_shell_msg)(timeout=60)["content"]
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    assert all(map(end_of, pids))
    with pytest.raises(CellExecutionError, match=r"worker 1 failed with exit code 1: ValueError: boom \(\d+.py:3\)"):
        run(client, FAIL)
    assert shown(run(client, "1 + 1"), "text/plain") == ["2"]

    pids = begin_sleeping(client)
    run_sync(client.km.signal_kernel)(9)
    assert all(map(end_of, pids))

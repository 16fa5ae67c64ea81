"""gradtide.launch(function): workers that are forks of the program. In a notebook: tests/examples/test_notebook.py."""

import ctypes
import subprocess
import threading
import warnings

import pytest
import torch

import gradtide
from gradtide.errors import ConfigError
from gradtide.launch.nodes.forked import check_fork
from gradtide.launch.nodes.result import Result
from gradtide.train.position import History
from loaded_python import loaded_python

SCRIPT = """
import os, sys, time, random
import torch, gradtide
from gradtide.errors import WorkerFailed

torch.manual_seed(0); random.seed(0)
x = torch.randn(64, 8, dtype=torch.float64); y = (x[:, :4].sum(1) > 0).long()
large = torch.randn(700, 700) @ torch.randn(700, 700)  # starts the threads of torch's pool
assert gradtide.workers() == 1

def make():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)).double()

def fit(model):
    return gradtide.fit(model, (x, y), validation=(x, y), batch_size=16, epochs=2, lr=0.1)

one, model = make(), make().share_memory()
expected = fit(one)

def train():
    torch.randn(700, 700) @ torch.randn(700, 700)
    return fit(model), torch.get_num_threads(), gradtide.workers(), random.random()

found, threads, workers, drawn = gradtide.launch(train, workers=2, threads=2)
assert (threads, workers, drawn) == (2, 2, random.random()), (threads, workers, drawn)
for name, values in expected.columns().items():
    assert torch.allclose(torch.tensor(values), torch.tensor(found.columns()[name]), atol=1e-10), name
for mine, theirs in zip(one.parameters(), model.parameters()):
    assert torch.allclose(mine, theirs, rtol=0, atol=1e-10)
assert gradtide.workers() == 1  # here nothing has changed
assert gradtide.launch(lambda: sys.exit(), workers=1) is None

def fail(how):
    try:
        gradtide.launch(lambda: how() if gradtide.rank() == 1 else time.sleep(600), workers=2)
    except WorkerFailed as error:
        print("failed:", error)

fail(lambda: {}["nothing"])
fail(lambda: os._exit(3))
fail(lambda: input("what? "))
"""


def test_workers_train_what_one_process_trains_and_their_failures_are_raised(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([loaded_python(), "script.py"], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    line = 1 + SCRIPT.splitlines().index('fail(lambda: {}["nothing"])')
    assert [line for line in done.stdout.splitlines() if line.startswith("failed:")] == [
        f"failed: worker 1 failed with exit code 1: KeyError: 'nothing' (script.py:{line})",
        "failed: worker 1 ended with exit code 3",
        f"failed: worker 1 failed with exit code 1: EOFError: workers have no standard input (script.py:{line + 2})",
    ]
    assert "[1] KeyError: 'nothing'" in done.stderr
    begun = done.stderr.splitlines()
    assert all("script.py" in begun[at + 1] for at, line in enumerate(begun) if "Traceback" in line)


@pytest.mark.quick
def test_what_is_plain_is_returned_as_it_was_and_of_the_rest_a_warning():
    history = History(loss=[0.5, float("inf")], accuracy=[None, 1.0])
    for value in (None, 3, [1, (2.5, "a")], {"a": {1: b"x"}, ("b",): []}, {"history": history}):
        with Result("train") as result:
            result.keep(1, "another worker's")
            result.keep(0, value)
            assert result.read() == value
    for value in (torch.ones(1), {1, 2}, [object()], 2**70):
        with Result("train") as result:
            result.keep(0, value)
            with pytest.warns(UserWarning, match="train returned what can't be handed to this process"):
                found = result.read()
            assert found is None
    with Result("train") as result, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert result.read() is None  # it ended before it could return


@pytest.mark.quick
def test_where_a_fork_could_not_compute_it_is_refused_in_one_line(monkeypatch):
    with pytest.raises(ConfigError, match=r"takes a function, not a int; write launch\(train\)"):
        gradtide.launch(3)
    with pytest.raises(ConfigError, match="0 workers can't train anything"):
        gradtide.launch(print, workers=0)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(ConfigError, match="this process is a worker of a job already; call the function itself"):
        gradtide.launch(print)


def test_another_thread_than_the_main_one_and_threads_of_autograd_are_refused():
    refused = []

    def ask():
        with pytest.raises(ConfigError) as caught:
            check_fork()
        refused.append(str(caught.value))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    named, over = threading.Event(), threading.Event()

    def wait():
        ctypes.CDLL(None).prctl(15, b"pt_autograd_0", 0, 0, 0)  # PR_SET_NAME: what torch calls its own
        named.set()
        over.wait(60)

    thread = threading.Thread(target=wait)
    thread.start()
    named.wait(60)
    ask()
    over.set()
    thread.join()
    assert "is for a program's main thread" in refused[0]
    assert "autograd has started threads for this machine's devices, and forks lack them" in refused[1]

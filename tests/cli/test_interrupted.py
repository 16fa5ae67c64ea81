"""Ctrl-C and SIGTERM at moments that a clock would rarely hit: one line, the exit code of that signal, nothing left."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from gradtide.cli.stopping import Signals

# Runs `gradtide` with these words, and sends itself the signal when this module is about to be imported.
PROGRAM = """
import os, sys
from gradtide.cli import main

number, when, *words = sys.argv[1:]

class AtImport:
    def find_spec(self, name, path=None, target=None):
        if name == when:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), int(number))

sys.meta_path.insert(0, AtImport())
sys.argv = ["gradtide", *words]
main()
"""
EARLY = " before anything was started"
LATER = "; nothing is left running"
SCRIPT = "import time; time.sleep(600)"
MOMENTS = [
    ("run script.py", "typer", EARLY),
    ("bench train", "gradtide.cli.bench.app", EARLY),
    ("run script.py", "gradtide.launch", LATER),
    ("run --servers 2 script.py", "gradtide.store.local.servers", LATER),  # the process that makes workers is there
    ("run --servers 2 script.py", "torch", LATER),
    ("train --workers 2 --servers 2", "gradtide.cli.train.report", LATER),
    ("train", "torch.nn", LATER),  # in the middle of what torch imports
    ("chaos", "numpy", LATER),
    ("restore nowhere", "msgspec", LATER),
    ("bench store", "gradtide.bench.report", LATER),
    ("plan dgx2 --size 160MB", "numpy", LATER),
]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
@pytest.mark.parametrize(("words", "when", "left"), MOMENTS)
def test_a_signal_before_anything_runs_is_one_line_and_leaves_no_process(tmp_path, words, when, left, number):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-c", PROGRAM, str(int(number)), when, *words.split()]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    out, err = process.communicate(timeout=60)  # also waits for whoever else has these pipes
    what = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
    assert err == f"gradtide: {what}{left}\n"
    assert (out, process.returncode) == ("", 128 + number)


def swallow_then_close(closed):
    with Signals() as signals:
        signals.began = True
        with contextlib.suppress(KeyboardInterrupt):  # as a module that is half imported
            os.kill(os.getpid(), signal.SIGINT)
        try:
            signal.pause()
        finally:
            signal.pause()  # the next one finds us closing, and lets us
            closed.append(True)


def test_an_interrupt_that_is_swallowed_comes_again_but_not_while_things_are_closed():
    closed = []
    with pytest.raises(KeyboardInterrupt):
        swallow_then_close(closed)
    assert closed == [True]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)

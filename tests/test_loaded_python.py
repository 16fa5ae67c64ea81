"""The Python that tests start jobs with does what a fresh one does."""

import json
import os
import signal
import subprocess
import sys

from loaded_python import loaded_python

LOOK = """
import json, os, random, sys
import numpy, torch
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "name": __name__, "environment": dict(os.environ),
    "threads": torch.get_num_threads(), "tasks": len(os.listdir("/proc/self/task")), "stdin": sys.stdin.read(),
    "main": sys.modules["__main__"].__dict__ is globals(), "open": os.listdir("/proc/self/fd"),
    "drawn": [numpy.random.rand(), random.random(), torch.rand(1).item()],
}))
"""


def seen(python, *arguments, **options):
    done = subprocess.run([python, *arguments], capture_output=True, text=True, check=True, input="said", **options)
    return json.loads(done.stdout)


def test_a_program_finds_what_it_would_find_in_a_fresh_python(tmp_path):
    path = tmp_path / "folder" / "look.py"
    path.parent.mkdir()
    path.write_text(LOOK)
    reading, writing = os.pipe()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{tmp_path}/here", "SOME": "thing"}
    options = {"cwd": tmp_path, "env": environment, "pass_fds": (reading,)}
    for arguments in (("folder/look.py", "-m", "x y"), ("-c", LOOK, "a"), ("-u", "-m", "folder.look", "--lr")):
        fresh, loaded, again = (
            seen(python, *arguments, **options) for python in (sys.executable, *[loaded_python()] * 2)
        )
        for drawn in zip(*(each.pop("drawn") for each in (fresh, loaded, again)), strict=True):
            assert len(set(drawn)) == 3
        assert loaded == fresh
    os.close(reading)
    os.close(writing)


def test_it_ends_as_a_fresh_python_does():
    for code, status in (("raise SystemExit(3)", 3), ("1 / 0", 1), ("import os; os.kill(os.getpid(), 9)", -9)):
        assert subprocess.run([loaded_python(), "-c", code], capture_output=True).returncode == status
    late = "import atexit; atexit.register(print, 'late'); print('early', end=' ')"
    assert subprocess.check_output([loaded_python(), "-c", late], text=True) == "early late\n"


def test_signals_reach_it_and_it_ends_when_its_program_is_killed():
    code = "import time\ntry:\n    print(flush=True)\n    time.sleep(600)\nexcept KeyboardInterrupt: print('heard')"
    for number, said in ((signal.SIGINT, "heard\n"), (signal.SIGKILL, "")):
        with subprocess.Popen([loaded_python(), "-c", code], stdout=subprocess.PIPE, text=True) as process:
            process.stdout.readline()
            process.send_signal(number)
            assert process.stdout.read() == said  # to its end: nobody can write any more

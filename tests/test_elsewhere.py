"""On macOS and Windows the planner works, and the rest says in one line that it needs Linux.

There is one machine to test on: a process of its own plays the other ones. What Python does not have there is taken
away, once the libraries that we import (which are others there) are loaded.
"""

import json
import subprocess
import sys

import pytest

PLAY = """
import contextlib, importlib.abc, io, json, os, signal, socket, sys
import numpy, rich.console, scipy.optimize, typer

PLATFORM = sys.argv[1]
LACKS = {
    "darwin": {
        os: "memfd_create pidfd_open sched_getaffinity sched_setaffinity eventfd splice posix_fallocate",
        socket: "SO_PEERCRED TCP_USER_TIMEOUT TCP_QUICKACK SOCK_CLOEXEC SOCK_NONBLOCK",
    },
    "win32": {
        os: "memfd_create pidfd_open sched_getaffinity sched_setaffinity fork getuid setsid killpg getloadavg sysconf "
        "register_at_fork eventfd preadv pwritev pread pwrite",
        socket: "AF_UNIX SO_PEERCRED TCP_USER_TIMEOUT send_fds recv_fds MSG_DONTWAIT SCM_RIGHTS",
        signal: "SIGKILL SIGHUP SIGUSR1 SIGCHLD SIGSTOP SIGCONT SIGPIPE SIGALRM setitimer",
    },
}[PLATFORM]
NO_MODULES = {"fcntl", "resource", "termios", "grp", "pwd"} if PLATFORM == "win32" else set()

class Nowhere(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in NO_MODULES or name == "torch":  # nothing that is tried here needs torch
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nowhere())
for name in NO_MODULES:
    sys.modules.pop(name, None)
for module, names in LACKS.items():
    for name in names.split():
        delattr(module, name)
sys.platform = PLATFORM

def command(words):
    from gradtide.cli import main
    sys.argv, code, out, err = ["gradtide", *words.split()], 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return code, out.getvalue(), err.getvalue()

def python(code):
    try:
        exec(code, {})
    except Exception as error:
        return 2, "", f"{type(error).__name__}: {error}"
    return 0, "", ""

asked = json.load(sys.stdin)
print(json.dumps({words: (command if words.startswith("gradtide ") else python)(words.removeprefix("gradtide "))
                  for words in asked}))
"""
WORKS = [
    "gradtide plan dgx1-v100 --size 160MB",
    "gradtide plan ethernet-cluster:2x2@25 --size 1MB --json",
    "gradtide topology list",
    "gradtide topology show dgx1-v100",
    "gradtide --version",
    "gradtide --help",
    "gradtide run -h",
    "import gradtide",
    "import gradtide; assert gradtide.plan('dgx1-v100', size='160MB').explain()",
    "import gradtide.topology, gradtide.schedule, gradtide.draw",
]
NEEDS_LINUX = {
    "gradtide run --workers 2 train.py": "gradtide: gradtide run",
    "gradtide train --devices 2": "gradtide: gradtide train",
    "gradtide serve unix:/tmp/s": "gradtide: gradtide serve",
    "gradtide topology probe": "gradtide: gradtide topology probe",
    "import gradtide; gradtide.fit": "ConfigError: gradtide.fit",
    "import gradtide; gradtide.local_servers": "ConfigError: gradtide.local_servers",
    "from gradtide import Group": "ConfigError: gradtide.Group",
    "from gradtide.store import connect": "ConfigError: gradtide.store.connect",
    "import gradtide.transport.connection": "ConfigError: gradtide.transport",
}


@pytest.mark.quick
@pytest.mark.parametrize(("platform", "called"), [("darwin", "macOS"), ("win32", "Windows")])
def test_the_planner_works_and_the_rest_needs_linux(platform, called):
    asked = json.dumps([*WORKS, *NEEDS_LINUX])
    done = subprocess.run([sys.executable, "-c", PLAY, platform], input=asked, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {words: found[words][2] for words in WORKS if found[words][0]} == {}
    assert "rings" in found[WORKS[0]][1]
    for words, begins in NEEDS_LINUX.items():
        code, out, err = found[words]
        assert (code, out) == (2, ""), words
        assert err.strip().startswith(f"{begins} needs Linux, and this is {called}; here the planner works"), err
        assert len(err.strip().splitlines()) == 1

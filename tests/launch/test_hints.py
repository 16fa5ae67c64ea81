"""What a newcomer is told: options in the wrong place, servers that nothing uses or that died; and names in ps."""

import os
import signal
from pathlib import Path

import pytest
from runs import run, wait_until

from gradtide.launch.target import Target, misplaced
from gradtide.store.local.servers import local_servers


def test_names_in_ps_and_hints_on_options_and_servers(script):
    path = script("""
        from pathlib import Path
        print(Path("/proc/self/comm").read_text().strip(), Path("/proc/self/cmdline").read_text().rstrip(chr(0)))
    """)
    done = run("--servers", 1, path, "--workers", 2)
    assert done.code == 0, done.err
    assert done.out.startswith("[0] worker-0 gradtide worker-0: ")
    assert done.out.endswith("script.py --workers 2\n")
    assert "--workers stands behind" in done.err
    assert "put nothing on the servers" in done.err


@pytest.mark.quick
@pytest.mark.parametrize(
    ("text", "arguments", "found"),
    [
        ("print(1)", ("--workers", "2"), "--workers"),
        ("print(1)", ("--lr", "1", "--min-workers=2"), "--min-workers"),
        ("parser.add_argument('--workers')", ("--workers", "2"), ""),
        ("import fire\ndef main(min_workers: int): ...", ("--min-workers", "2"), ""),
        ("print(gradtide.workers())", ("--workers", "2"), "--workers"),
        ("print(1)", ("--lr", "2"), ""),
    ],
)
def test_an_option_is_misplaced_where_the_script_does_not_know_it(script, text, arguments, found):
    assert misplaced(Target(str(script(text)), arguments), ("--workers", "--min-workers")) == found


def test_a_server_that_died_is_told_of_and_has_its_name_again(capfd):
    with local_servers(2, replicas=1) as servers:
        before = {process.name: process.pid for process in servers.processes}
        os.kill(before["server-1"], signal.SIGKILL)
        wait_until(lambda: {p.name: p.pid for p in servers.processes}.get("server-1", 0) not in (0, before["server-1"]))
        (again,) = (process.pid for process in servers.processes if process.name == "server-1")
        wait_until(lambda: Path(f"/proc/{again}/comm").read_text() == "server-1\n")
    assert "gradtide: server-1 was killed by SIGKILL; another is started in its place" in capfd.readouterr().err

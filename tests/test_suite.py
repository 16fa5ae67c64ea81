"""How the tests themselves are run: nothing is left behind, no test is run twice or not at all."""

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import lanes

HERE = Path(__file__).parent
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def folder(tmp_path):
    """A suite of its own, with our plugins; says in a file of that name what was started in it."""
    (tmp_path / "conftest.py").write_text(
        'import leftovers\npytest_plugins = ["lanes", "leftovers"]\nleftovers.PATIENCE_S = 0.5\n'
    )
    (tmp_path / "starting.py").write_text(
        textwrap.dedent(f"""
            import pathlib, subprocess
            def start(**options):
                process = subprocess.Popen({SLEEP}, **options)
                with (pathlib.Path(__file__).parent / "started").open("a") as file:
                    print(process.pid, file=file)
                return process
            """)
    )
    return tmp_path


def write(folder, text, name="test_it.py"):
    (folder / name).write_text(
        "import os, signal, subprocess, sys, pytest\nfrom starting import start\n" + textwrap.dedent(text)
    )


def command(folder, *options):
    return [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
        "--rootdir",
        str(folder),
        *options,
        str(folder),
    ]


def run(folder, *options, program=(), **other):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), str(folder)]), "CI": ""}
    done = subprocess.run(
        [*program, *command(folder, *options)], env=environment, capture_output=True, text=True, timeout=60, **other
    )
    return done.returncode, done.stdout + done.stderr


def still_run(folder):
    pids = (folder / "started").read_text().split()
    assert pids
    return [pid for pid in pids if "sleep(600)" in command_of(pid)]


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_a_test_that_leaves_a_process_behind_fails_and_the_process_is_gone(folder):
    write(
        folder,
        """
        def test_that_ends_what_it_starts():
            process = start()
            process.kill()
            process.wait()

        def test_that_leaves_one():
            test_that_leaves_one.kept = start()

        def test_that_fails_and_leaves_one_that_has_gone_off_on_its_own():
            if os.fork() == 0:
                start(start_new_session=True)
                os._exit(0)
            os.wait()
            assert False

        def test_that_comes_after_them():
            pass
        """,
    )
    code, said = run(folder)
    assert code == 1
    assert "1 failed, 3 passed" in said
    assert said.count("1 processes were left behind, and killed:") == 2
    assert "time.sleep(600)" in said
    assert still_run(folder) == []


def test_what_a_shared_fixture_started_may_stay_until_its_tests_are_done(folder):
    write(
        folder,
        """
        @pytest.fixture(scope="module")
        def sleeper():
            return start()

        def test_one(sleeper):
            assert sleeper.poll() is None

        def test_two(sleeper):
            assert sleeper.poll() is None
        """,
    )
    assert run(folder)[0] == 0
    assert still_run(folder) == []


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), signal.SIGKILL)", "os.kill(os.getppid(), signal.SIGKILL)"])
def test_nothing_is_left_when_pytest_or_what_runs_it_is_killed(folder, how):
    write(
        folder,
        f"""
        import time

        def test_that_does_not_end():
            start(start_new_session=True)
            {how}
            time.sleep(600)
        """,
    )
    code = (
        "import sys, suite; suite.adopt_orphans(); p = suite.Program(*sys.argv[1:]); p.process.wait(); suite.end_all()"
    )
    run(folder, program=[sys.executable, "-c", code])
    assert still_run(folder) == []


def test_what_the_shell_has_us_ignore_is_not_ignored_by_what_tests_start(folder):
    write(
        folder,
        """
        def test_signals():
            code = "import signal; print([int(signal.getsignal(n) is signal.SIG_IGN) for n in (1, 2, 3)])"
            said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
            assert said.strip() == "[0, 0, 0]"
            os.kill(os.getpid(), signal.SIGHUP)
        """,
    )

    def ignore():
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)

    code, said = run(folder, preexec_fn=ignore)
    assert code == 0, said


def test_two_lanes_run_every_test_once(folder):
    for number in range(8):
        write(
            folder,
            """
            @pytest.mark.parametrize("number", range(5))
            def test_it(request, number):
                with open("ran", "a") as file:
                    print(request.node.nodeid, file=file)
            """,
            f"test_{number}.py",
        )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), str(folder)]), "CI": ""}
    both = [
        subprocess.Popen(command(folder, "--lane=taken"), cwd=folder, env=environment, stdout=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [lane.wait(60) for lane in both] == [0, 0]
    ran = (folder / "ran").read_text().splitlines()
    assert sorted(ran) == [f"test_{file}.py::test_it[{number}]" for file in range(8) for number in range(5)]


def test_quick_tests_touch_every_room():
    """A room's own folder of tests has some, or they import it from elsewhere."""
    quick = [(path, text) for path in HERE.rglob("test_*.py") if "mark.quick" in (text := path.read_text())]
    rooms = [path.parent.name for path in (HERE.parent / "src" / "gradtide").glob("*/__init__.py")]
    assert len(rooms) > 10
    for room in rooms:
        assert any(
            path.parent.name == room or re.search(rf"(from|import) gradtide\.{room}", text) for path, text in quick
        ), room


def test_the_files_that_are_taken_first_are_there():
    for names in lanes.LONGEST:
        for name in names.split():
            assert (HERE / name).exists(), name

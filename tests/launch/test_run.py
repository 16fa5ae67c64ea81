"""`gradtide run` with real processes; without torch loaded ahead, which none of this needs."""

import json
import re
import signal
import subprocess

import pytest
from runs import run, start

from gradtide.launch.launcher import Launcher
from gradtide.launch.spec import Spec
from gradtide.launch.target import Target

FAST = ("--no-preload",)


def lines_of(text, rank):
    return [line.removeprefix(f"[{rank}] ") for line in text.splitlines() if line.startswith(f"[{rank}] ")]


@pytest.mark.quick
def test_every_line_is_marked_by_its_rank_and_goes_where_the_worker_sent_it(script):
    path = script("""
        import os, sys
        print("out of", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
        print("to stderr", file=sys.stderr)
        print("no end of line", end="")
    """)
    done = run(*FAST, "--workers", 3, path)
    assert done.code == 0
    for rank in range(3):
        assert lines_of(done.out, rank) == [f"out of {rank} of 3", "no end of line"]
        assert lines_of(done.err, rank) == ["to stderr"]
    assert len(done.out.splitlines()) == 6
    assert "\033" not in done.out + done.err
    assert re.search(r"^gradtide: job run-\w+: 3 workers with \d+ threads? each, \d+ cores$", done.err, re.MULTILINE)


def test_ten_megabytes_of_each_of_four_workers_arrive_whole_and_unmixed(script):
    path = script("""
        import os
        filling = os.environ["RANK"] * 90
        for number in range(105_000):
            print(f"{number:07d}", filling)
    """)
    done = run(*FAST, "--workers", 4, path)
    assert done.code == 0
    for rank in range(4):
        expected = [f"{number:07d} {str(rank) * 90}" for number in range(105_000)]
        assert lines_of(done.out, rank) == expected
    assert len(done.out.splitlines()) == 4 * 105_000


def test_standard_output_and_error_keep_their_order_where_both_go_to_one_place(script):
    path = script("""
        import sys
        for number in range(200):
            print(number, file=sys.stderr if number % 3 else sys.stdout)
    """)
    done = run(*FAST, path, stderr=subprocess.STDOUT)
    assert lines_of(done.out, 0) == [str(number) for number in range(200)]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("pass", 0),
        ("sys.exit(7)", 7),
        ("sys.exit('said why')", 1),
        ("raise ValueError", 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("os.abort()", 134),
    ],
)
def test_the_exit_code_is_that_of_the_worker_that_failed(script, statement, code):
    path = script(f"""
        import os, signal, sys, time
        if os.environ["RANK"] == "1":
            {statement}
        elif {code}:
            time.sleep(60)
    """)
    done = run(*FAST, "--workers", 2, path)
    assert done.code == code
    if "said why" in statement:
        assert lines_of(done.err, 1) == ["said why"]


def test_the_first_failures_traceback_comes_first_and_has_only_the_scripts_frames(script):
    path = script("""
        import os, time
        from gradtide.errors import PeerLost

        rank = int(os.environ["RANK"])

        def train():
            raise ValueError("boom")

        if rank == 2:
            train()
        if rank == 1:
            raise PeerLost("rank 2 died")
        time.sleep(60)
    """)
    done = run(*FAST, "--workers", 3, path)
    shown = done.err.splitlines()[1:]
    assert shown[:5] == [
        "[2] Traceback (most recent call last):",
        f'[2]   File "{path}", line 11, in <module>',
        "[2]     train()",
        f'[2]   File "{path}", line 8, in train',
        '[2]     raise ValueError("boom")',
    ]
    assert shown[5] == "[2] ValueError: boom"
    first = "gradtide: worker 2 failed with exit code 1: ValueError: boom (script.py:8)"
    fell = "gradtide: worker 1 fell after it: PeerLost: rank 2 died (script.py:13)"
    assert shown[6:] in ([first], [first, fell, first])


# How rank 1 ends, the exit code, and what is said first of all.
ENDS = {
    "sys.exit(3)": (3, "ended with exit code 3 (script.py:16); its last line: step 4"),
    "sys.exit('no data\\nat all')": (1, "ended with exit code 1: no data (script.py:16); its last line: at all"),
    "os.kill(os.getpid(), signal.SIGSEGV)": (139, "was killed by SIGSEGV (exit code 139); its last line: step 4"),
}


@pytest.mark.parametrize("statement", ENDS)
def test_the_first_failure_is_said_first_and_those_that_fell_after_it_in_a_line_each(script, statement):
    """The others notice that rank 1 has left before it is gone, which after sys.exit(3) takes more than a second."""
    code, first = ENDS[statement]
    path = script(f"""
        import atexit, os, signal, sys, time
        from pathlib import Path
        from gradtide.errors import PeerLost
        here, rank = Path(__file__).parent, os.environ["RANK"]
        def leave():
            (here / "left").touch()
            time.sleep(1.3 if "(3)" in {statement!r} else 0)
        def wait_for(*names):
            while not all((here / name).exists() for name in names):
                time.sleep(0.01)
        if rank == "1":
            print("step 4")
            wait_for("0", "2")
            atexit.register(leave) if "exit" in {statement!r} else leave()
            {statement}
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (here / rank).touch()
        wait_for("left")
        raise PeerLost("rank 1 died")
    """)
    done = run(*FAST, "--workers", 3, path)
    assert done.code == code
    told = [line for line in done.err.splitlines() if line.startswith("gradtide: ")][1:]
    assert told[0] == told[-1] == f"gradtide: worker 1 {first}"
    others = [f"gradtide: worker {rank} fell after it: PeerLost: rank 1 died (script.py:20)" for rank in (0, 2)]
    assert sorted(told[1:-1]) == others
    assert "Traceback" not in done.err


def test_a_failure_besides_the_first_is_told_in_a_line(script):
    path = script("""
        import os, signal, time
        from pathlib import Path
        here, rank = Path(__file__).parent, int(os.environ["RANK"])
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        (here / f"ready{rank}").touch()
        while not (here / f"ready{1 - rank}").exists():
            time.sleep(0.01)
        {}[rank]
    """)
    done = run(*FAST, "--workers", 2, path)
    assert done.err.count("Traceback") == 1
    told = done.err.splitlines()[-3:]
    ranks = [int(line.split()[2]) for line in told]
    assert ranks[0] == ranks[2] != ranks[1]
    assert told[1] == f"gradtide: worker {ranks[1]} failed as well: KeyError: {ranks[1]} (script.py:9)"


def test_an_error_of_gradtides_is_shown_without_its_way_through_gradtide(script):
    path = script("""
        from gradtide.launch.target import Target, check_target
        try:
            check_target(Target("nowhere.py"), [])
        except Exception as error:
            raise ValueError("own") from error
    """)
    done = run(*FAST, path)
    assert "target.py" in done.err, "it is the user's ValueError that is shown, and all of it"
    path.write_text(path.read_text().replace("ValueError(", "type(error)("))
    done = run(*FAST, path)
    assert "target.py" not in done.err
    shown = [line for line in lines_of(done.err, 0) if line.startswith("gradtide.errors.ConfigError: ")]
    assert len(shown) == 2, "what it was raised from is shown as well"


def test_a_mistake_that_all_workers_make_is_shown_once(script):
    done = run(*FAST, "--workers", 4, script("print(1 / 0)"))
    assert done.err.count("Traceback") == 1
    assert done.err.count("ZeroDivisionError") == 2  # in the traceback, and behind it
    assert done.code == 1


def test_a_scripts_own_hook_for_exceptions_is_called_with_its_own_frames(script):
    path = script("""
        import sys, traceback
        sys.excepthook = lambda kind, value, trace: print("my hook:", value, len(traceback.extract_tb(trace)))
        raise ValueError("boom")
    """)
    done = run(*FAST, path)
    assert lines_of(done.out, 0) == ["my hook: boom 1"]
    assert "Traceback" not in done.err
    assert done.code == 1


def test_an_error_that_is_too_long_to_tell_is_shortened(script):
    done = run(*FAST, script("raise ValueError('x' * 10_000_000)"))
    assert done.code == 1
    assert "characters left out" in done.err
    assert len(done.err) < 100_000


def test_a_worker_that_dies_is_started_again_as_the_same_rank(script):
    path = script("""
        import json, os, sys
        from gradtide.environment import read_environment
        found = read_environment()
        told = [os.environ["GRADTIDE_ELASTIC"] == "1", int(os.environ["GRADTIDE_MIN_WORKERS"])]
        print(json.dumps([found.launch.rank, found.incarnation, *told]))
        if found.launch.rank == 1 and found.incarnation < 2:
            sys.exit(9)
    """)
    done = run(*FAST, "--workers", 2, "--max-restarts", 2, path)
    assert done.code == 0
    assert [json.loads(line) for line in lines_of(done.out, 1)] == [[1, n, True, 2] for n in range(3)]
    assert [json.loads(line) for line in lines_of(done.out, 0)] == [[0, 0, True, 2]]
    assert "restart 2 of 2" in done.err
    assert run(*FAST, "--workers", 2, "--max-restarts", 1, path).code == 9


def test_the_job_goes_on_without_a_dead_worker_if_enough_live(script, tmp_path):
    path = script("""
        import os, signal, sys, time
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
        print("done")
    """)
    sign = tmp_path / "go on"
    process = start(*FAST, "--workers", 3, "--min-workers", 2, path, sign)
    told = []
    while not told or "goes on without worker 1: 2 left, 2 needed" not in told[-1]:
        told.append(process.stderr.readline().decode())
        assert told[-1]
    sign.touch()
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert sorted(out.decode().splitlines()) == ["[0] done", "[2] done"]
    assert "gradtide: done, without worker 1" in err.decode()


def test_standard_input_is_not_shared(script):
    path = script("import sys; print(repr(sys.stdin.read()))")
    process = start(*FAST, "--workers", 2, path, stdin=subprocess.PIPE)
    out, _ = process.communicate(b"for nobody", timeout=30)
    assert sorted(out.decode().splitlines()) == ["[0] ''", "[1] ''"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--workers", "0", "SCRIPT"), "at least one"),
        (("--workers", "2", "--min-workers", "3", "SCRIPT"), "--min-workers 3"),
        (("--max-restarts", "-1", "SCRIPT"), "--max-restarts -1"),
        (("--threads", "0", "SCRIPT"), "--threads 0"),
        (("--servers", "-1", "SCRIPT"), "--servers -1"),
        (("--grace", "-1", "SCRIPT"), "--grace -1"),
        (("--step-timeout", "0", "SCRIPT"), "--step-timeout 0"),
        (("nowhere.py",), "no script nowhere.py"),
        (("/",), "is a folder"),
        (("/bin/sh",), "not a Python file"),
        (("-m", "no_such_module"), "no module named 'no_such_module'"),
    ],
)
def test_every_mistake_is_one_line_and_exit_code_2(script, arguments, words):
    path = script("pass")
    done = run(*(str(path) if word == "SCRIPT" else word for word in arguments))
    assert done.code == 2
    assert done.out == ""
    assert len(done.err.splitlines()) == 1
    assert words in done.err


def test_what_python_can_not_read_is_said_before_anything_starts(script):
    done = run("--workers", 4, script("print('fine')\nx = (\n"))
    assert done.code == 1
    assert "SyntaxError: '(' was never closed" in done.err
    assert 'script.py", line 2' in done.err
    assert done.out == ""


def test_a_module_that_is_not_there_after_all_is_a_traceback_of_the_scripts(script, tmp_path):
    script("", name="package.py")
    done = run(*FAST, "-m", "package.missing", cwd=tmp_path)
    assert done.code == 1
    assert "gradtide/launch" not in done.err
    assert "ModuleNotFoundError" in done.err.splitlines()[-1]


@pytest.mark.parametrize(("options", "seconds"), [((), 1800.0), (("--step-timeout", 7.5), 7.5)])
def test_a_step_waits_for_a_worker_that_lives_as_long_as_the_command_says(script, options, seconds):
    path = script("""
        import gradtide
        from gradtide.timeouts import default_timeouts
        print(default_timeouts() == gradtide.Timeouts(step_s=default_timeouts().step_s), default_timeouts().step_s)
    """)
    done = run(*FAST, "--workers", 2, *options, path)
    assert (done.code, sorted(done.out.splitlines())) == (0, [f"[{rank}] True {seconds}" for rank in range(2)])


def test_a_worker_that_fails_has_not_finished_for_those_who_wait_for_it(script):
    path = script("""
        import os, sys
        from gradtide.collective import Group
        from gradtide.errors import PeerLost

        rank = int(os.environ["RANK"])
        if rank < 2:
            Group.join(f"{os.environ['GRADTIDE_JOB']}-{rank}", 0, 2).barrier()
            sys.exit(3) if rank else open("/nowhere/at/all")
        for other in range(2):
            group = Group.join(f"{os.environ['GRADTIDE_JOB']}-{other}", 1, 2)
            group.barrier()
            try:
                group.barrier()
            except PeerLost as error:
                print(str(error).partition(";")[0])
    """)
    done = run("--workers", 3, "--min-workers", 1, path)
    assert lines_of(done.out, 2) == 2 * ["rank 0 died or left during barrier"], done.err


def test_a_job_that_never_runs_does_not_wait_for_what_is_loaded_for_it():
    """So a mistake that is found meanwhile is told at once, and not when torch is there."""
    with Launcher(Spec(target=Target("script.py"), workers=2, preload="gradtide.parallel.preload")) as launcher:
        pass
    assert launcher._node.process.returncode == -signal.SIGKILL

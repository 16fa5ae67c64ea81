"""Signals and kills: everybody is told, and nothing is left behind."""

import os
import pty
import signal
import sys
import time

import pytest
from runs import finish, lives, read_lines, run, start, wait_until

from clock import at_most

FAST = ("--no-preload",)
GONE_S = 2.0
PATIENT = ("--grace", "20")  # on a busy machine a worker may take longer to answer a signal than it is given
# Each worker has a child, and a child that has moved to a session of its own. All write their pids, then sleep.
FAMILY = """
    import os, subprocess, sys, time
    sleep = [sys.executable, "-c", "import time; time.sleep(300)"]
    children = [subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)]
    print(os.getpid(), os.getppid(), *(child.pid for child in children))
    time.sleep(300)
"""
STUBBORN = """
    import os, signal, time
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: print("got", number))
    print(os.getpid())
    while True:
        time.sleep(300)
"""


def pids_in(lines):
    return {int(word) for line in lines for word in line.split()[1:]}


def gone_after(pids):
    return wait_until(lambda: not any(map(lives, pids)), 10)


@pytest.mark.timing
def test_after_ctrl_c_all_are_gone_in_two_seconds_even_the_stubborn(script):
    number = signal.SIGINT
    process = start(*FAST, "--workers", 2, script(STUBBORN))
    pids = pids_in(read_lines(process.stdout, 2))
    process.send_signal(number)
    assert gone_after([*pids, process.pid]) < at_most(GONE_S)
    done = finish(process)
    assert done.code == 128 + number
    assert sorted(done.out.splitlines()) == [f"[0] got {number:d}", f"[1] got {number:d}"]
    assert done.err.splitlines()[-1] == f"gradtide: ended by {signal.Signals(number).name}"


@pytest.mark.timing
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_reach_every_worker_and_give_the_exit_code(script, number):
    process = start(*FAST, "--workers", 2, script(FAMILY))
    pids = pids_in(read_lines(process.stdout, 2))
    process.send_signal(number)
    assert gone_after([*pids, process.pid]) < at_most(GONE_S)
    assert finish(process).code == 128 + number


def test_ctrl_c_on_a_terminal_reaches_every_worker_once_and_marks_are_coloured(script):
    path = script("""
        import time
        try:
            print("here")
            while True:  # a signal that comes just before one sleep is Python's to see after it
                time.sleep(0.05)
        except KeyboardInterrupt:
            print("interrupted")
            time.sleep(0.2)  # a second KeyboardInterrupt would end it here
            print("tidied up")
    """)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.environ.pop("NO_COLOR", None)
        command = [sys.executable, "-m", "gradtide", "run", *FAST, *PATIENT, "--workers", "2", str(path)]
        os.execv(sys.executable, command)
    shown = b""
    while shown.count(b"here") < 2:
        shown += os.read(terminal, 4096)
    os.write(terminal, b"\x03")
    started_s = time.monotonic()
    _, status = os.waitpid(pid, 0)
    took_s = time.monotonic() - started_s
    try:
        while piece := os.read(terminal, 4096):
            shown += piece
    except OSError:  # the other end is closed
        pass
    os.close(terminal)
    assert shown.count(b"interrupted") == shown.count(b"tidied up") == 2, (took_s, status)
    assert took_s < at_most(GONE_S)
    assert b"\033[36m[0]\033[0m here" in shown
    assert os.waitstatus_to_exitcode(status) == 0  # every worker took it well


def test_a_worker_hears_ctrl_c_though_who_started_the_job_has_blocked_it(script):
    path = script("import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))")
    done = finish(start(path, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])))
    assert done.out == "[0] False\n", done.err


def test_where_each_worker_was_when_interrupted_is_said_in_a_line(script):
    path = script("import time\nprint(), [time.sleep(0.05) for _ in range(6000)]\n")
    process = start(*FAST, *PATIENT, "--workers", 2, path)
    read_lines(process.stdout, 2)
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert done.code == 130
    told = done.err.splitlines()[1:]
    assert sorted(told[:2]) == [f"gradtide: worker {rank}: KeyboardInterrupt (script.py:2)" for rank in (0, 1)]
    assert told[2:] == ["gradtide: ended by SIGINT"]


def test_a_signal_while_torch_is_being_loaded_ends_it_at_once(script):
    process = start("--workers", 2, script("print('never')"))
    assert b"2 workers" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    started_s = time.monotonic()
    done = finish(process)
    assert time.monotonic() - started_s < at_most(GONE_S)
    assert (done.code, done.out) == (130, ""), done.err


@pytest.mark.quick
def test_nothing_is_left_when_the_launcher_is_killed(script):
    process = start(*FAST, "--workers", 2, script(FAMILY))
    pids = pids_in(read_lines(process.stdout, 2))
    assert len(pids) == 7  # two workers, their fork server, four children
    process.kill()
    assert gone_after(pids) < at_most(GONE_S)
    finish(process)


def test_no_worker_is_left_when_the_process_that_makes_them_is_killed(script):
    process = start(*FAST, "--workers", 2, script("import os, time\nprint(os.getpid(), os.getppid())\ntime.sleep(300)"))
    lines = read_lines(process.stdout, 2)
    os.kill(int(lines[0].split()[-1]), signal.SIGKILL)
    assert gone_after(pids_in(lines)) < at_most(GONE_S)
    done = finish(process)
    assert done.code == 1
    assert "the process that makes workers" in done.err


def test_a_worker_that_is_killed_is_named_and_what_it_had_started_goes_with_it(script):
    process = start(*FAST, "--workers", 2, script(FAMILY))
    pids = pids_in(read_lines(process.stdout, 2))
    victim = next(pid for pid in pids if lives(pid) and os.getpgid(pid) == pid != os.getsid(pid))
    os.kill(victim, signal.SIGKILL)
    assert gone_after(pids) < at_most(GONE_S)
    done = finish(process)
    assert done.code == 137
    assert "was killed by SIGKILL (exit code 137); if nobody did that" in done.err.splitlines()[-1]


def test_what_a_script_leaves_behind_ends_with_the_job(script):
    path = script("""
        import subprocess, sys
        print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True).pid)
    """)
    done = run(*FAST, "--workers", 2, path)
    assert done.code == 0
    assert not any(map(lives, pids_in(done.out.splitlines())))


def test_when_nobody_reads_the_output_any_more_the_job_ends(script):
    path = script("import os, time\nprint(os.getpid())\nwhile True:\n    print('more'); time.sleep(0.01)")
    process = start(*FAST, "--workers", 2, path)
    pids = set()
    while len(pids) < 2:
        pids |= {int(word) for word in process.stdout.readline().split()[1:] if word.isdigit()}
    process.stdout.close()
    assert gone_after([*pids, process.pid]) < at_most(GONE_S)
    process.stderr.close()
    assert process.wait() == 128 + signal.SIGPIPE


def test_a_reader_that_does_not_read_can_not_keep_the_job_from_ending(script):
    process = start(
        *FAST, "--workers", 2, script("import os\nprint(os.getpid())\nwhile True:\n    print('x' * 10_000)")
    )
    pids, line = set(), b"-"
    while len(pids) < 2:
        line = process.stdout.readline()
        pids |= {int(word) for word in line.split()[1:] if word.isdigit()}
    wait_until(lambda: stuck(process.pid))
    process.send_signal(signal.SIGINT)
    assert gone_after([*pids, process.pid]) < at_most(GONE_S)
    process.stdout.close()
    process.stderr.close()
    assert process.wait() == 130


def stuck(pid):
    """Whether a process has used no processor time over a tenth of a second."""
    before = cpu_time(pid)
    time.sleep(0.1)  # what is measured, not a wait for something
    return cpu_time(pid) == before


def cpu_time(pid):
    with open(f"/proc/{pid}/stat") as file:
        return sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13]))


def test_hanging_up_does_not_end_a_job_that_was_started_with_nohup(script, tmp_path):
    sign = tmp_path / "end"
    path = script("""
        import os, signal, sys, time
        print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
    """)
    process = start(*FAST, path, sign, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert read_lines(process.stdout, 1) == ["[0] True\n"]
    process.send_signal(signal.SIGHUP)
    sign.touch()
    assert finish(process).code == 0


def test_a_script_that_takes_longer_to_end_can_be_given_more_time(script):
    path = script("""
        import signal, sys, time
        def save(number, frame):
            time.sleep(2)
            print("saved")
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("here")
        while True:
            time.sleep(0.05)
    """)
    process = start(*FAST, "--grace", 20, path)
    read_lines(process.stdout, 1)
    process.send_signal(signal.SIGTERM)
    done = finish(process)
    assert (done.code, done.out) == (0, "[0] saved\n")

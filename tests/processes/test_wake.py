"""What ends the sleep of a loop."""

import os
import select
import signal
import socket
import subprocess
import sys

from gradtide.processes.credentials import user_of
from gradtide.processes.wake import WakePipe


def is_awake(pipe: WakePipe) -> bool:
    return bool(select.select([pipe], [], [], 0)[0])


def test_it_is_readable_from_wake_until_clear_and_never_waits():
    pipe = WakePipe()
    assert not is_awake(pipe)
    pipe.clear()
    for _ in range(100_000):  # more than a pipe holds
        pipe.wake()
    assert is_awake(pipe)
    while is_awake(pipe):
        pipe.clear()
    pipe.close()


def test_after_close_it_touches_no_file_that_got_its_numbers():
    pipe = WakePipe()
    numbers = pipe.fileno(), pipe.write_fileno
    pipe.close()
    pipe.close()
    read, write = os.pipe2(os.O_NONBLOCK)
    assert (read, write) == numbers
    pipe.wake()
    assert not select.select([read], [], [], 0)[0]
    os.write(write, b"x")
    pipe.clear()
    assert os.read(read, 10) == b"x"
    os.close(read)
    os.close(write)


def test_the_other_end_of_a_socket_is_of_our_user():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert user_of(ours) == user_of(theirs) == os.getuid()


MAKES_CHILDREN = """
import os, signal, time
from gradtide.processes.forking import Children
children = Children()
made = []
for number in (3, 0):
    if not (pid := children.fork()):
        os._exit(number)
    made.append(pid)
if not (pid := children.fork()):
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    time.sleep(60)
made.append(pid)
found = {}
while len(found) < 2:
    children.wait([], None)
    for pid, status in children.ended():
        found[pid] = status
        os.kill(pid, 0)  # its number is still its own
os.kill(made[2], signal.SIGKILL)
while len(found) < 3:
    children.wait([], None)
    found.update(children.ended())
print([found[pid] for pid in made], list(children.ended()))
"""


def test_children_that_end_wake_their_maker_who_is_told_how():
    done = subprocess.run([sys.executable, "-c", MAKES_CHILDREN], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == f"[3, 0, {-signal.SIGKILL}] []", done.stderr

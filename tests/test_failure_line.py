"""What a program that uses gradtide says when it is interrupted, or loses a peer: a line."""

import signal
import subprocess
import textwrap

import pytest

from loaded_python import loaded_python

LOOP = """
    import os, signal, torch, gradtide
    gradtide.fit
    net = torch.nn.Linear(4, 2)
    data = torch.ones(8, 4), torch.zeros(8, dtype=torch.long)
    def interrupt(*ignored):
        os.kill(os.getpid(), signal.SIGINT)
"""
MOMENTS = {
    "a callback of fit on two devices": """
        gradtide.fit(net, data, epochs=1, batch_size=4, devices=2, callbacks=[interrupt])
    """,
    "a backward": """
        model = gradtide.DataParallel(net, torch.optim.SGD(net.parameters(), 0.1))
        loss = model(data[0]).sum()
        loss.register_hook(interrupt)
        loss.backward()
    """,
    "connected to servers, and again at the end": """
        import atexit
        atexit.register(interrupt)
        with gradtide.local_servers(1) as servers:
            sync = gradtide.Servers("bsp", servers.address)
            model = gradtide.DataParallel(net, torch.optim.SGD(net.parameters(), 0.1), sync)
            interrupt()
    """,
}


def run(path, text):
    path.write_text(textwrap.dedent(LOOP) + textwrap.dedent(text))
    return subprocess.run([loaded_python(), path], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_is_one_line_and_ends_the_process_as_python_does(tmp_path, moment):
    done = run(tmp_path / "train.py", MOMENTS[moment])
    assert done.returncode == -signal.SIGINT
    assert done.stderr.startswith("gradtide: interrupted (train.py:"), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_lost_peer_is_a_line_and_other_errors_of_gradtides_end_at_the_users_line(tmp_path):
    done = run(tmp_path / "train.py", "from gradtide.errors import PeerLost\nraise PeerLost('rank 1 died')")
    assert (done.returncode, done.stderr) == (1, "gradtide: PeerLost: rank 1 died (train.py:9)\n")
    done = run(tmp_path / "train.py", "gradtide.Timeouts(step_s=-1)")
    assert done.stderr.splitlines()[-1].startswith("gradtide.errors.ConfigError: Timeouts(step_s=-1)")
    assert "timeouts.py" not in done.stderr


def test_a_programs_own_hook_stays(tmp_path):
    done = run(tmp_path / "train.py", "import sys; sys.excepthook = print; gradtide.fit; interrupt(); print('still')")
    assert "gradtide:" not in done.stderr
    assert "KeyboardInterrupt" in done.stdout

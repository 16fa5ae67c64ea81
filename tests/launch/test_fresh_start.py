"""A worker made by fork, with torch loaded ahead, is what `python script.py` would be; and it finds its job."""

import json
import os
import subprocess

from runs import finish, run, start

# What a script can see of how it was started.
LOOK = """
    import json, os, signal, sys, threading
    here = {
        "name": __name__, "file": __file__, "package": __package__, "spec": getattr(__spec__, "name", None),
        "loader": type(__loader__).__name__, "source": len(__loader__.get_source(__loader__.name)),
        "cached": __cached__,
        "main": sys.modules["__main__"].__dict__ is globals(), "globals": sorted(globals()), "doc": __doc__,
        "argv": sys.argv, "path": sys.path, "flags": str(sys.flags), "cwd": os.getcwd(),
        "hook": sys.excepthook is sys.__excepthook__,
        "signals": [str(signal.getsignal(n)) for n in sorted(signal.valid_signals()) if n not in (9, 19)],
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "open": len(os.listdir("/proc/self/fd")),
        "main thread": threading.current_thread() is threading.main_thread(), "threads": threading.active_count(),
        "tasks": len(os.listdir("/proc/self/task")), "stdin": sys.stdin.read(),
        "encoding": [sys.stdin.encoding, sys.stdout.encoding, sys.stderr.errors],
    }
"""
SHOW = """
    print(json.dumps(here))
"""
COMPUTE = """
    here["beside"] = len(os.listdir(f"/proc/{os.getppid()}/task"))
    import numpy, random, torch
    here["threads of torch"] = torch.get_num_threads()
    here["sum"] = float((torch.ones(700, 700) @ torch.ones(700, 700)).sum()), float(numpy.ones((700, 700)).dot(1).sum())
    here["drawn"] = [numpy.random.rand(), random.random(), torch.rand(1).item(), torch.initial_seed()]
"""
PROCESSES = """
    import multiprocessing, sys
    import torch

    def add(number, queue):
        queue.put((__name__, number, float((torch.ones(300, 300) @ torch.ones(300, 300)).sum()), sys.argv[1:]))

    if __name__ == "__main__":
        print(float((torch.ones(300, 300) @ torch.ones(300, 300)).sum()))
        for method in ("fork", "spawn"):
            context = multiprocessing.get_context(method)
            queue = context.Queue()
            process = context.Process(target=add, args=(1, queue))
            process.start()
            print(method, queue.get(timeout=60))
            process.join()
            print(process.exitcode)
"""


def seen(text):
    return [json.loads(line.partition("{")[1] + line.partition("{")[2]) for line in text.splitlines()]


def plainly(arguments, threads, **options):
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    return finish(start(*arguments, command=(), stdin=subprocess.DEVNULL, env=environment, **options))


def test_a_script_sees_what_it_would_see_in_a_plain_start(script, tmp_path):
    (tmp_path / "folder").mkdir()
    path = script(LOOK + COMPUTE + SHOW, name="folder/look.py")
    arguments = ("./folder/look.py", "--lr", "0.1", "-m", "x y")
    done = run("--workers", 2, "--threads", 2, *arguments, cwd=tmp_path)
    assert done.code == 0, done.err
    (expected,), found = seen(plainly(arguments, 2, cwd=tmp_path).out), seen(done.out)
    for drawn in zip(*(one.pop("drawn") for one in (expected, *found)), strict=True):
        assert len(set(drawn)) == 3  # everybody has random numbers of its own
    assert os.path.samefile(expected["file"], path)
    for one in found:
        assert one.pop("beside") == 1  # nothing runs beside the fork server when it forks
        assert one.pop("open") == expected["open"] + 1  # the socket to the launcher
        assert one == {name: value for name, value in expected.items() if name in one}


def test_a_module_sees_what_it_would_see_in_a_plain_start(script, tmp_path):
    (tmp_path / "package").mkdir()
    script(LOOK + SHOW, name="package/__main__.py")
    arguments = ("-m", "package", "--lr", "0.1", "-m", "x y")
    done = run("--no-preload", "--threads", 2, *arguments, cwd=tmp_path)
    assert done.code == 0, done.err
    (expected,), (found,) = seen(plainly(arguments, 2, cwd=tmp_path).out), seen(done.out)
    assert found | {"open": expected["open"]} == expected


def test_processes_that_a_script_starts_itself_work_by_fork_and_by_spawn(script):
    path = script(PROCESSES)
    done = run("--threads", 1, path, "--lr")  # more would not survive a script's own fork, once used
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        "[0] 27000000.0",
        "[0] fork ('__main__', 1, 27000000.0, ['--lr'])",
        "[0] 0",
        "[0] spawn ('__mp_main__', 1, 27000000.0, ['--lr'])",
        "[0] 0",
    ]


TOGETHER = """
    import os, sys
    import torch
    from gradtide.collective import Group

    groups = [Group.from_environment(), Group.from_environment()]
    sums = [group.all_reduce(torch.full((5,), group.rank + 1.0)).tolist() for group in groups]
    assert sums == 2 * [5 * [3.0]], sums
    torch.distributed.init_process_group("gloo")
    value = torch.ones(3)
    torch.distributed.all_reduce(value)
    assert value.tolist() == [2.0, 2.0, 2.0]
    torch.distributed.destroy_process_group()
    sys.stdout.write("done " + " ".join(f"{name}={os.environ[name]}" for name in sorted(os.environ)) + chr(10))
"""
OF_ONE_RUN = {"MASTER_PORT", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS"}
LEFT_OUT = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "PYTHONUNBUFFERED"}


def variables(text):
    found = {}
    for line in text.splitlines():
        if "done " in line:
            pairs = dict(word.split("=", 1) for word in line.partition("done ")[2].split(" ") if "=" in word)
            found[pairs["RANK"]] = pairs
    return found


def test_groups_of_ours_and_of_torch_join_and_the_environment_is_torchruns(script):
    path = script(TOGETHER)
    mine = run("--workers", 2, path)
    assert mine.code == 0, mine.err
    torchrun = run("--nproc-per-node", 2, path, command=("-m", "torch.distributed.run"))
    assert torchrun.code == 0, torchrun.err
    ours, theirs = variables(mine.out), variables(torchrun.out)
    assert ours.keys() == theirs.keys() == {"0", "1"}
    for rank in ours:
        assert theirs[rank].keys() - ours[rank].keys() <= LEFT_OUT
        for name in theirs[rank].keys() - LEFT_OUT - OF_ONE_RUN:
            assert ours[rank][name] == theirs[rank][name], name


def test_servers_are_there_for_the_workers_and_gone_with_the_job(script):
    path = script("""
        import sys
        import gradtide, torch
        from gradtide.environment import read_environment

        found = read_environment()
        with gradtide.connect(found.store) as store:
            store.init("w", torch.zeros(4), update=gradtide.update("add"))
            store.push("w", torch.ones(4)).wait()
            print(found.store, len(store.servers()))
            sys.exit(found.launch.rank)
    """)
    done = run("--workers", 2, "--servers", 2, path)
    assert done.code == 1
    lines = {line.split(" ", 1)[1] for line in done.out.splitlines()}
    ((address, count),) = (line.split() for line in lines)
    assert count == "2"
    assert subprocess.run(["ls", address.removeprefix("unix:").rpartition("/")[0]], capture_output=True).returncode

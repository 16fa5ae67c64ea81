"""Local steps over servers when workers and servers die in the middle of a window."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import local_servers
import numpy as np
import pytest
import torch
from ranks import process_context
from torch.nn import functional

import gradtide
from gradtide.sync import Job
from gradtide.testing.local_oracle import play_rounds
from loaded_python import loaded_python
from store_processes import pid_of, wait_until

HERE = Path(__file__).parent


def run(folder, options, arguments):
    paths = [str(HERE), str(HERE.parent / "collective"), *sys.path]
    command = [loaded_python(), "-m", "gradtide", "run", *options, str(HERE / "local_rounds_script.py"), str(folder)]
    done = subprocess.run(
        [*command, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def played(folder):
    """What one process gives that plays the rounds which workers noted; and who was in them."""
    rounds = {}
    for noted in folder.glob("rounds-*"):
        player = int(noted.name.partition("-")[2])
        for window, number in enumerate(noted.read_text().split()):
            batches = [local_servers.own_batch(player, 3 * window + step) for step in range(3)]
            rounds.setdefault(int(number), {})[player] = batches
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        net = local_servers.small_net()[0]
        in_order = [rounds[number] for number in sorted(rounds)]
        made = play_rounds(net, local_servers.adamw, functional.mse_loss, in_order, local_servers.OUTER)
    finally:
        torch.set_num_threads(threads)
    return [p.detach().numpy() for p in made.parameters()], in_order


def check(path, wanted):
    found = np.load(path)
    assert all(np.array_equal(found[name], value) for name, value in zip(found.files, wanted, strict=True))


@pytest.mark.parametrize("victim", [2, pytest.param(0, marks=pytest.mark.slow)])
def test_a_worker_that_dies_in_a_window_is_not_in_that_round_and_the_others_go_on_as_the_oracle_says(tmp_path, victim):
    run(tmp_path, ["--workers", "3", "--servers", "2", "--min-workers", "2"], ["15", f"{victim}:8"])
    wanted, rounds = played(tmp_path)
    stay = {0, 1, 2} - {victim}
    assert [set(of_round) for of_round in rounds] == [{0, 1, 2}] * 2 + [stay] * 3
    for worker in stay:
        check(tmp_path / f"{worker}.npz", wanted)


def test_one_that_is_started_again_begins_from_the_base(tmp_path):
    run(tmp_path, ["--workers", "2", "--servers", "2", "--max-restarts", "1"], ["9", "1:5", "again"])
    wanted, rounds = played(tmp_path)
    assert set(rounds[0]) == {0, 1}
    assert {0, 101} in [set(of_round) for of_round in rounds]
    noted = {player: (tmp_path / f"rounds-{player}").read_text().split() for player in (0, 101)}
    last = max(noted, key=lambda player: int(noted[player][-1]))  # the other left before the last round
    check(tmp_path / f"{last}.npz", wanted)


def kill_server(servers, store, name):
    wait_until(lambda: all(store.table.backups))
    victim = pid_of(servers, name)
    os.kill(victim, signal.SIGKILL)
    return victim


@pytest.mark.parametrize("times", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_whole_numbers_sum_up_exactly_however_many_workers_and_servers_are_killed_in_a_window(forks, times):
    with gradtide.local_servers(2, replicas=1, forks=forks) as servers:
        model = local_servers.counting_model(servers.address, "count", Job(0, 1), 4)
        store, wanted = model._synchroniser.way.store, 0
        for kill in range(times):
            here, there = process_context.Pipe()
            arguments = there, servers.address, "count", kill + 1, 3, kill % 3
            worker = process_context.Process(target=local_servers.count_and_die, args=arguments, daemon=True)
            worker.start()
            local_servers.count(model, 2)
            victim = kill_server(servers, store, f"server-{kill % 2}")
            local_servers.count(model, 3)  # the window ends
            assert here.poll(60)
            wanted += 5 + here.recv()
            worker.join()
            servers.wait_until_healed(victim)
        model.close()
        with gradtide.connect(servers.address) as reader:
            assert torch.equal(reader.pull("count/weight"), torch.full((1, 3), float(wanted), dtype=torch.float64))


def test_a_server_with_a_replica_that_dies_in_a_window_shows_in_no_bit(forks):
    with gradtide.local_servers(2, replicas=1, forks=forks) as servers:
        net, rule = local_servers.small_net()
        wanted = play_rounds(
            net,
            local_servers.adamw,
            functional.mse_loss,
            [{0: [local_servers.own_batch(0, 3 * window + step) for step in range(3)]} for window in range(6)],
            local_servers.OUTER,
        )
        local = gradtide.Local(3, local_servers.OUTER, over=gradtide.Servers("bsp", servers.address))
        model = gradtide.DataParallel(net, rule, local, job=Job())
        for step in range(18):
            x, y = local_servers.own_batch(0, step)
            functional.mse_loss(model(x), y).backward()
            if step in (4, 10, 11):
                victim = kill_server(servers, model._synchroniser.way.store, f"server-{step % 2}")
                servers.wait_until_healed(victim)
            model.step()
        model.close()
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), wanted.parameters(), strict=True))

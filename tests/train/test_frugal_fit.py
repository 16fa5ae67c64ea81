"""Three workers that accumulate, or step by themselves, in fit: what one process gives, or one that plays all three."""

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import gradtide
from gradtide.cli import main
from gradtide.errors import ConfigError
from gradtide.testing.local_oracle import LocalPlan, play_local
from loaded_python import loaded_python

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import fit_cases  # noqa: E402
import frugal_fits  # noqa: E402
from frugal_fits import ACCUMULATED, DENSE, LOCAL, MSE, train  # noqa: E402

WORKERS = 3  # 25 samples in batches of 8: the last has one, and two of the workers none of it


@pytest.fixture(scope="module")
def found(tmp_path_factory, forks):
    folder = tmp_path_factory.mktemp("frugal")
    with ExitStack() as stack:
        cases = frugal_fits.OVER_SERVERS
        stores = {case: stack.enter_context(gradtide.local_servers(1, forks=forks)).address for case in cases}
        script = [str(HERE / "frugal_fits.py"), str(folder), json.dumps(stores)]
        command = [loaded_python(), "-m", "gradtide", "run", "--workers", str(WORKERS), *script]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(folder / f"found-{rank}.pt") for rank in range(WORKERS)]


def furthest(some, others):
    return max((one - other).abs().max().item() for one, other in zip(some, others, strict=True))


@pytest.mark.parametrize("name", ACCUMULATED)
def test_workers_that_accumulate_give_what_one_process_gives_with_the_whole_batch(found, name):
    case, batch, optimizer, options = ACCUMULATED[name]
    one = train(case, batch * options["accumulate"], optimizer)
    for rank, worker in enumerate(found):
        assert furthest(worker[name]["values"], one["values"]) < 1e-10
        if rank == 0 or "servers" not in name:  # over servers worker 0 evaluates
            assert worker[name]["tests"] == pytest.approx(one["tests"], abs=1e-10)


@pytest.mark.parametrize("name", DENSE)
def test_to_meet_after_every_step_of_plain_sgd_is_training_in_one_process(found, name):
    case, batch, optimizer, _ = DENSE[name]
    one = train(case, batch, optimizer)
    for worker in found:
        assert furthest(worker[name]["values"], one["values"]) < 1e-12
        assert worker[name]["loss"] == pytest.approx(one["loss"], abs=1e-10)


@pytest.mark.parametrize("name", LOCAL)
def test_local_steps_are_those_of_one_process_that_plays_all_workers(found, name):
    batch, optimizer, options = LOCAL[name]
    sync, net = options["sync"], fit_cases.begin(MSE)
    batches = list(DataLoader(TensorDataset(fit_cases.X, fit_cases.VALUES), batch * options.get("accumulate", 1)))
    # Inner state lasts from one epoch to the next: only plain SGD, which has none, can be played in two parts.
    parts = [batches, batches] if optimizer is frugal_fits.PLAIN else [batches + batches]
    for part in parts:
        plan = LocalPlan(sync.every, sync.rule, sync.after, read_apart=True)
        net = play_local(net, optimizer, functional.mse_loss, part, WORKERS, plan)
    values = [p.detach() for p in net.parameters()]
    exact = "devices" not in options and "accumulate" not in options and not sync.after
    for worker in found:
        assert furthest(worker[name]["values"], values) <= (0.0 if exact else 1e-12)
        assert worker[name]["tests"] == found[0][name]["tests"]


def test_the_figures_of_an_epoch_are_of_the_one_model_that_all_have(found):
    for name in LOCAL:
        net = fit_cases.begin(MSE)
        with torch.no_grad():
            for parameter, value in zip(net.parameters(), found[0][name]["values"], strict=True):
                parameter.copy_(value)
        seen = gradtide.evaluate(net, (fit_cases.X, fit_cases.VALUES), loss="mse", devices=2)
        assert found[0][name]["tests"][-1] == pytest.approx(seen.loss, abs=1e-12)


def test_one_process_alone_takes_local_steps_too():
    one, other = (train(MSE, 8, frugal_fits.MOMENTUM, sync=s) for s in ("auto", gradtide.Local(2)))
    assert furthest(one["values"], other["values"]) < 1e-12


def test_a_window_longer_than_an_epoch_is_refused_before_anything_is_changed():
    net = fit_cases.begin("ignored")
    before = [p.detach().clone() for p in net.parameters()]
    data = (fit_cases.X, fit_cases.LABELS)
    with pytest.raises(ConfigError, match=r"Local\(5\): an epoch has 4 steps"):
        gradtide.fit(net, data, batch_size=8, sync=gradtide.Local(5))
    with pytest.raises(ConfigError, match=r"Local\(3\): an epoch has 2 steps"):
        gradtide.fit(net, data, batch_size=8, accumulate=2, sync=gradtide.Local(3))
    assert furthest([p.detach() for p in net.parameters()], before) == 0


# --- the command ---


def test_the_command_trains_workers_that_meet_now_and_then(tmp_path):
    options = [
        "--workers",
        "2",
        "--every",
        "2",
        "--accumulate",
        "2",
        "--epochs",
        "1",
        "--name",
        "local",
        "--batch-size",
        "128",
    ]
    command = [loaded_python(), "-m", "gradtide", "train", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "met every 2 steps" in (tmp_path / "runs" / "local" / "metrics.jsonl").read_text()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--every", "0", "--workers", "2"], "--every 0 makes no sense"),
        (["--every", "50"], "say how many, as in --workers 2"),
        (["--after", "5", "--workers", "2"], "as in --every 50"),
        (["--every", "5", "--workers", "2", "--servers", "1", "--sync", "bounded:2"], "say 'bsp', or 'async'"),
        (["--every", "5", "--workers", "2", "--servers", "1", "--resume", "--name", "x"], "leave --servers or"),
        (["--balance", "--workers", "2", "--servers", "1", "--sync", "async"], "in async nobody does"),
        (["--every", "5", "--workers", "2", "--sync", "ring"], "leave --sync ring out"),
        (["--every", "7", "--workers", "2"], "an epoch has 6 steps"),
        (["--accumulate", "0"], "accumulate=0 makes no sense"),
    ],
)
def test_what_the_command_can_not_mean_is_one_line(options, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gradtide", "train", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1

"""Callbacks of fit that change the model at the end of an epoch: on devices and workers as on one."""

import subprocess
from functools import cache
from pathlib import Path

import edited_fit
import pytest
import torch
from edited_fit import CASES, LABELS, X, cases_of, gated
from torch import nn

import gradtide
from gradtide.errors import ConfigError
from loaded_python import loaded_python

HERE = Path(__file__).parent
ON_WORKERS = ["1 device", "2 devices", "ring", "split", "local"]
alone = cache(lambda case: edited_fit.train(case, "1 device"))


def assert_alike(found, one):
    for name, tensor in one.items():
        assert torch.allclose(found[name], tensor, rtol=0, atol=1e-10), name


@pytest.mark.parametrize("way", ["2 devices", "3 devices", "split, 2 devices"])
@pytest.mark.parametrize("case", CASES)
def test_what_a_callback_changes_is_changed_on_all_devices(case, way):
    if case not in cases_of(way):
        pytest.skip("refused, which another test looks at")
    assert_alike(edited_fit.train(case, way), alone(case))


def run(folder, workers, *words, script=HERE / "edited_fit.py"):
    command = [loaded_python(), "-m", "gradtide", "run", "--workers", str(workers), *words[:-1], str(script)]
    return subprocess.run([*command, str(folder), *words[-1]], capture_output=True, text=True, cwd=folder, timeout=240)


@pytest.mark.parametrize(("workers", "ways"), [(2, ON_WORKERS), pytest.param(3, ON_WORKERS, marks=pytest.mark.slow)])
def test_what_a_callback_changes_is_changed_on_all_workers(tmp_path, workers, ways):
    """As worker 0's did, which is all of them if they do the same. Local steps differ from one process; they are alike
    on all workers."""
    done = run(tmp_path, workers, ways)
    assert done.returncode == 0, done.stdout + done.stderr
    first = torch.load(tmp_path / "found-0.pt")
    for rank in range(workers):
        for (case, way), found in torch.load(tmp_path / f"found-{rank}.pt").items():
            assert_alike(found, first[case, way] if way == "local" else alone(case))


def changes(change):
    def callback(event):
        if isinstance(event, gradtide.EpochEnd):
            change(event.model)

    return callback


def replace_layer(model):
    model[-1] = nn.Linear(6, 3).double()


def set_dropout(model):
    model[1].p = 0.7


def freeze(model):
    model[0].requires_grad_(False)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (replace_layer, {"devices": 2}, "3.weight was added, replaced or taken away in a callback"),
        (replace_layer, {"devices": 2, "split": "auto"}, "3.weight was added, replaced or taken away in a callback"),
        (set_dropout, {"devices": 2, "split": "auto"}, "a callback changed 1.p, but a split model computes as it did"),
        (freeze, {"devices": 2, "split": "auto"}, "a parameter was frozen"),
    ],
)
def test_what_cannot_be_followed_is_one_line(change, options, message):
    net = nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.1), nn.Tanh(), nn.Linear(6, 3)).double()
    with pytest.raises(ConfigError, match=message) as caught:
        gradtide.fit(net, (X, LABELS), lr=0.1, epochs=2, callbacks=[changes(change)], batch_size=9, **options)
    assert "\n" not in str(caught.value)


def test_a_part_that_is_in_eval_mode_for_good_stays_so_when_the_epoch_is_evaluated():
    net, seen = gated().double(), []

    def callback(event):
        if isinstance(event, gradtide.EpochEnd):
            seen.append([event.model.training, event.model[1].training])
            event.model[1].eval()

    gradtide.fit(net, (X, LABELS), validation=(X, LABELS), lr=0.1, epochs=3, devices=2, callbacks=[callback])
    assert seen == [[True, True], [True, False], [True, False]]


SERVERS = """
import gradtide
from edited_fit import LABELS, X, plain
from test_edited_fit import changes

def halve(model):
    for parameter in model.parameters():
        parameter.data.mul_(0.5)

gradtide.fit(plain().double(), (X, LABELS), lr=0.1, epochs=2, callbacks=[changes(halve)], sync=gradtide.Servers("bsp"))
"""


def test_over_servers_a_change_is_refused_with_what_fit_can_do(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nsys.path[:0] = {[str(HERE), str(HERE.parent)]!r}\n{SERVERS}")
    done = run(tmp_path, 1, "--servers", "1", [], script=script)
    assert done.returncode != 0
    assert "a callback changed 0.weight, but the servers hold the parameters and step them; say clip_norm=" in (
        done.stdout + done.stderr
    )

"""Jobs whose workers die, come and go at drawn moments: each sample counts once, the survivors are alike, and the
result is that of one process where docs promise it; or the job is refused by name.

4 of them in every run; `scripts/test -m slow -k random_jobs` runs 2,000, and `-k "random_jobs and 100-150"` some of
them. One that fails is named by its number, and printed as data. Run with -s for a table of what was refused.
"""

import itertools
import json
from collections import Counter

import job_script
import numpy as np
import pytest
import torch
from drawn_jobs import draw, is_alike, is_exact, is_exact_on_what_was_given, over_servers, reason_of, words_of
from test_elastic import run

REFUSED_AT_MOST = 0.15
CHUNK = 50
ATOL = 1e-10


def play(folder, case):
    """What the job was refused with, if it was; else it must be right."""
    folder.mkdir(exist_ok=True)
    options = ["--workers", str(case["workers"]), *case["options"], "--step-timeout", "60"]
    if over_servers(case):
        options += ["--servers", "1"]
    told = {name: case[name] for name in ("way", "program", "deaths", "scale", "local") if name in case}
    code, output = run(folder, options, [json.dumps(told)], "job_script.py")
    if code != 0:
        reason = reason_of(case, output)
        assert reason is not None, f"exit code {code}\n{output}"
        return reason
    check(folder, case, output)
    return None


def check(folder, case, output):
    found = {path.stem: np.load(path) for path in folder.glob("?.npz")}
    assert found, output
    assert set(map(str, case["left"] or [])) <= set(found), (sorted(found), output)
    first = next(iter(_alike(folder, case, found)))
    if is_alike(case):
        own = case.get("local", {}).get("every", 1) > 1  # what each sees in an evaluation within a window
        for one in _alike(folder, case, found):
            for name in (name for name in first.files if not (own and name.startswith("seen"))):
                assert np.array_equal(one[name], first[name]), f"{name} differs between workers\n{output}"
    given = {} if case["way"] == "async" else _check_given(folder)
    if is_exact(case):
        _check_result(folder, first, job_script.alone(case["program"]), output)
    elif is_exact_on_what_was_given(case):
        _check_result(folder, first, _nearest(folder, case, first, given), output)


def _alike(folder, case, found):
    """Who came when the others had come to the end has what a codec of the servers had left out for them."""
    if not over_servers(case) or "compress" not in case["program"]:
        return list(found.values())
    last = f"[{job_script.EPOCHS - 1}, {job_script.BATCHES - 1}, "
    took = {path.name.split("-")[1] for path in folder.glob("given-*") if last in path.read_text()}
    return [one for worker, one in found.items() if worker in took]


def _nearest(folder, case, first, given):
    """What one process makes of the samples that were in the steps. What a worker gave that died within a step may have
    been in it or not."""
    unknown = list(_read_unknown(folder))
    found = []
    for sent in itertools.product([True, False], repeat=len(unknown)):
        added = {at: [*numbers] for at, numbers in given.items()}
        for (at, numbers), was_sent in zip(unknown, sent, strict=True):
            added.setdefault(at, []).extend(numbers if was_sent else [])
        found.append(job_script.alone(case["program"], added))
    return min(found, key=lambda one: max(np.abs(first[f"p{n}"] - value).max() for n, value in enumerate(one[0])))


def _read_unknown(folder):
    for path in folder.glob("tried-*"):
        stayed = folder / path.name.replace("tried", "given")
        known = {tuple(json.loads(line)[:2]) for line in stayed.read_text().splitlines()} if stayed.exists() else set()
        for epoch, place, numbers in map(json.loads, path.read_text().splitlines()):
            if (epoch, place) not in known and numbers:
                yield (epoch, place), numbers


def _check_result(folder, first, wanted, output):
    parameters, seen, kept = wanted
    for number, value in enumerate(parameters):
        off = np.abs(first[f"p{number}"] - value).max()
        assert off < ATOL, f"parameter {number} is off by {off:.1e}\n{output}"
    found = {name: float(first[name]) for name in first.files if name.startswith("seen")}
    assert {name: pytest.approx(value, abs=ATOL) for name, value in seen.items()} == found, f"{seen} {found}\n{output}"
    if (folder / "kept").exists():  # who was to make the last one may have died just then
        held = torch.load(folder / "kept", weights_only=True)
        for value, wanted in zip(held["model"].values(), kept[held["epoch"]], strict=True):
            assert np.abs(value.numpy() - wanted).max() < ATOL, f"a checkpoint is off\n{output}"


def _check_given(folder):
    """No sample counts twice, as far as workers lived to say so. (That none is left out shows in the result.)"""
    given = {}
    for path in folder.glob("given-*"):
        steps = {(epoch, place): numbers for epoch, place, numbers in map(json.loads, path.read_text().splitlines())}
        for at, numbers in steps.items():
            given.setdefault(at, []).extend(numbers)
    for (epoch, place), numbers in given.items():
        assert len(set(numbers)) == len(numbers), f"epoch {epoch}, batch {place}: {sorted(numbers)}"
    return given


def play_all(folder, numbers):
    """The share that was refused."""
    refused, words = Counter(), Counter()
    for number in numbers:
        case = draw(number)
        words.update(words_of(case))
        try:
            reason = play(folder / str(number), case)
        except AssertionError as error:
            raise AssertionError(f"job {number}: {json.dumps(case)}\n{error}") from None
        refused.update([reason] if reason else [])
    print(f"\n{len(numbers)} jobs; refused: {dict(refused)}; drawn: {dict(words)}")
    return sum(refused.values()) / len(numbers)


@pytest.mark.parametrize("number", range(4))
def test_whoever_dies_comes_or_goes_the_result_is_that_of_one_process(tmp_path, number):
    play(tmp_path / "job", draw(number))


AGAIN, LESS = ["--max-restarts", "6"], ["--min-workers", "2"]


def served(way, workers, deaths, options, *, left=None, scale=(), **program):
    told = {"optimizer": "momentum", "loader": "list", **program}
    return {
        "way": way, "program": told, "workers": workers, "deaths": deaths, "scale": list(scale), "left": left,
        "options": options,
    }  # fmt: skip


SERVED = {
    "who would have begun dies before that": served("bsp", 3, ["0:0:before"], LESS, left=[1, 2]),
    "newcomers where servers only average": served(
        "bsp that averages", 2, ["0:0:epoch 1"], AGAIN, left=[0, 1], loader="shuffled", schedule="LambdaLR", buffer=True
    ),
    "one is started again before the others began": served(
        "bsp", 3, ["0:0:inside 5", "0:1:forward 2", "2:0:before", "2:1:loss 2"], AGAIN, left=[0, 1, 2]
    ),
    "the first dies before it gave its buffers": served("bsp", 3, ["0:0:forward 9"], LESS, left=[1, 2], buffer=True),
    "the first dies before it told a rate": served(
        "bsp", 2, ["0:0:end 2", "0:1:wrapped"], AGAIN, left=[0, 1], schedule="OneCycleLR"
    ),
    "newcomers in a later epoch of a shuffled loader": served(
        "bsp", 3, ["1:0:step 7", "2:0:save 1", "2:1:backward 1"], AGAIN,
        left=[0, 1, 2], loader="shuffled", schedule="StepLR", saves=True,
    ),
    "newcomers after the end of an epoch": served(
        "bsp", 3, ["2:0:forward 5"], ["--max-workers", "4", "--min-workers", "1", *AGAIN],
        scale=["0:0:end 4:4"], evaluates=True,
    ),
    "a refusal ends the job": served(
        "bsp", 2, ["1:0:end 1"], AGAIN, left=[0, 1], edits=True
    ),
}  # fmt: skip
CHEAP = [*SERVED][:2]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in CHEAP else pytest.mark.slow) for n in SERVED])
def test_over_servers_whoever_dies_the_others_and_newcomers_train_on_what_was_given(tmp_path, name):
    refused = play(tmp_path / "job", SERVED[name])
    assert bool(refused) == ("edits" in SERVED[name]["program"])


@pytest.mark.slow
@pytest.mark.parametrize("first", [pytest.param(n, id=f"{n}-{n + CHUNK}") for n in range(4, 2004, CHUNK)])
def test_two_thousand_jobs_of_drawn_deaths_and_scaling(tmp_path, first):
    assert play_all(tmp_path, range(first, first + CHUNK)) <= 2 * REFUSED_AT_MOST  # of some fifty

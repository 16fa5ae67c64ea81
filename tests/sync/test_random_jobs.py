"""Jobs whose workers die, come and go at drawn moments: each sample counts once, the survivors are alike, and the
result is that of one process where docs promise it; or the job is refused by name.

4 of them in every run; `scripts/test -m slow -k random_jobs` runs 2,000, and `-k "random_jobs and 100-150"` some of
them. One that fails is named by its number, and printed as data. Run with -s for a table of what was refused.
"""

import json
from collections import Counter

import job_script
import numpy as np
import pytest
import torch
from drawn_jobs import draw, is_alike, is_exact, over_servers, reason_of, words_of
from test_elastic import run

REFUSED_AT_MOST = 0.15
CHUNK = 50
ATOL = 1e-10


def play(folder, case):
    """What the job was refused with, if it was; else it must be right."""
    folder.mkdir(exist_ok=True)
    options = ["--workers", str(case["workers"]), *case["options"]]
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
    first = next(iter(found.values()))
    if is_alike(case):
        own = case.get("local", {}).get("every", 1) > 1  # what each sees in an evaluation within a window
        for one in found.values():
            for name in (name for name in first.files if not (own and name.startswith("seen"))):
                assert np.array_equal(one[name], first[name]), f"{name} differs between workers\n{output}"
    _check_given(folder)
    if is_exact(case):
        _check_result(folder, case, first, output)


def _check_result(folder, case, first, output):
    parameters, seen, kept = job_script.alone(case["program"])
    for number, value in enumerate(parameters):
        off = np.abs(first[f"p{number}"] - value).max()
        assert off < ATOL, f"parameter {number} is off by {off:.1e}\n{output}"
    found = {name: float(first[name]) for name in first.files if name.startswith("seen")}
    assert {name: pytest.approx(value, abs=ATOL) for name, value in seen.items()} == found, f"{seen} {found}\n{output}"
    if kept is not None:
        held = torch.load(folder / "kept", weights_only=True)["model"]
        for value, wanted in zip(held.values(), kept, strict=True):
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


@pytest.mark.slow
@pytest.mark.parametrize("first", [pytest.param(n, id=f"{n}-{n + CHUNK}") for n in range(4, 2004, CHUNK)])
def test_two_thousand_jobs_of_drawn_deaths_and_scaling(tmp_path, first):
    assert play_all(tmp_path, range(first, first + CHUNK)) <= 2 * REFUSED_AT_MOST  # of some fifty

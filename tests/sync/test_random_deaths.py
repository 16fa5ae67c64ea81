"""Jobs whose workers die at drawn moments, some of them again and again: the result is that of one process.

4 of them in every run; `scripts/test -m slow -k random_deaths` runs 200. A job that fails is named by its number.
"""

import random

import pytest
from test_again import check, train

MOMENTS = {
    "every": ("forward", "step", "end"),
    "by_place": ("forward", "backward", "step", "end"),
    "scheduled": ("forward", "step", "end"),
}
LAST = 11  # of 14 batches: who is started again later may find the others at the end


def draw(number):
    """The arguments of `train`, and who is there in the end. One worker lives on."""
    of = random.Random(number)
    program, workers = of.choice(list(MOMENTS)), of.choice([2, 3, 3])
    survivor = of.randrange(workers)
    mortal = of.sample([worker for worker in range(workers) if worker != survivor], workers - 1)
    again = workers == 2 or of.random() < 0.7
    times = [of.randint(1, 2), of.choice([0, 0, 1, 2])] if again else [1]
    deaths = [
        f"{worker}:{incarnation}:{_moment(of, program, incarnation)}"
        for worker, count in zip(mortal, times, strict=False)
        for incarnation in range(count)
    ]
    left = [worker for worker in range(workers) if again or worker != mortal[0]]
    options = ["--max-restarts", "6"] if again else ["--min-workers", "2"]
    return {
        "workers": workers,
        "options": options,
        "program": program,
        "deaths": deaths,
        "way": of.choice(["shared", "copies", "auto"]),
        "loader": of.choice(["list", "dataset"]),
    }, left


def _moment(of, program, incarnation):
    if of.random() < (0.4 if incarnation else 0.1):
        return "wrapped"
    return f"{of.choice(MOMENTS[program])} {of.randint(1, 3 if incarnation else LAST)}"


NUMBERS = [pytest.param(n, marks=pytest.mark.slow) for n in range(4, 200)]


@pytest.mark.parametrize("number", [*range(4), *NUMBERS])
def test_whoever_dies_whenever_the_result_is_that_of_one_process(tmp_path, number):
    job, left = draw(number)
    deaths = job.pop("deaths")
    output = train(tmp_path, job.pop("workers"), job.pop("options"), job["program"], *deaths, **_ways(job))
    assert "done" in output, (number, deaths)
    check(tmp_path, left, job["program"])


def _ways(job):
    return {name: job[name] for name in ("way", "loader")}

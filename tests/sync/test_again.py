"""Workers die, and what was lost with them is done again: the result is that of one process, or is refused."""

import again_script
import numpy as np
import pytest
from test_elastic import run

RESTARTS = ["--max-restarts", "3"]


def check(folder, workers, program):
    for worker in workers:
        found = np.load(folder / f"{worker}.npz")
        for name, value in zip(found.files, again_script.alone(program), strict=True):
            assert np.abs(found[name] - value).max() < 1e-10


def train(folder, workers, options, program, *deaths, way="shared", loader="dataset"):
    """The job's output; it must end well."""
    arguments = [program, way, loader, *deaths]
    code, output = run(folder, ["--workers", str(workers), *options], arguments, "again_script.py")
    assert code == 0, output
    return output


@pytest.mark.parametrize(
    ("way", "workers", "deaths"),
    [
        ("shared", 3, ["1:0:step 5", "1:1:wrapped"]),
        ("copies", 2, ["0:0:forward 5", "0:1:wrapped", "0:2:wrapped"]),
        pytest.param("shared", 3, ["0:0:end 5", "0:1:wrapped"], marks=pytest.mark.slow),
        pytest.param("copies", 3, ["0:0:step 5", "1:0:step 6", "0:1:wrapped"], marks=pytest.mark.slow),
    ],
)
def test_a_batch_comes_again_whoever_dies_while_it_is_agreed_on(tmp_path, way, workers, deaths):
    output = train(tmp_path, workers, RESTARTS, "every", *deaths, way=way)
    assert output.count("is started again") == len(deaths)
    check(tmp_path, range(workers), "every")

import subprocess
import sys

import numpy as np
import pytest

from gradtide.schedule.packing import linear


def problem(seed: int) -> linear.Programme:
    chance = np.random.default_rng(seed)
    cost, at_most = chance.uniform(0.1, 1, 40), -chance.uniform(0, 1, (20, 40)) * (chance.random((20, 40)) < 0.4)
    equal, feasible = chance.uniform(0, 1, (2, 40)), chance.uniform(0, 1, 40)
    most = np.full(40, 0.9) if seed % 2 else None
    feasible = np.minimum(feasible, 0.9)
    return linear.Programme(cost, at_most, at_most @ feasible + 0.1, equal, equal @ feasible, most)


@pytest.mark.parametrize("seed", range(10))
def test_the_extension_and_scipy_agree(seed: int):
    core = linear._core()
    assert core is not None
    ours, theirs = linear._through_core(core, problem(seed)), linear._through_scipy(problem(seed))
    assert ours.value == pytest.approx(theirs.value)
    assert ours.x == pytest.approx(theirs.x, abs=1e-9)
    assert ours.prices == pytest.approx(theirs.prices, abs=1e-9)


def test_a_scipy_that_speaks_otherwise_is_asked_the_public_way(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(linear, "_core", object)
    assert linear.minimise(problem(1)).value == pytest.approx(linear._through_scipy(problem(1)).value)


def test_a_plan_does_not_import_scipy_optimize_which_still_works_afterwards():
    code = "import sys, gradtide; gradtide.plan('ring:4', 1000); assert 'scipy.optimize' not in sys.modules; "
    code += "from scipy.optimize import linprog; print(linprog([1.0], A_eq=[[2.0]], b_eq=[3.0]).fun)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1.5\n"

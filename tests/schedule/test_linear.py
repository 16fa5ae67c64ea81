import subprocess
import sys

import numpy as np
import pytest

from gradtide.schedule.packing import linear
from gradtide.schedule.packing.generate import pack
from gradtide.schedule.packing.network import network_of
from gradtide.schedule.packing.trees import demand_of
from gradtide.schedule.plan import request_for


def problem(seed: int) -> linear.LinearProgramme:
    chance = np.random.default_rng(seed)
    cost, at_most = chance.uniform(0.1, 1, 40), -chance.uniform(0, 1, (20, 40)) * (chance.random((20, 40)) < 0.4)
    equal, feasible = chance.uniform(0, 1, (2, 40)), chance.uniform(0, 1, 40)
    most = np.full(40, 0.9) if seed % 2 else None
    feasible = np.minimum(feasible, 0.9)
    return linear.LinearProgramme(cost, at_most, at_most @ feasible + 0.1, equal, equal @ feasible, most)


@pytest.mark.parametrize("seed", range(10))
def test_the_extension_and_scipy_agree(seed: int):
    core = linear._core(linear.CORE)
    assert core is not None
    ours, theirs = linear._through_core(core, problem(seed)), linear._through_scipy(problem(seed))
    assert ours is not None
    assert ours.value == pytest.approx(theirs.value)
    assert ours.x == pytest.approx(theirs.x, abs=1e-9)
    assert ours.prices == pytest.approx(theirs.prices, abs=1e-9)


OTHERS = {
    "there is no such extension": "scipy.optimize._highspy._moved_elsewhere",
    "it speaks otherwise": "scipy.optimize._lsap",
}


@pytest.mark.parametrize("core", OTHERS.values(), ids=OTHERS)
def test_with_another_scipy_the_public_way_proves_the_same_bounds(core: str, monkeypatch: pytest.MonkeyPatch):
    places = ("pcie-4gpu", "dgx1-v100", "ethernet-cluster:2x2@100")
    usual = [seconds_of(place) for place in places]
    monkeypatch.setattr(linear, "CORE", core)
    assert [seconds_of(place) for place in places] == pytest.approx(usual, rel=1e-6)


def seconds_of(place: str) -> float:
    request = request_for(place, 160_000_000)
    network = network_of(request)
    return pack(network, demand_of(request, network)).bound


def test_with_another_scipy_a_plan_is_the_same():
    code = "from gradtide.schedule.packing import linear; linear.CORE = 'scipy.optimize._highspy._moved_elsewhere'; "
    code += "import sys, gradtide; found = gradtide.plan('pcie-4gpu', 160_000_000); "
    code += "assert 'scipy.optimize' in sys.modules; print(f'{found.bound_seconds:.6g} {found.best.name}')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "0.0133333 packed-trees\n"


def test_what_the_extension_gives_up_on_scipy_names():
    nothing = np.zeros((0, 1))
    impossible = linear.LinearProgramme(np.ones(1), np.ones((1, 1)), -np.ones(1), nothing, np.zeros(0))
    assert linear._through_core(linear._core(linear.CORE), impossible) is None
    with pytest.raises(AssertionError, match="infeasible"):
        linear.minimise(impossible)


def test_a_plan_does_not_import_scipy_optimize_which_still_works_afterwards():
    code = "import sys, gradtide; gradtide.plan('ring:4', 1000); assert 'scipy.optimize' not in sys.modules; "
    code += "from scipy.optimize import linprog; print(linprog([1.0], A_eq=[[2.0]], b_eq=[3.0]).fun)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1.5\n"

"""Linear programmes through HiGHS, without the half second that importing scipy.optimize takes.

scipy ships HiGHS as an extension module that needs nothing else of scipy: loading that file alone takes 15 ms
(scipy.optimize: 350 ms), which decides whether `gradtide plan` answers within a second. The module is scipy's own
business, so wherever it is not what we know, scipy.optimize.linprog does the same.
"""

import importlib.machinery
import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["LinearProgramme", "Solution", "minimise"]

Floats = NDArray[np.float64]

CORE = "scipy.optimize._highspy._core"


class Solution(NamedTuple):
    """Where the least cost is, how much, and by how much it would fall if a row's side rose by one."""

    value: float
    x: Floats
    prices: Floats  # of the rows of at_most, not negative


class LinearProgramme(NamedTuple):
    """Find the x from 0 to `most` with at_most @ x <= limits and equal @ x == sides that costs least."""

    cost: Floats
    at_most: Floats
    limits: Floats
    equal: Floats
    sides: Floats
    most: Floats | None = None  # None: x has no upper end


def minimise(programme: LinearProgramme) -> Solution:
    """The solution of a programme that has one."""
    core = _core(CORE)
    if core is not None:
        try:
            solution = _through_core(core, programme)
        except (AttributeError, TypeError):
            solution = None  # another scipy, whose extension speaks otherwise
        if solution is not None:
            return solution
    return _through_scipy(programme)


def _through_core(core: Any, programme: LinearProgramme) -> Solution | None:
    """What the extension finds; None where it gives up."""
    cost, at_most, limits, equal, sides, most = programme
    rows = np.vstack([at_most, equal])
    column, row = np.nonzero(rows.T)
    model = core.HighsLp()
    model.num_col_, model.num_row_ = model.a_matrix_.num_col_, model.a_matrix_.num_row_ = rows.shape[::-1]
    model.a_matrix_.format_ = core.MatrixFormat.kColwise
    model.col_cost_ = cost
    model.col_lower_, model.col_upper_ = np.zeros(len(cost)), np.full(len(cost), np.inf) if most is None else most
    model.row_lower_ = np.concatenate([np.full(len(limits), -np.inf), sides])
    model.row_upper_ = np.concatenate([limits, sides])
    model.a_matrix_.start_ = np.searchsorted(column, np.arange(len(cost) + 1)).astype(np.int32)
    model.a_matrix_.index_ = row.astype(np.int32)
    model.a_matrix_.value_ = rows.T[column, row]
    options = core.HighsOptions()
    options.output_flag = False
    solver = core._Highs()
    solver.passOptions(options)
    solver.passModel(model)
    solver.run()
    if solver.getModelStatus() != core.HighsModelStatus.kOptimal:
        return None
    solution = solver.getSolution()
    prices = np.maximum(-np.array(solution.row_dual[: len(limits)]), 0.0)
    return Solution(float(solver.getInfo().objective_function_value), np.array(solution.col_value), prices)


def _through_scipy(programme: LinearProgramme) -> Solution:
    from scipy.optimize import linprog

    cost, at_most, limits, equal, sides, most = programme
    ends = [(0.0, float(end)) for end in (np.full(len(cost), np.inf) if most is None else most)]
    answer = linprog(cost, A_ub=at_most, b_ub=limits, A_eq=equal, b_eq=sides, bounds=ends, method="highs")
    assert answer.x is not None, answer.message
    assert answer.fun is not None
    return Solution(float(answer.fun), answer.x, np.maximum(-answer.ineqlin.marginals, 0.0))


@cache
def _core(name: str) -> Any:
    """scipy's HiGHS extension, loaded by its file if scipy.optimize is not there already; None where it isn't."""
    if name in sys.modules:
        return sys.modules[name]
    package, *inside = name.split(".")
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations if spec else None) or []
    for folder in folders:
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            path = Path(folder, *inside[:-1], f"{inside[-1]}{suffix}")
            if path.exists():
                return _load(name, path)
    return None


def _load(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        return None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:
        return None
    sys.modules[name] = module  # pybind11 types register once a process: a later scipy.optimize must find this one
    return module

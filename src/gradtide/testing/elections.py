"""Simulated stores with several coordinators, of which one leads, on one register, as etcd is one.

python -m gradtide.testing.elections --seed 17              one seed, with what it did
python -m gradtide.testing.elections --seeds 5000           many, until the first that breaks a promise
"""

import sys
from collections.abc import Callable
from functools import partial

from gradtide.testing.scenarios import with_compression
from gradtide.testing.simulate import Outcome, first_broken, run_and_report, run_scenario, seed_parser
from gradtide.testing.simulator.election.scenario import election_of, election_scenario_of

__all__ = ["main", "run_election_seed", "run_election_seeds"]


def run_election_seed(seed: int, *, compress: bool | None = False, fenced: bool = True) -> Outcome:
    """Run the scenario that a seed draws. `fenced` False: with a register that does not compare who leads."""
    election = election_of(seed)
    scenario = with_compression(election_scenario_of(seed), compress)
    return run_scenario(scenario, partial(election.begin, fenced=fenced))


def run_election_seeds(first: int, count: int, progress: Callable[[int], None] = lambda seed: None) -> Outcome | None:
    """Run seeds in order; returns the first that broke a promise, or None."""
    return first_broken(run_election_seed, first, count, progress)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = seed_parser("gradtide.testing.elections", __doc__, 500)
    options = parser.parse_args(arguments)
    return run_and_report(options, run_election_seed, parser.prog)


if __name__ == "__main__":
    sys.exit(main())

"""Shares that follow measured speed: on a clock of our own, with noise."""

import itertools
from random import Random

import pytest

from gradtide.fair_share import Cost, fair_shares, longest_s
from gradtide.parallel.balance import SELDOM, Balance
from gradtide.parallel.part_costs import CostMeter, Estimate

NOISE = 0.1  # relative, of every measurement
CHANGE, STEPS = 40, 80  # when one of them becomes two or three times as fast or slow


class Team:
    """Workers of given costs who train on a clock of our own."""

    def __init__(self, random, costs, samples, noise=NOISE, outliers=0.0):
        self.random, self.costs, self.samples, self.noise, self.outliers = random, costs, samples, noise, outliers
        self.meters, self.balance, self.shares = [CostMeter() for _ in costs], Balance(), []

    def step(self):
        if self.shares and not self.balance.wait:
            self.balance.decide([meter.estimate() for meter in self.meters], self.samples)
        elif self.shares:
            self.balance.wait -= 1
        self.shares.append(self.balance.shares(self.samples, len(self.costs)))
        for meter, cost, share in zip(self.meters, self.costs, self.shares[-1], strict=True):
            stalled = 5.0 if self.random.random() < self.outliers else 1.0
            meter.add(share, cost.of(share) * max(0.3, self.random.gauss(1.0, self.noise)) * stalled)

    def excess(self, shares):
        """How much longer these shares take than the best would."""
        best = longest_s(self.costs, fair_shares(self.costs, self.samples))
        return longest_s(self.costs, shares) / best - 1.0


def team_of(seed, *, equal=False, **options):
    random = Random(seed)
    count, samples, sample_s = random.randint(2, 4), random.choice([64, 100, 256, 1000]), random.uniform(1e-4, 1e-2)
    fixed_s = sample_s * samples / count
    costs = [Cost(fixed_s * random.uniform(0, 0.4), sample_s * random.uniform(0.5, 3)) for _ in range(count)]
    return Team(random, [costs[0]] * count if equal else costs, samples, **options)


def returns(shares):
    """How often shares come back that were left before."""
    changes = [new for old, new in itertools.pairwise(shares) if old != new]
    return len(changes) - len(set(changes))


def check_seed(seed):
    team = team_of(seed)
    for step in range(STEPS):
        if step == CHANGE:
            settled, index = list(team.shares), team.random.randrange(len(team.costs))
            before = [team.excess(shares) for shares in settled[11:]]  # the first is for warming up
            assert max(before) < 0.2, seed
            factor = team.random.choice([1 / 3, 0.5, 2, 3])
            team.costs[index] = Cost(team.costs[index].fixed_s * factor, team.costs[index].sample_s * factor)
        team.step()
    after = team.shares[CHANGE + 20 :]
    assert max(team.excess(shares) for shares in after) < 0.2, seed
    for quiet in (settled[11:], after):
        assert len(set(quiet)) <= 4, (seed, quiet)
        assert returns(quiet) == 0, (seed, quiet)
    return before[-1], team.excess(after[-1])


def check_seeds(seeds):
    """In every one the shares settle, follow a change and don't oscillate; mostly they are close to the best."""
    for last in zip(*map(check_seed, seeds), strict=True):
        assert sorted(last)[len(last) // 2] < 0.05
        assert sorted(last)[len(last) * 9 // 10] < 0.1


def test_shares_settle_within_10_measurements_and_follow_a_change_within_20_steps():
    check_seeds(range(25))


@pytest.mark.slow
def test_a_thousand_seeds_settle_and_follow():
    check_seeds(range(1000))


def test_equal_workers_keep_equal_shares():
    """Noise alone mostly changes nothing, and nothing by much."""
    teams = [team_of(seed, equal=True, noise=0.03) for seed in range(20)]
    for team in teams:
        for _ in range(40):
            team.step()
    assert sum(len(set(team.shares)) > 1 for team in teams) <= 1
    assert max(team.excess(shares) for team in teams for shares in team.shares) < 0.1


def test_stalls_now_and_then_are_no_change_of_speed():
    teams = [team_of(seed, outliers=0.03) for seed in range(20)]
    for team in teams:
        for _ in range(40):
            team.step()
        assert max(team.excess(shares) for shares in team.shares[20:]) < 0.25


def test_the_fixed_part_is_found_once_parts_of_different_sizes_were_seen():
    meter = CostMeter()
    for samples in [50] * 6 + [20] * 6:
        meter.add(samples, 0.03 + 1e-3 * samples)
    assert meter.estimate().cost.of(35) == pytest.approx(0.065, rel=0.03)
    assert meter.estimate().cost.fixed_s == pytest.approx(0.03, rel=0.2)


def test_one_size_alone_is_taken_for_proportional():
    meter = CostMeter()
    for _ in range(6):
        meter.add(50, 0.1)
    assert meter.estimate().cost == Cost(0.0, pytest.approx(0.002))


def test_nothing_is_estimated_from_the_first_part_which_warms_up():
    meter = CostMeter()
    meter.add(10, 99.0)
    assert meter.estimate() is None
    meter.add(10, 1.0)
    assert meter.estimate().cost == Cost(0.0, pytest.approx(0.1))


def known(sample_s, measurements=20):
    return Estimate(Cost(0.0, sample_s), 0.001, measurements)


def test_who_takes_what_is_told_with_its_reason():
    balance = Balance()
    assert balance.shares(100, 2) == (50, 50)
    assert balance.explain() == "balance: each worker takes an equal share, until it is measured"
    assert balance.decide([known(1e-3), known(2e-3)], 100)
    assert balance.shares(100, 2) == (67, 33)
    assert balance.explain() == (
        "balance: worker 0 takes 67 of 100 samples (1 ms a sample), worker 1 takes 33 of 100 samples (2 ms a sample)"
    )


def test_what_saves_little_is_left_alone():
    balance = Balance()
    assert not balance.decide([known(1e-3), known(1.01e-3)], 1000)
    assert balance.shares(1000, 2) == (500, 500)
    assert balance.wait == SELDOM - 1  # all is known: the next look is a while off


def test_a_newcomer_is_taken_for_an_average_worker_until_it_is_measured():
    balance = Balance()
    assert balance.decide([known(1e-3), known(3e-3), None], 100)
    assert balance.shares(100, 3) == (55, 18, 27)
    assert balance.wait == 0  # all look again after the next batch


def test_with_other_workers_shares_are_even_until_estimates_are_compared():
    balance = Balance()
    balance.decide([known(1e-3), known(2e-3)], 100)
    assert balance.shares(99, 3) == (33, 33, 33)
    balance.forget()
    assert balance.shares(100, 2) == (50, 50)


def test_a_part_is_never_smaller_than_the_least():
    balance = Balance()
    balance.decide([known(1e-3), known(1.0)], 10, 2)
    assert balance.shares(10, 2, 2) == (8, 2)
    assert balance.shares(10, 2) == (9, 1)
    assert balance.shares(3, 2, 2) == (1, 2)  # too few: as without balance

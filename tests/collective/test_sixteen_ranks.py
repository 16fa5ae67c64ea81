"""Sixteen processes on four hosts (network namespaces joined by a switch) run a schedule that was composed, with the
bits of one process and in the time that is predicted from the links that they measured."""

import time

import pytest
import torch
from namespaces import namespaces
from ranks import Ranks, move

from gradtide.collective.executors.execute import execute_in_process
from gradtide.collective.groups.group import Group
from gradtide.schedule.plan import request_for
from gradtide.schedule.predict.simulate import simulate
from gradtide.schedule.strategies import STRATEGIES
from gradtide.schedule.verify import verify
from gradtide.topology.model import NodeKind

RANKS, HOSTS, COUNT, REPEATS = 16, 4, 1 << 20, 5
RATE, RATE_BYTES = "40mbit", 5e6  # slow enough that two cores are not what sixteen processes wait for


def contribution(rank):
    return torch.randn(COUNT, generator=torch.Generator().manual_seed(rank))


def run_composed(rank, size):
    """What the rank got, the schedule, the probed topology, and how long it took."""
    with Group.from_environment(timeout_s=120) as group:
        topology = group.probe(budget_s=6.0)
        schedule = STRATEGIES["hierarchical-halving"](request_for(topology, 4 * COUNT))
        tensor, taken = group.shared_tensor(COUNT), []
        for _ in range(REPEATS):
            tensor.copy_(contribution(rank))
            group.barrier()
            begin = time.perf_counter()
            group.all_reduce(tensor, strategy=schedule)
            taken.append(time.perf_counter() - begin)
        got = tensor.clone()
    return got, schedule, topology, taken


@pytest.fixture(scope="module")
def found():
    with namespaces(HOSTS, RATE) as hosts:
        ranks = Ranks(RANKS)
        try:
            ranks.run(move, RANKS, hosts)
            ranks.start(run_composed, RANKS)
            yield [ranks.answer(rank, 300) for rank in range(RANKS)]
        finally:
            ranks.close()


@pytest.mark.slow
def test_sixteen_processes_on_four_hosts_give_the_bits_of_one_process(found):
    schedule = found[0][1]
    verify(schedule)
    alone = [contribution(rank) for rank in range(RANKS)]
    execute_in_process(schedule, alone, "sum", None)
    for rank, (got, *_) in enumerate(found):
        assert torch.equal(got, alone[rank]), f"rank {rank} has other bits"


@pytest.mark.slow
@pytest.mark.timing
def test_sixteen_processes_on_four_hosts_take_the_time_that_is_predicted_from_what_they_measured(found):
    _, schedule, topology, _ = found[0]
    network = [node.name for node in topology.nodes if node.kind is NodeKind.SWITCH]
    wires = [link for link in topology.links if {link.source, link.target} & set(network)]
    rates = [link.bytes_per_s for link in wires]
    # The shortest of some: whatever else this machine does only makes them longer.
    measured_s = min(max(times) for times in zip(*(taken for *_, taken in found), strict=True))
    predicted_s = simulate(schedule, topology, 4 * COUNT).seconds
    print(f"measured {measured_s:.4f} s, predicted {predicted_s:.4f} s: {measured_s / predicted_s:.3f}; NICs {rates}")
    # Four NICs, each way, and what was probed is the rate that was set but for headers and other work of this machine.
    assert len(rates) == 2 * HOSTS, topology.links
    assert all(0.75 * RATE_BYTES < rate < 1.35 * RATE_BYTES for rate in rates), rates
    assert 0.75 < measured_s / predicted_s < 1.25, (measured_s, predicted_s)

from datetime import timedelta

import pytest
import torch
from cases import group_of, same
from hypothesis import given, settings
from hypothesis import strategies as st

from gradtide.collective.executors.choose import choose, nominal_topology
from gradtide.collective.executors.execute import execute_in_process
from gradtide.collective.executors.torch_wire import execute_over_torch
from gradtide.errors import ScheduleError
from gradtide.schedule.model import Op, Schedule
from gradtide.schedule.plan import plan
from gradtide.schedule.request import STRATEGIES, NotApplicable, Request
from gradtide.schedule.serialize import schedule_from_json, schedule_to_json
from gradtide.topology.model import Link, Node, NodeKind, Topology
from gradtide.topology.presets import preset
from gradtide.topology.what_if import degraded

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.complex64)
_gloo = {}


def _data(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(17 + rank)
    return (torch.randn(count, generator=generator) * 1000).to(dtype)


def three_ways(rank, size, text, count, dtype, reduction, shared, folder):
    """Runs a schedule on each executor; says which gave other bits."""
    schedule = schedule_from_json(text)
    inputs = [_data(r, count, dtype) for r in range(size)]
    group = group_of(rank, size)
    over_memory = group.shared_tensor(count, dtype).copy_(inputs[rank]) if shared else inputs[rank].clone()
    group.all_reduce(over_memory, reduction, strategy=schedule)
    if size not in _gloo:
        store = torch.distributed.FileStore(f"{folder}/store{size}", size)
        _gloo[size] = torch.distributed.ProcessGroupGloo(store, rank, size, timedelta(seconds=30))
    over_messages = inputs[rank].clone()
    execute_over_torch(schedule, over_messages, reduction, group=_gloo[size])
    in_process = [tensor.clone() for tensor in inputs]
    execute_in_process(schedule, in_process, reduction)
    assert same(over_memory, in_process[rank]), f"shared memory: {over_memory} is not {in_process[rank]}"
    assert same(over_messages, in_process[rank]), f"messages: {over_messages} is not {in_process[rank]}"
    total = torch.stack([tensor.to(torch.complex128) for tensor in inputs]).sum(0)
    total = total / size if reduction == "mean" else total
    if dtype == torch.float32:
        torch.testing.assert_close(over_memory, total.real.to(dtype), rtol=1e-5, atol=1e-2)


def _schedules():
    """Each strategy on what it is for: ranks of one host, ranks of two, GPUs with a host that helps."""
    shapes = [nominal_topology([0, 0, 0]), nominal_topology([0, 0, 1, 1]), preset("pcie-4gpu")]
    slow = degraded(preset("rail:2x2x2@100"), "host1.nic0", 0.5)
    for name in sorted(STRATEGIES):
        for topology in shapes if name != "balanced-rails" else [slow]:
            devices = tuple(node.name for node in topology.nodes if node.kind is NodeKind.DEVICE)
            try:
                yield pytest.param(STRATEGIES[name](Request(topology, devices, 1 << 20)), id=f"{name}-{topology.name}")
            except NotApplicable:
                continue


@pytest.mark.parametrize("schedule", list(_schedules()))
def test_a_schedule_gives_the_same_bits_on_devices_over_memory_and_over_messages(ranks, schedule, tmp_path_factory):
    folder = str(tmp_path_factory.getbasetemp())
    text = schedule_to_json(schedule)

    @settings(max_examples=6, derandomize=True, deadline=None, database=None)
    @given(
        count=st.sampled_from([0, 1, 3, 1000, 70_001]),
        dtype=st.sampled_from(DTYPES),
        mean=st.booleans(),
        shared=st.booleans(),
    )
    def run(count, dtype, mean, shared):
        reduction = "mean" if mean and dtype.is_floating_point else "sum"
        ranks.run(three_ways, schedule.contributors, text, count, dtype, reduction, shared, folder)

    run()


def test_every_strategy_runs_somewhere():
    ran = {parameter.id.split("-nominal")[0].split("-pcie")[0].split("-rail:")[0] for parameter in _schedules()}
    assert ran == set(STRATEGIES)


def by_name(rank, size, strategy):
    group, tensor = group_of(rank, size), torch.full((1000,), float(rank + 1))
    group.all_reduce(tensor, strategy=strategy)
    assert tensor.eq(size * (size + 1) / 2).all()


@pytest.mark.parametrize("strategy", ["ring", "tree", "auto"])
def test_a_strategy_can_be_asked_for_by_name(ranks, strategy):
    ranks.run(by_name, 4, strategy)


def probed(rank, size):
    group = group_of(rank, size, "probed")
    topology = group.probe(budget_s=0.2)
    tensor = torch.ones(100_000)
    group.all_reduce(tensor, strategy="auto")
    assert tensor.eq(size).all()
    return [(link.source, link.target, link.bytes_per_s, link.latency_s) for link in topology.links]


def test_all_ranks_plan_on_the_same_probed_topology(ranks):
    links = ranks.run(probed, 3)
    assert links[0] == links[1] == links[2]
    assert {(source, target) for source, target, *_ in links[0]} == {
        (f"rank{a}", f"rank{b}") for a in range(3) for b in range(3) if a != b
    }


def wrong_schedule(rank, size):
    group = group_of(rank, size)
    ops = (Op(0, 0, 1, 0, "reduce"), Op(1, 0, 1, 0, "copy", (0,)))
    with pytest.raises(ScheduleError, match="at the end rank 0 lacks rank 1"):
        group.all_reduce(torch.ones(4), strategy=Schedule("bad", "all_reduce", ("a", "b"), 2, (1,), ops))
    request = Request(nominal_topology([0, 0, 0]), ("rank0", "rank1", "rank2"), 100)
    for_three = STRATEGIES["ring"](request)
    with pytest.raises(ScheduleError, match="is for 3 ranks, but 2 take part"):
        group.all_reduce(torch.ones(4), strategy=for_three)


def test_a_schedule_that_is_wrong_or_for_others_is_refused_before_anything_moves(ranks):
    ranks.run(wrong_schedule, 2)


def test_of_plans_that_are_even_the_one_with_the_fewest_messages_is_taken():
    """One direction is a little slower than the other, so that finer plans are a little faster by the planner."""
    nodes = tuple(Node(f"rank{i}", NodeKind.DEVICE, f"host{i}") for i in range(2))
    links = (Link("rank0", "rank1", 119e6, 1.2e-4), Link("rank1", "rank0", 118e6, 1.3e-4))
    topology = Topology("probed", nodes, links)
    assert len(plan(topology, 1 << 20).best.schedule.ops) > 100
    assert len(choose("auto", topology, 1 << 20).ops) == 4

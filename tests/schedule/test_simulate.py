import time

import numpy as np
import pytest

from clock import at_most
from gradtide.errors import ConfigError, ScheduleError
from gradtide.schedule import strategies
from gradtide.schedule.model import Op, Schedule
from gradtide.schedule.predict.servers_model import ServerCluster, push_pull_seconds
from gradtide.schedule.predict.sharing import Path, Sharing
from gradtide.schedule.predict.simulate import simulate
from gradtide.schedule.request import STRATEGIES, Request
from gradtide.topology.model import Link, Node, NodeKind, Topology
from gradtide.topology.presets import both_ways, preset

pytestmark = pytest.mark.quick

assert strategies.__all__


def wired(*links: Link) -> Topology:
    names = dict.fromkeys(name for link in links for name in (link.source, link.target))
    kinds = {name: NodeKind.SWITCH if name.startswith("s") else NodeKind.DEVICE for name in names}
    return Topology("mine", tuple(Node(name, kind) for name, kind in kinds.items()), links)


def schedule(ranks: str, *ops: Op, weights: tuple[int, ...] = (1,)) -> Schedule:
    return Schedule("mine", "broadcast", tuple(ranks), len(ranks), weights, ops, (0,) * len(weights))


def test_one_op_takes_its_route_s_latency_and_its_bytes():
    topology = wired(Link("a", "s", 100.0, 0.25), Link("s", "b", 50.0, 0.5))
    run = simulate(schedule("ab", Op(0, 0, 1, 0, "copy")), topology, 100)
    assert run.seconds == pytest.approx(2.75)
    assert list(run.link_bytes) == [100.0, 100.0]
    assert (run.busiest_link, run.busiest_seconds, run.wire_bytes) == ("s->b", 2.0, 100.0)
    assert (run.start_s[0], run.moving_s[0]) == (0.0, 0.75)
    assert simulate(schedule("ab", Op(0, 0, 1, 0, "copy")), topology, 100, latency=False).seconds == pytest.approx(2.0)


def test_flows_share_a_link_and_speed_up_when_others_end():
    topology = wired(Link("a", "s", 100.0, 0.0), Link("s", "b", 100.0, 0.0), Link("s", "c", 100.0, 0.0))
    ops = (Op(0, 0, 1, 0, "copy"), Op(1, 0, 2, 1, "copy"))
    run = simulate(schedule("abc", *ops, weights=(1, 3)), topology, 400)
    assert list(run.end_s) == pytest.approx([2.0, 4.0])  # 50 a second each for 2 s, then 100 for the rest


def test_max_min_fairness_gives_the_unhindered_flow_what_others_cannot_use():
    """a->d shares a 60-wide link with b->d and c->d; b also shares a 10-wide one: the classic parking lot."""
    topology = wired(
        Link("a", "s", 1000.0, 0.0), Link("b", "s", 10.0, 0.0), Link("c", "s", 1000.0, 0.0), Link("s", "d", 60.0, 0.0)
    )
    ops = tuple(Op(i, i, 3, i, "copy") for i in range(3))
    run = simulate(schedule("abcd", *ops, weights=(25, 10, 25)), topology, 60)
    assert list(run.end_s) == pytest.approx([1.0, 1.0, 1.0])


def test_links_of_one_wire_share_it_and_parallel_wires_add_up():
    bus = wired(Link("a", "b", 100.0, 0.0, wire="bus"), Link("b", "a", 100.0, 0.0, wire="bus"))
    ops = (Op(0, 0, 1, 0, "copy"), Op(1, 1, 0, 1, "copy"))
    run = simulate(schedule("ab", *ops, weights=(1, 1)), bus, 200)
    assert run.seconds == pytest.approx(2.0)
    assert run.busiest_link == "bus"
    double = wired(Link("a", "b", 50.0, 0.0, count=2))
    assert simulate(schedule("ab", ops[0]), double, 200).seconds == pytest.approx(2.0)


def test_ops_of_one_lane_move_one_after_the_other_and_their_latencies_overlap():
    topology = wired(Link("a", "b", 100.0, 1.0))
    ops = tuple(Op(i, 0, 1, i, "copy") for i in range(3))
    run = simulate(schedule("ab", *ops, weights=(1, 1, 1)), topology, 300)
    assert list(run.end_s) == pytest.approx([2.0, 3.0, 4.0])
    apart = tuple(op._replace(channel=op.id) for op in ops)
    assert list(simulate(schedule("ab", *apart, weights=(1, 1, 1)), topology, 300).end_s) == pytest.approx([4.0] * 3)


def test_an_op_without_a_route_is_refused_by_name():
    topology = wired(Link("a", "b", 1.0, 0.0), Link("b", "c", 1.0, 0.0))
    with pytest.raises(ScheduleError, match="from a to c without passing through a device"):
        simulate(schedule("abc", Op(0, 0, 2, 0, "copy")), topology, 1)


def test_shares_are_max_min_fair():
    """Every resource carries no more than it can; on some of each flow's, which is full, nobody gets more than it."""
    chance = np.random.default_rng(3)
    for _ in range(100):
        capacity = chance.uniform(1, 10, 12)
        routes = [tuple(int(r) for r in chance.choice(12, chance.integers(1, 4))) for _ in range(30)]  # some twice
        paths = [Path(r, 0.0, min(capacity[n] / r.count(n) for n in r), r) for r in routes]
        sharing, flows, rates = Sharing(paths, list(capacity)), [], []
        present = sorted(int(at) for at in chance.choice(30, 12, replace=False))
        for company, members in sharing.companies(sum(1 << at for at in present)):
            counts = tuple(int(count) for count in chance.integers(1, 4, len(members)))
            flows += [(paths[member], count) for member, count in zip(members, counts, strict=True)]
            rates += sharing.fair_rates(members, counts, company)
        assert sorted(path.resources for path, _ in flows) == sorted(routes[at] for at in present)
        load = np.zeros(12)
        highest = np.zeros(12)
        for (path, count), rate in zip(flows, rates, strict=True):
            np.add.at(load, list(path.resources), rate * count)
            highest[list(path.resources)] = np.maximum(highest[list(path.resources)], rate)
        assert (load <= capacity * (1 + 1e-9)).all()
        for (path, _), rate in zip(flows, rates, strict=True):  # each has a full resource on which nobody gets more
            full = [r for r in path.resources if load[r] >= capacity[r] * (1 - 1e-9)]
            assert any(rate >= highest[r] * (1 - 1e-9) for r in full)


def test_a_ring_of_64_is_simulated_in_under_a_second():
    topology = preset("ring:64")
    ring = STRATEGIES["ring"](Request(topology, tuple(f"gpu{i}" for i in range(64)), 64_000_000))
    assert len(ring.ops) == 8064
    start = time.process_time()
    run = simulate(ring, topology, 64_000_000)
    assert time.process_time() - start < at_most(1)
    assert run.seconds == pytest.approx(126 * (3e-6 + 1e6 / 10e9))


def test_one_server_takes_time_in_proportion_to_workers_and_many_servers_take_the_same_time():
    gbit = 12.5e9
    one = [push_pull_seconds(ServerCluster([gbit] * m, 1, gbit), 10**8).seconds for m in (100, 1000, 10_000)]
    assert one == pytest.approx([2 * 100 * 0.008, 2 * 1000 * 0.008, 2 * 10_000 * 0.008])
    start = time.process_time()
    many = [push_pull_seconds(ServerCluster([gbit] * m, m, gbit), 10**8).seconds for m in (100, 1000, 10_000)]
    assert time.process_time() - start < at_most(2)
    assert many == pytest.approx([0.016] * 3)


@pytest.mark.parametrize(("workers", "servers"), [(8, 4), (8, 1), (4, 8), (6, 0)])
def test_the_aggregate_form_agrees_with_the_simulation_of_every_op(workers: int, servers: int):
    """Machines whose inside is so fast that only the network counts; 0 servers means one in every machine."""
    nodes, links = [Node("s", NodeKind.SWITCH)], []
    for machine in range(workers + servers):
        nodes += [Node(f"cpu{machine}", NodeKind.HOST, f"m{machine}")]
        links += both_ways(f"cpu{machine}", "s", 1e9, 0.0)
    for machine in range(workers):
        nodes += [Node(f"gpu{machine}", NodeKind.DEVICE, f"m{machine}")]
        links += both_ways(f"gpu{machine}", f"cpu{machine}", 1e15, 0.0)
    topology = Topology("mine", tuple(nodes), tuple(links))
    plan = STRATEGIES["servers"](Request(topology, tuple(f"gpu{i}" for i in range(workers)), 10**9))
    cluster = ServerCluster([1e9] * workers, servers or workers, 1e9, co_located=not servers)
    assert simulate(plan, topology, 10**9).seconds == pytest.approx(push_pull_seconds(cluster, 10**9).seconds, rel=1e-3)


def test_a_slow_worker_holds_up_the_round_but_takes_no_more_than_its_share():
    cluster = ServerCluster([1.0, 10.0, 10.0], 1, 15.0)
    assert push_pull_seconds(cluster, 10).push_seconds == pytest.approx(10.0)
    shared = push_pull_seconds(ServerCluster([10.0, 10.0, 10.0], 1, 15.0), 10)
    assert shared.push_seconds == pytest.approx(2.0)
    assert shared.bottleneck == "servers"
    with pytest.raises(ConfigError, match="4 servers can't share the ports of 3 workers"):
        push_pull_seconds(ServerCluster([1.0] * 3, 4, 1.0, co_located=True), 10)

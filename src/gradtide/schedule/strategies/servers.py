"""servers: parameter servers, in the textbook's seven steps.

    1 each GPU computes its gradient           5 servers send the result to the CPUs
    2 the GPUs of a machine aggregate          6 CPUs send it to a GPU
    3 those GPUs send to their CPU             7 which spreads it to the machine's GPUs
    4 CPUs send to the servers, which aggregate

Servers are the CPUs of machines without an asked device; where there are none, every machine's CPU is one too.
"""

from collections.abc import Sequence

from gradtide.schedule.build.shapes import Edge, away, grow, inwards, outwards, towards
from gradtide.schedule.build.wiring import Wiring, hosts_of, machines_of, need, wiring_of
from gradtide.schedule.build.writer import TreePart, assemble
from gradtide.schedule.model import Schedule
from gradtide.schedule.request import Request, strategy


@strategy("servers")
def servers(request: Request) -> Schedule:
    need(request.collective == "all_reduce", "servers in the middle help only all_reduce")
    machines, reachable = machines_of(request), hosts_of(request)
    where = {node.name: node.machine for node in request.topology.nodes}
    homes = [where[request.devices[ranks[0]]] for ranks in machines]
    cpus = [next((host for host in reachable if where[host] == home), "") for home in homes]
    need(all(cpus), "not every machine has a host that all devices reach")
    dedicated = [host for host in reachable if where[host] not in homes]
    helpers = (*cpus, *dedicated)
    wiring, first = wiring_of(request, helpers), len(request.devices)
    cpu_ranks = range(first, first + len(cpus))
    server_ranks = range(first + len(cpus), first + len(helpers)) if dedicated else cpu_ranks
    pieces = range(max(len(ranks) for ranks in machines))
    parts = [_part(wiring, machines, cpu_ranks, server, piece) for server in server_ranks for piece in pieces]
    return assemble(request, "servers", parts, helpers)


def _part(wiring: Wiring, machines: list[list[int]], cpus: Sequence[int], server: int, piece: int) -> TreePart:
    """One server's key range, a piece of it aggregated by each GPU of a machine."""
    in_trees: list[Edge] = []
    out_trees: list[Edge] = []
    others = [cpu for cpu in cpus if cpu != server]
    turn = server % len(cpus)  # each server begins with another CPU, so that no port is the first of all
    hub = [(server, cpu) for cpu in [*others[turn:], *others[:turn]]]
    for cpu, ranks in zip(cpus, machines, strict=True):
        head = ranks[piece % len(ranks)]
        at = ranks.index(head)
        order = [*ranks[at:], *ranks[:at]]
        in_trees += [(cpu, head), *grow(head, order, towards(wiring), len(order))]
        out_trees += [(cpu, head), *grow(head, order, away(wiring), len(order))]
    return TreePart(1, server, inwards([*hub, *in_trees]), outwards([*hub, *out_trees]))

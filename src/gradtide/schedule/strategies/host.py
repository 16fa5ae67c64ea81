"""host: a CPU gathers everything, adds it up, and sends the result to all."""

from gradtide.schedule.build.shapes import star_in, star_out
from gradtide.schedule.build.wiring import hosts_of, need
from gradtide.schedule.build.writer import TreePart, assemble
from gradtide.schedule.model import Schedule
from gradtide.schedule.request import Request, strategy


@strategy("host")
def host(request: Request) -> Schedule:
    need(request.collective == "all_reduce", "a host in the middle helps only all_reduce")
    hosts = hosts_of(request)
    need(bool(hosts), "no host has a route to and from all devices")
    ranks = range(len(request.devices))
    aggregator = len(ranks)
    part = TreePart(1, aggregator, star_in(aggregator, ranks), star_out(aggregator, ranks))
    return assemble(request, "host", [part], helpers=hosts[:1])

"""What a job needs of a cluster's nodes, and whether it has that: pure. Ray's placement groups find which nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

from gradtide.errors import ConfigError

__all__ = ["ClusterNode", "JobSize", "NodeShare", "share_out"]


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node that lives, and what it has in all."""

    id: str
    address: str
    cpus: float
    gpus: float = 0.0
    port: int = 0  # of Ray's process there


@dataclass(frozen=True, slots=True)
class JobSize:
    """What was asked for."""

    workers: int
    servers: int = 0
    replicas: int = 0
    per_node: int | None = None  # workers; None: as many as one takes
    cpus_each: int = 1  # of a worker; a server has one
    gpus_each: int = 0

    def share(self, workers: int, servers: int) -> "NodeShare":
        """What so many of them need."""
        return NodeShare(workers, servers, workers * self.cpus_each + servers, workers * self.gpus_each)


@dataclass(frozen=True, slots=True)
class NodeShare:
    """What one node is to run."""

    workers: int
    servers: int
    cpus: int
    gpus: int

    def bundle(self) -> dict[str, float]:
        """As Ray's placement groups take it."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}


def share_out(size: JobSize, nodes: Sequence[ClusterNode]) -> list[NodeShare]:
    """A share for each node that is needed: workers packed, servers spread. ConfigError says what is missing."""
    if not nodes:
        raise ConfigError("the Ray cluster has no node that lives; start one: ray start --address=...")
    per_node = size.per_node or _most_on_one(size, nodes)
    full, rest = divmod(size.workers, per_node)
    workers = [per_node] * full + [rest] * bool(rest)
    of_servers = size.servers if size.replicas else min(size.servers, len(nodes))
    workers += [0] * (of_servers - len(workers))
    if len(workers) > len(nodes):
        raise ConfigError(f"{_wanted(size, per_node)} need {len(workers)} nodes, and the cluster has {len(nodes)}")
    servers = [0] * len(workers)
    for _ in range(size.servers):
        emptiest = min(range(len(workers)), key=lambda i: (servers[i], workers[i]))
        servers[emptiest] += 1
    shares = [size.share(*both) for both in zip(workers, servers, strict=True)]
    _check_room(shares, nodes)
    return shares


def _most_on_one(size: JobSize, nodes: Sequence[ClusterNode]) -> int:
    most = max(_fits(size, node) for node in nodes)
    return max(1, min(most, size.workers))


def _fits(size: JobSize, node: ClusterNode) -> int:
    """Workers that a node takes, besides a server."""
    by_cpu = int(node.cpus - bool(size.servers)) // size.cpus_each
    return min(by_cpu, int(node.gpus) // size.gpus_each) if size.gpus_each else by_cpu


def _check_room(shares: Sequence[NodeShare], nodes: Sequence[ClusterNode]) -> None:
    """The largest share goes to the largest node, and so on: if that does not fit, nothing does."""
    largest = sorted(nodes, key=lambda node: (node.gpus, node.cpus), reverse=True)
    for share, node in zip(sorted(shares, key=lambda s: (s.gpus, s.cpus), reverse=True), largest, strict=False):
        for what, needed, has in (("CPU", share.cpus, node.cpus), ("GPU", share.gpus, node.gpus)):
            if needed > has:
                raise ConfigError(
                    f"{_count(share.workers, 'worker')} and {_count(share.servers, 'server')} on a node need "
                    f"{_count(needed, what)}, and {node.address} has {has:g}; add nodes, or take a smaller "
                    "--workers-per-node, or less of them"
                )


def _wanted(size: JobSize, per_node: int) -> str:
    workers = f"{_count(size.workers, 'worker')}, {per_node} a node"
    if not size.servers:
        return workers
    copies = f" with {_count(size.replicas, 'replica')}" if size.replicas else ""
    return f"{workers}, and {_count(size.servers, 'server')}{copies}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"

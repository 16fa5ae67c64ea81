"""A job's agents on a Ray cluster: an actor on each node, which runs launch/agent.py. Placement groups say where."""

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from gradtide.errors import ConfigError, GradtideError
from gradtide.launch.agent import Agent
from gradtide.launch.target import Target
from gradtide.ray.connecting import cluster_nodes, why_silent
from gradtide.ray.placing import ClusterNode, JobSize, NodeShare
from gradtide.transport.authenticate import parse_address
from gradtide.transport.keys import Credentials, Key

__all__ = ["AgentActor", "AgentFailure", "AgentOrders", "AgentPlace", "Agents"]

_PLACE_S = 60.0
_TRY_S = 1.0  # how long Ray may look for room for what died, before less is asked for


@dataclass(frozen=True, slots=True)
class AgentOrders:
    """What every agent is told."""

    head: str
    target: Target
    folder: str = ""  # that all nodes must see; empty: none
    marker: str = ""  # a file in it, which the driver has just made


class AgentActor:
    """One node's. Its process has one call: its end is the agent's, and what the agent started ends with it."""

    def run(self, orders: AgentOrders, secret: bytes, node: str, slots: int) -> int:
        """The secret is a call's argument: what Ray sets up an actor with, it also keeps and shows."""
        if not orders.target.is_module and not Path(orders.target.name).exists():
            raise ConfigError(
                f"node {node} has no {orders.target.name} in the folder that Ray has brought there; is it named in a "
                ".gitignore or .rayignore?"
            )
        if orders.folder and not Path(orders.folder, orders.marker).exists():
            raise ConfigError(
                f"node {node} does not see {orders.folder} as the driver does; checkpoints need a folder that all "
                "nodes share (NFS, say)"
            )
        credentials = Credentials((Key(secret),))
        return Agent(parse_address(orders.head), credentials, node, slots=slots or -1).run()


@dataclass(frozen=True, slots=True)
class AgentPlace:
    """Where an agent is, and what its node is to run."""

    name: str
    node: ClusterNode
    share: NodeShare
    group: Any  # the placement group, and which of its bundles
    bundle: int


@dataclass(frozen=True, slots=True)
class AgentFailure:
    """Why an agent is not in the job. `for_good`: it would not be there the next time either."""

    name: str
    why: str
    for_good: bool


@dataclass(slots=True)
class Agents:
    """All of a job's, as its driver sees them. What takes Ray long happens in a thread of its own."""

    size: JobSize
    orders: AgentOrders
    secret: bytes = field(repr=False)
    places: dict[str, AgentPlace] = field(default_factory=dict)
    failures: "SimpleQueue[AgentFailure]" = field(default_factory=SimpleQueue)
    _groups: list[Any] = field(default_factory=list)
    _actors: list[Any] = field(default_factory=list)
    _unfit: set[str] = field(default_factory=set)  # nodes, by Ray's number, that can't be in the job
    _closing: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, shares: Sequence[NodeShare]) -> list[str]:
        """One on each of as many nodes; their names. Returns before they have joined."""
        group = self._place([share.bundle() for share in shares], "STRICT_SPREAD", _PLACE_S)
        if group is None:
            wanted = ", ".join(f"{share.cpus} CPU" for share in shares)
            raise ConfigError(
                f"Ray has found no room on {len(shares)} nodes ({wanted}) within {_PLACE_S:g} s: others use them; wait "
                "until they are done (ray status), or ask for less"
            )
        where = _nodes_of(group)
        return [self._begin(group, i, where[i], share) for i, share in enumerate(shares)]

    def replace(self, name: str, *, elsewhere: bool = False) -> None:
        """That agent is gone: what it had is to run again where it was, if its node is still there, or elsewhere, once
        there is room. Returns at once."""
        place = self.places[name]
        if elsewhere:
            self._unfit.add(place.node.id)
        threading.Thread(target=self._replace, args=(place,), name=f"gradtide-for-{name}", daemon=True).start()

    def add(self, share: NodeShare) -> None:
        """One more agent with that share, or several, once there is room. Returns at once."""
        threading.Thread(target=self._find_room, args=(share,), name="gradtide-more", daemon=True).start()

    def _place(self, bundles: list[dict[str, float]], strategy: str, timeout_s: float) -> Any:
        group = placement_group(bundles, strategy=strategy)
        deadline_s = time.monotonic() + timeout_s
        while not group.wait(min(0.2, timeout_s)):
            if time.monotonic() > deadline_s or self._closing.is_set():
                remove_placement_group(group)
                return None
        self._groups.append(group)
        return group

    def _begin(self, group: Any, bundle: int, node: ClusterNode, share: NodeShare) -> str:
        with self._lock:
            before = sum(place.node.address == node.address for place in self.places.values())
            name = f"{node.address}#{before + 1}" if before else node.address
            self.places[name] = AgentPlace(name, node, share, group, bundle)
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        made = ray.remote(AgentActor).options(num_cpus=0, num_gpus=share.gpus, scheduling_strategy=strategy).remote()
        self._actors.append(made)
        ended = made.run.remote(self.orders, self.secret, name, share.workers)
        threading.Thread(target=self._watch, args=(name, ended), name=f"gradtide-{name}", daemon=True).start()
        return name

    def _watch(self, name: str, ended: Any) -> None:
        try:
            ray.get(ended)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            own = isinstance(cause, GradtideError)
            why = str(cause) if own else f"node {name}: {type(cause).__name__}: {_first_line(cause)}"
            self.failures.put(AgentFailure(name, why, for_good=True))
        except Exception as error:  # its process, or its node, is gone; the head knows that first
            lacking = re.search(r"No module named '(gradtide|torch)[\w.]*'", str(error))
            why = f"the agent of node {name} could not be started ({_first_line(error)})"
            if lacking is not None:
                why = f"node {name} lacks what the job needs ({lacking[0]}); install the same on all nodes"
            self.failures.put(AgentFailure(name, why, for_good=lacking is not None))

    def _replace(self, place: AgentPlace) -> None:
        if self._is_fit(place.node):  # its process was killed, and what Ray gave us there is still ours
            self._begin(place.group, place.bundle, place.node, place.share)
        else:
            self._find_room(place.share)

    def _is_fit(self, node: ClusterNode) -> bool:
        return node.id not in self._unfit and not why_silent(node)

    def _find_room(self, share: NodeShare) -> None:
        """In one place if there is one, else in several. Ray may still believe that a lost node lives: what it gives us
        there stays taken, so that the next is elsewhere."""
        workers, servers, pieces = share.workers, share.servers, 1
        while workers + servers and not self._closing.is_set():
            wanted = self.size.share(-(-workers // pieces), -(-servers // pieces))
            group = self._place([wanted.bundle()], "PACK", _TRY_S)
            if group is None:
                pieces = pieces * 2 if pieces < max(workers, servers) else 1
                continue
            (node,) = _nodes_of(group)
            if self._is_fit(node):
                self._begin(group, 0, node, wanted)
                workers, servers = workers - wanted.workers, servers - wanted.servers

    def close(self) -> None:
        """Ends all of them, and gives Ray back what they had."""
        self._closing.set()
        for actor in self._actors:
            ray.kill(actor)
        for group in self._groups:
            remove_placement_group(group)
        self._groups, self._actors = [], []


def _nodes_of(group: Any) -> list[ClusterNode]:
    """The node of each bundle."""
    known = {node.id: node for node in cluster_nodes(ray)}
    table = placement_group_table(group)["bundles_to_node_id"]
    return [known.get(table[i], ClusterNode(table[i], table[i], 0.0)) for i in sorted(table)]


def _first_line(error: object) -> str:
    return next(iter(str(error).splitlines()), "") or repr(error)

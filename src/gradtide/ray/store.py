"""A store on a Ray cluster: its servers and their coordinator are actors, and die with them."""

import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import ray
from msgspec.structs import replace
from ray.util import get_node_ip_address
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from gradtide.errors import ConfigError, GradtideError, PeerTimeout
from gradtide.store.local.roles import Role, make_process
from gradtide.transport.keys import Credentials, Key

__all__ = ["StoreActor", "StoreOnRay", "StoreWishes"]

_READY_S = 120.0  # for a process that has to import torch, on a node that may be busy
_LOOK_S = 1.0
_AGAIN_S = 0.5


@dataclass(frozen=True, slots=True)
class StoreWishes:
    """What a store on Ray is to be."""

    servers: int
    replicas: int = 0
    cpus_each: float = 1.0
    restore: str = ""  # a checkpoint that it begins with
    roots: tuple[str, ...] = ()  # where checkpoints may be written
    place_s: float = 60.0  # how long Ray may look for room

    def check(self) -> None:
        if self.servers < 1:
            raise ConfigError(f"{self.servers} servers can't hold anything; start at least one, or none at all")
        if not 0 <= self.replicas < self.servers:
            raise ConfigError(
                f"{self.replicas} replicas need {self.replicas + 1} servers, not {self.servers}: each copy is on "
                "another"
            )


class StoreActor:
    """One process of a store. Two calls at a time: one runs it, the other is told where."""

    def __init__(self) -> None:
        self._process: Any = None
        self._listens = threading.Event()

    def listen(self, role: Role, secret: bytes) -> str:
        """The secret is a call's argument and no constructor's: those are kept by Ray."""
        role = replace(role, address=f"tcp:{get_node_ip_address()}:0")
        self._process = make_process(role, Credentials((Key(secret),), role.name))
        self._listens.set()
        return str(self._process.address)

    def run(self) -> None:
        """Ends when the process does; until it listens there is nothing to run."""
        if self._listens.wait(_READY_S):
            self._process.run()


@dataclass(slots=True)
class StoreOnRay:
    """A running store. A server whose actor ends is started again, as long as this process lives."""

    wishes: StoreWishes
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    address: str = ""
    _group: PlacementGroup | None = None
    _actors: dict[str, Any] = field(default_factory=dict)
    _ends: dict[Any, str] = field(default_factory=dict)  # which actor's run a reference is of
    _closing: threading.Event = field(default_factory=threading.Event)
    _watcher: threading.Thread | None = None

    def start(self) -> None:
        """Returns when all of them listen."""
        self.wishes.check()
        try:
            self._group = self._place()
            self.address = self._begin("coordinator").result(time.monotonic() + _READY_S)
            starting = [self._begin(f"server-{number}") for number in range(self.wishes.servers)]
            deadline_s = time.monotonic() + _READY_S
            for one in starting:
                one.result(deadline_s)
        except BaseException:
            self.close()
            raise
        self._watcher = threading.Thread(target=self._watch, name="gradtide-store-watch", daemon=True)
        self._watcher.start()

    def _place(self) -> PlacementGroup:
        """Servers on as many nodes as there are; the coordinator keeps copies on different ones."""
        wanted = [{"CPU": self.wishes.cpus_each}] * self.wishes.servers
        group = placement_group(wanted, strategy="SPREAD")
        if not group.wait(self.wishes.place_s):
            remove_placement_group(group)
            raise ConfigError(
                f"Ray has found no room for {self.wishes.servers} servers of {self.wishes.cpus_each:g} CPU each within "
                f"{self.wishes.place_s:g} s; add nodes, or ask for fewer workers or servers"
            )
        return group

    def _begin(self, name: str) -> "_Starting":
        role = Role(
            role="coordinator" if name == "coordinator" else "server", name=name, address="", coordinator=self.address,
            expected=self.wishes.servers, replicas=self.wishes.replicas, restore=self.wishes.restore,
            roots=self.wishes.roots,
        )  # fmt: skip
        actor = ray.remote(StoreActor).options(max_concurrency=2, **self._where(name)).remote()
        self._actors[name] = actor
        listening = actor.listen.remote(role, self.secret)
        self._ends[actor.run.remote()] = name
        return _Starting(name, listening)

    def _where(self, name: str) -> dict[str, Any]:
        """The coordinator is beside whoever started the store: without that one the job is over anyway."""
        if name == "coordinator":
            here = ray.get_runtime_context().get_node_id()
            return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False)}
        number = int(name.removeprefix("server-"))
        assert self._group is not None
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)
        return {"num_cpus": self.wishes.cpus_each, "scheduling_strategy": place}

    def _watch(self) -> None:
        while not self._closing.wait(0):
            ended, _ = ray.wait(list(self._ends), timeout=_LOOK_S)
            for reference in ended:
                name = self._ends.pop(reference)
                if name == "coordinator":  # nothing of it is left: what trains goes on, without failover
                    continue
                if not self._closing.wait(_AGAIN_S):
                    self._begin(name)
            if not self._ends:
                return

    def close(self) -> None:
        """Ends all of it."""
        self._closing.set()
        if self._watcher is not None:
            self._watcher.join(2 * _LOOK_S)
        for actor in self._actors.values():
            ray.kill(actor)
        if self._group is not None:
            remove_placement_group(self._group)
        self._group = None


@dataclass(frozen=True, slots=True)
class _Starting:
    name: str
    listening: Any

    def result(self, deadline_s: float) -> str:
        try:
            return str(ray.get(self.listening, timeout=max(0.0, deadline_s - time.monotonic())))
        except ray.exceptions.GetTimeoutError:
            raise PeerTimeout(f"{self.name} did not listen within {_READY_S:g} s; is its node reachable?") from None
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, GradtideError) else ConfigError(
                f"{self.name} could not start ({str(cause).splitlines()[0] if str(cause) else cause!r})"
            ) from None  # fmt: skip
        except ray.exceptions.RayError as error:
            first = str(error).splitlines()[0]
            raise ConfigError(f"{self.name} could not start: {first}") from None

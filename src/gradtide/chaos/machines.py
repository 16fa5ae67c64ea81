"""A store on four machines, as far as the network goes: three have a server and a member of etcd each, two of them a
coordinator, and the fourth has the workers."""

import contextlib
import time
from collections.abc import Iterator

from gradtide.chaos.etcd_cluster import EtcdCluster
from gradtide.chaos.islands import Islands
from gradtide.errors import PeerTimeout
from gradtide.store.local.roles import Role

__all__ = ["MACHINES", "WORKERS", "Machines"]

MACHINES = ("m0", "m1", "m2")
WORKERS = "m3"
_COORDINATORS = 2
_PORT = 7070
_SERVER_PORT = 7077
_LEAD_S = 60.0


class Machines(Islands):
    """Each machine's processes can be killed one by one, or all together with its cable."""

    def _begin_all(self, servers: int, replicas: int) -> None:
        for machine in (*MACHINES, WORKERS):
            self._network.add(machine)
        self.etcd = EtcdCluster(self._network, self.folder, MACHINES)
        self._stack.callback(self.etcd.close)
        for machine in MACHINES:
            self.etcd.start(machine)
        self.etcd.wait_until_well()
        hosts = self._network.addresses
        addresses = {f"coordinator-{i}": f"tcp:{hosts[MACHINES[i]]}:{_PORT}" for i in range(_COORDINATORS)}
        self.address = ",".join(addresses.values())
        for i, (name, address) in enumerate(addresses.items()):
            self._machines[name] = MACHINES[i]
            self._begin(Role(role="coordinator", name=name, address=address, journal=str(self.etcd.place)))
        for i in range(servers):
            name, machine = f"server-{i}", MACHINES[i % len(MACHINES)]
            self._machines[name] = machine
            self._begin(
                Role(
                    role="server", name=name, address=f"tcp:{hosts[machine]}:{_SERVER_PORT + i}",
                    coordinator=self.address, expected=servers, replicas=replicas,
                )
            )  # fmt: skip
        for name in self._processes:
            self.wait_until_it_listens(name)

    @contextlib.contextmanager
    def at_the_workers(self) -> Iterator[None]:
        """This thread, and what it starts, on the workers' machine."""
        with self._network.at(WORKERS):
            yield

    def machine_of(self, name: str) -> str:
        return self._machines[name]

    def leader(self) -> str:
        """The name of the coordinator that leads, once one does."""
        deadline_s = time.monotonic() + _LEAD_S
        while time.monotonic() < deadline_s:
            address = self.etcd.leading_coordinator()
            for name, role in self._roles.items():
                if role.address == address:
                    return name
            time.sleep(0.05)
        raise PeerTimeout(f"no coordinator has led within {_LEAD_S:g} s")

    def part(self, one: str, other: str) -> None:
        """Cut the link between two machines."""
        self._network.part(one, other)

    def join(self, one: str, other: str) -> None:
        self._network.join(one, other)

    def kill_machine(self, machine: str) -> list[str]:
        """Its cable first: nobody is told by a closed connection. Returns whose processes were there."""
        self.unplug(machine)
        there = [name for name, where in self._machines.items() if where == machine]
        for name in there:
            self.kill(name)
        self.etcd.kill(machine)
        return there

    def start_machine(self, machine: str, names: list[str]) -> None:
        self.plug(machine)
        self.etcd.start(machine)
        for name in names:
            self.start_again(name)
        for name in names:
            self.wait_until_it_listens(name)

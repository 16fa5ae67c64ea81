"""Three members of etcd on machines of a MachineNetwork, which can be killed and started again."""

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from gradtide.chaos.networks import MachineNetwork
from gradtide.errors import ConfigError, PeerLost, PeerTimeout
from gradtide.store.coordinator.election.etcd_members import EtcdMembers
from gradtide.store.coordinator.election.etcd_place import EtcdPlace

__all__ = ["EtcdCluster"]

_CLIENTS, _PEERS = 2379, 2380
_WELL_S = 60.0
_LOOK_S = 0.1
_JOB = "drill"


class EtcdCluster:
    """Its members have the names of their machines."""

    def __init__(self, network: MachineNetwork, folder: str, machines: tuple[str, ...]) -> None:
        if not shutil.which("etcd"):
            raise ConfigError("this drill needs etcd 3.4 or later; install it: apt-get install etcd-server")
        self.machines, self._network, self._folder = machines, network, Path(folder)
        self._hosts = {machine: network.addresses[machine] for machine in machines}
        self.place = EtcdPlace(tuple((host, _CLIENTS) for host in self._hosts.values()), _JOB)
        self._all = EtcdMembers(self.place)
        self._each = {m: EtcdMembers(EtcdPlace(((host, _CLIENTS),), _JOB)) for m, host in self._hosts.items()}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, machine: str) -> None:
        host = self._hosts[machine]
        peers = ",".join(f"{name}=http://{address}:{_PEERS}" for name, address in self._hosts.items())
        clients, peer = f"http://{host}:{_CLIENTS}", f"http://{host}:{_PEERS}"
        command = [
            "etcd", "--name", machine, "--data-dir", str(self._folder / f"etcd-{machine}"), "--logger", "zap",
            "--listen-client-urls", clients, "--advertise-client-urls", clients,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", peers, "--initial-cluster-state", "new", "--initial-cluster-token", self._folder.name,
        ]  # fmt: skip
        with (self._folder / f"etcd-{machine}.log").open("ab") as log, self._network.at(machine):
            self._processes[machine] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, machine: str) -> None:
        with self._processes[machine] as process:
            process.kill()

    def close(self) -> None:
        for machine in list(self._processes):
            self.kill(machine)

    def wait_until_well(self) -> None:
        """Until all members answer, and agree on one leader."""
        deadline_s = time.monotonic() + _WELL_S
        while len({self._leader_seen_by(machine) for machine in self.machines} - {""}) != 1 or not self._all_answer():
            if time.monotonic() > deadline_s:
                raise PeerTimeout(f"etcd was not well within {_WELL_S:g} s; its output is in {self._folder}/etcd-*.log")
            time.sleep(_LOOK_S)

    def _all_answer(self) -> bool:
        return all(self._leader_seen_by(machine) for machine in self.machines)

    def _leader_seen_by(self, machine: str) -> str:
        """The number of the member that leads; nothing if this one does not answer, or knows of none."""
        try:
            return str(self._status(machine).get("leader", ""))
        except PeerLost:
            return ""

    def _status(self, machine: str) -> dict[str, Any]:
        return dict(self._each[machine].ask(lambda client: client.status()))

    def lead_from(self, machine: str) -> None:
        """Let this member lead."""
        self.wait_until_well()
        wanted = str(self._status(machine)["header"]["member_id"])
        deadline_s = time.monotonic() + _WELL_S
        while (leader := self._leader_seen_by(machine)) != wanted:
            if time.monotonic() > deadline_s:
                raise PeerTimeout(f"etcd's leadership did not go to {machine} within {_WELL_S:g} s")
            for other in self.machines:
                if leader and str(self._status(other)["header"]["member_id"]) == leader:
                    self._move_leader(other, wanted)
            time.sleep(_LOOK_S)

    def _move_leader(self, leader: str, target: str) -> None:
        wish, path = {"targetID": target}, "/maintenance/transfer-leadership"
        try:
            self._each[leader].ask(lambda client: client.post(client.get_url(path), json=wish))
        except PeerLost:
            return  # it is looked at again

    def leading_coordinator(self) -> str:
        """The address of the coordinator that leads; nothing if none does."""
        try:
            found = self._all.ask(lambda client: client.get(f"/gradtide/{_JOB}/leader"))
        except PeerLost:
            return ""
        return str(json.loads(found[0])["leader"]) if found and found[0] else ""

"""The head of a job on several machines: beside the driver, it decides, shows what workers write, and hosts the
registrar. On each machine an agent (agent.py) starts workers and ends them; whoever starts agents, gives each the
head's address and the job's secret.

    head = Head(spec, listen=parse_address("tcp:10.0.0.1:0"), credentials=read_credentials("job.secret"))
    ...  # start an agent on each node, which dials head.address
    head.expect(["a", "b", "c"])
    code = head.run({})
"""

import platform
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version

from gradtide.errors import ConfigError, FrameError, PeerTimeout
from gradtide.launch.nodes.door import Door, Visitor
from gradtide.launch.nodes.fleet import FleetJob, FleetNode
from gradtide.launch.nodes.remote_node import RemoteNode
from gradtide.launch.nodes.stores import TorchStores
from gradtide.launch.nodes.wire import FROM_AGENT, Greeting, NodeJoin, NotInJob, RoleEnded, encode
from gradtide.launch.output import Output
from gradtide.launch.running import MakeOutput
from gradtide.launch.spec import Spec, describe_nodes
from gradtide.transport.authenticate import Address
from gradtide.transport.keys import Credentials

__all__ = ["LEASE_S", "Head"]

LEASE_S = 2.0
_EXPECT_S = 60.0
_STORE_S = 60.0


class Head(FleetJob):
    """A job on several machines. `address` is where agents dial; `role_ended` hears of processes besides workers."""

    def __init__(
        self,
        spec: Spec,
        *,
        listen: Address,
        credentials: Credentials,
        advertise: str = "",
        workers_per_node: int | None = None,
        lease_s: float = LEASE_S,
        output: MakeOutput = Output,
    ) -> None:
        """`advertise`: the host that others know this one by, if it listens at all addresses (0.0.0.0)."""
        self._stores = TorchStores()
        try:
            super().__init__(spec, output, self._stores, lease_s=lease_s, workers_per_node=workers_per_node)
            self._door = Door(listen, credentials, self._greet, lease_s)
        except BaseException:
            self._stores.close()
            raise
        self.address = replace(self._door.address, host=advertise) if advertise else self._door.address
        self.role_ended: Callable[[str, int], None] = self._say_role_ended
        self._roles: dict[str, RemoteNode] = {}
        self._insecure = credentials.insecure_network
        self._output.idle, self._door.hold = self._door.beat, self._hold_output
        self._stores.watch(self._selector)
        self._door.watch(self._selector)
        self._take_signals()

    # --- what its owner calls ---

    def expect(self, nodes: int | Sequence[str], timeout_s: float = _EXPECT_S) -> None:
        """Waits for so many agents, or for those of these nodes. PeerTimeout says who has not come."""
        self._expected = nodes if isinstance(nodes, int) else len(nodes)
        deadline_s = time.monotonic() + timeout_s
        while missing := self._missing(nodes):
            if time.monotonic() >= deadline_s:
                raise PeerTimeout(
                    f"{missing} did not join the job within {timeout_s:g} s; is an agent started there, and can it "
                    f"reach {self.address}?"
                )
            self._turn()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Those that have joined and live."""
        return tuple(self._fleet)

    def start_role(self, name: str, node: str, arguments: Sequence[str]) -> None:
        """Runs `python -m gradtide ARGUMENTS` (a server, a coordinator) on that node; its lines are marked by name."""
        home = self._fleet.get(node)
        if not isinstance(home, RemoteNode):
            raise ConfigError(f"{name} can't be started on {node}: no agent of that node is in the job")
        self._roles[name] = home
        home.start_role(name, tuple(arguments))

    def run(self, variables: dict[str, str]) -> int:
        """Starts the workers, with these variables besides the usual ones, and stays until all are gone."""
        places = self.placed()
        self._variables = dict(variables) | self._meeting_place()
        if self._registrar is not None:  # `gradtide scale`, on this machine
            self._registrar.listen(self.spec.name, self._selector)
        self._output.say(describe_nodes(self.spec, places))
        self.start_all(places)
        self._stay()
        self.close()
        self._last_words()
        if self._given_up and not self.job.ending:
            self._output.say("the process that holds the job's stores, in which workers meet, has ended")
            return 1
        return self.job.exit_code()

    # --- nodes ---

    def _meeting_place(self) -> dict[str, str]:
        """For torch.distributed, and for groups of ours: a store that no worker's machine takes with it."""
        deadline_s = time.monotonic() + _STORE_S
        while not self._stores.ready:
            if self._stores.gone or time.monotonic() > deadline_s:
                raise PeerTimeout(f"the process that holds torch's stores was not ready within {_STORE_S:g} s")
            self._turn()
        return {
            "MASTER_ADDR": self.address.host,
            "MASTER_PORT": str(self._stores.take()),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "GRADTIDE_INSECURE_NETWORK": str(int(self._insecure)),
        } | ({"GRADTIDE_MEMBERS": str(self.address)} if self.spec.elastic else {})

    def _missing(self, nodes: int | Sequence[str]) -> str:
        if isinstance(nodes, int):
            missing = nodes - len(self._fleet)
            return f"{missing} of {nodes} nodes" if missing > 0 else ""
        names = [name for name in nodes if name not in self._fleet]
        return f"node{'s' * (len(names) > 1)} {', '.join(names)}" if names else ""

    def _greet(self, visitor: Visitor) -> None:
        if visitor.role in ("worker", "operator") and self.lines is not None:
            self.lines.greet(visitor)
        elif visitor.role == "agent":
            visitor.hear = lambda message: self._first_word(visitor, message)
        else:
            raise FrameError(f"a {visitor.role} has no business with the head of this job")

    def _first_word(self, visitor: Visitor, message: bytes) -> None:
        join = FROM_AGENT.decode(message)
        if not isinstance(join, NodeJoin):
            raise FrameError("an agent has to say first who it is")
        visitor.name(f"node {join.node}")
        if why := self._objection(join):
            visitor.tell(encode(NotInJob(why)))
            return
        self._welcome(visitor, join)

    def _objection(self, join: NodeJoin) -> str:
        mine, theirs = versions(), (join.gradtide, join.python, join.torch)
        differ = [
            f"{name} {its} there and {ours} at the head"
            for name, its, ours in zip(("gradtide", "Python", "torch"), theirs, mine, strict=True)
            if its != ours
        ]
        if differ:
            return f"node {join.node} can't be in the job: {', '.join(differ)}; install the same on all nodes"
        if join.node in self._fleet:
            return f"a node {join.node} is in the job already; give each its own name"
        return ""

    def _welcome(self, visitor: Visitor, join: NodeJoin) -> None:
        node = RemoteNode(visitor, join, lambda wrote: self._output.bring(wrote.who, wrote.to, wrote.data), self._ended)
        target, threads = tuple(self.spec.target.as_arguments()), self.spec.threads or 0
        slots, together = self._slots(join.slots), self._output.together
        visitor.tell(encode(Greeting(target, self.spec.preload, threads, slots, together, self._door.lease_s)))
        self.join(node)

    def _hold_output(self, held: bool) -> None:
        for node in self._fleet.values():
            if isinstance(node, RemoteNode):
                node.hold(held)

    def _bury_node(self, node: FleetNode, why: str, ranks: list[int]) -> None:
        super()._bury_node(node, why, ranks)
        for name in [name for name, home in self._roles.items() if home is node]:
            self._ended(RoleEnded(name, -signal.SIGKILL))

    # --- the rest ---

    def _turn(self) -> None:
        super()._turn()
        self._door.look()
        self.bury_nodes()
        self._given_up |= self._stores.gone

    def _patience_s(self) -> float:
        mine, others = self._door.patience_s(), super()._patience_s()
        return mine if others is None else min(mine, others)

    def _ended(self, ended: RoleEnded) -> None:
        if self._roles.pop(ended.name, None) is not None and not self.job.ending:
            self.role_ended(ended.name, ended.status)

    def _say_role_ended(self, name: str, status: int) -> None:
        how = f"exit code {status}" if status >= 0 else f"signal {-status}"
        self._output.say(f"{name} has ended ({how})")

    def _close_nodes(self) -> None:
        for node in self._fleet.values():
            node.kill()
        for node in self._fleet.values():
            node.close()
        self._door.settle()
        self._fleet.clear()
        self._door.close()
        self._stores.close()


def versions() -> tuple[str, str, str]:
    """Of gradtide, Python and torch, which have to be the same on all nodes."""
    major, minor, _ = platform.python_version_tuple()
    return version("gradtide"), f"{major}.{minor}", version("torch")

"""The agent of a job on one of its machines: starts workers and other processes as the head says, sends back what they
write and how they end, and ends all of them when the head is gone, or whoever started it, within two seconds.

    Agent(parse_address("tcp:10.0.0.1:7000"), credentials, "a", slots=4).run()
    python -m gradtide.launch.agent tcp:10.0.0.1:7000 --node a --slots 4 --secret-file job.secret
"""

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from types import FrameType

from gradtide.environment import read_environment
from gradtide.errors import CommunicationError, ConfigError, PeerLost, PeerTimeout
from gradtide.launch.head import versions
from gradtide.launch.messages import Ended, Event, Failure, Forward, Start
from gradtide.launch.nodes.collecting import Collected, Listener, Who
from gradtide.launch.nodes.local_node import LocalNode, fresh_server
from gradtide.launch.nodes.node import NodeGone
from gradtide.launch.nodes.roles import RoleProcesses
from gradtide.launch.nodes.secret import SecretInMemory
from gradtide.launch.nodes.wire import (
    FROM_HEAD,
    FromHead,
    Greeting,
    HoldOutput,
    LeaveJob,
    NodeJoin,
    NotInJob,
    RoleEnded,
    StartRole,
    Wrote,
    aged,
    encode,
)
from gradtide.launch.target import Target
from gradtide.processes.wake import WakePipe
from gradtide.transport.authenticate import Address, dial
from gradtide.transport.connection import Connection, open_connection
from gradtide.transport.dialer import Heartbeat
from gradtide.transport.keys import Credentials

__all__ = ["Agent"]

_CONNECT_S = 60.0  # the head may be busy with what it does before it expects anybody
_AGAIN_S = 0.2
_QUEUED_BYTES = 4 << 20  # of output, beyond which workers wait
_PART_S = 2.0


class Agent:
    """Of one node. `run` returns when the job is over here; `stop`, from another thread, ends it."""

    def __init__(self, head: Address, credentials: Credentials, node: str, *, slots: int = 0, parent: int = -1) -> None:
        """`slots`: how many workers it takes; 0 leaves that to the head, -1 is none. `parent`: a descriptor to read
        from, which closes when whoever started this agent is gone."""
        if slots < -1:
            raise ConfigError(f"node {node} can't take {slots} workers; give 1 or more, or 0 to let the head decide")
        self.head, self.node, self.slots = head, node, slots
        self._credentials, self._parent = credentials, parent
        self._selector = selectors.DefaultSelector()
        self._wake = WakePipe()
        self._secret = SecretInMemory(credentials)
        self._connection: Connection | None = None
        self._greeting: Greeting | None = None
        self._local: LocalNode | None = None
        self._collected: Collected | None = None
        self._roles: RoleProcesses | None = None
        self._over = ""  # why it ends
        self._failed = False
        self._held = False  # the head has nobody who reads what workers write

    def run(self) -> int:
        """The exit code: 0 when the head said that the job is over here, 1 when the head or a parent was lost.
        ConfigError: the head will not have it."""
        self._selector.register(self._wake, selectors.EVENT_READ, self._wake.clear)
        if self._parent >= 0:
            self._selector.register(self._parent, selectors.EVENT_READ, self._parent_gone)
        try:
            self._connect()
            self._work()
        finally:
            self._end()
        if self._failed:
            print(f"gradtide: the agent of node {self.node} ends: {self._over}", file=sys.stderr, flush=True)
        return int(self._failed)

    def stop(self) -> None:
        self._give_up("it was told to stop", failed=False)
        self._wake.wake()

    # --- its life ---

    def _connect(self) -> None:
        deadline_s = time.monotonic() + _CONNECT_S
        while self._connection is None and not self._over:
            try:
                line = dial(self.head, self._credentials, "agent", look=self._look)
                self._connection = open_connection(line, f"the head at {self.head}")
            except (PeerLost, PeerTimeout):
                if time.monotonic() > deadline_s:
                    raise
                self._turn(_AGAIN_S)
        if self._connection is None:
            return
        self._connection.on_messages(lambda message: self._hear(FROM_HEAD.decode(bytes(message))), lambda: None)
        self._selector.register(self._connection, selectors.EVENT_READ, self._receive)
        gradtide, python, torch = versions()
        cores = len(os.sched_getaffinity(0))
        self._tell(NodeJoin(self.node, self.slots, cores, gradtide, python, torch))
        while self._greeting is None and not self._over:
            if time.monotonic() > deadline_s:
                raise PeerTimeout(f"the head at {self.head} has not taken node {self.node} in; is it stopped?")
            self._turn(_AGAIN_S)

    def _look(self) -> None:
        self._turn(0.0)
        if self._over:
            raise PeerLost(self._over)

    def _begin(self, greeting: Greeting) -> None:
        """At once: what the head wants started may come with its greeting."""
        self._greeting = greeting
        cores = len(os.sched_getaffinity(0))
        threads = greeting.threads or read_environment().threads or max(1, cores // max(1, greeting.workers))
        variables = {"GRADTIDE_SECRET_FILE": self._secret.path, "OMP_NUM_THREADS": str(threads)}
        collected = self._collected = Collected(greeting.together, self._selector, self._listen)
        target = Target.from_arguments(list(greeting.target))
        self._roles = RoleProcesses(variables, collected.open, self._role_ended)
        begin = fresh_server(target, greeting.preload, variables)
        self._local = LocalNode(begin, collected.open, self._report)
        self._local.watch(self._selector)

    def _work(self) -> None:
        greeting, connection, roles, collected = self._greeting, self._connection, self._roles, self._collected
        if greeting is None or connection is None or roles is None or collected is None:
            return
        heartbeat = Heartbeat(connection)
        while not self._over:
            self._turn(greeting.lease_s / 10)
            roles.look()
            collected.hold(self._held or connection.queued_bytes > _QUEUED_BYTES)
            if heartbeat.is_lost(time.monotonic(), greeting.lease_s):
                self._give_up(f"the head at {self.head} has not answered for {greeting.lease_s:g} s")

    def _turn(self, timeout_s: float) -> None:
        connection = self._connection
        if connection is not None and not connection.closed:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.can_flush else 0)
            if self._selector.get_key(connection).events != wanted:
                self._selector.modify(connection, wanted, self._receive)
        for key, _ in self._selector.select(timeout_s):
            key.data()

    def _receive(self) -> None:
        assert self._connection is not None
        try:
            self._connection.receive()
            self._connection.flush()
        except CommunicationError as error:
            self._give_up(str(error))

    def _give_up(self, why: str, *, failed: bool = True) -> None:
        if not self._over:
            self._over, self._failed = why, failed

    def _parent_gone(self) -> None:
        self._give_up("whoever started it is gone")

    # --- what it is told, and tells ---

    def _hear(self, message: FromHead) -> None:
        match message:
            case Greeting():
                self._begin(message)
            case NotInJob():
                raise ConfigError(message.why)
            case LeaveJob():
                self._give_up("the job is over here", failed=False)
            case HoldOutput():
                self._held = message.held
            case Start() if self._local is not None:
                self._local.start(message.rank, message.variables)
            case Forward() if self._local is not None:
                self._local.forward(message.number, message.ranks, message.grace_s)
            case StartRole() if self._roles is not None:
                self._roles.start(message.name, message.arguments)

    def _report(self, event: Event | NodeGone) -> None:
        """What the fork server and workers say, after all that they have written."""
        if isinstance(event, NodeGone):
            self._give_up(event.why)
        elif isinstance(event, Ended | Failure):
            if self._collected is not None:
                self._collected.drain(event.rank)
            self._tell(aged(event))
        else:
            self._tell(event)

    def _listen(self, who: Who, to: int) -> Listener:
        return lambda data: self._tell(Wrote(who, to, data))

    def _role_ended(self, name: str, status: int) -> None:
        if self._collected is not None:
            self._collected.drain(name)
        self._tell(RoleEnded(name, status))

    def _tell(self, message: object) -> None:
        if self._connection is not None and not self._connection.closed:
            with contextlib.suppress(CommunicationError):  # it is gone, and the next turn will notice
                self._connection.send(encode(message))

    def _end(self) -> None:
        """Ends what was started here, and only then says goodbye."""
        if self._roles is not None:
            self._roles.end()
        if self._local is not None:
            self._local.close()
        if self._roles is not None:
            self._roles.wait()
        if self._collected is not None:
            self._collected.drain()
            self._collected.close()
        if self._connection is not None:
            if self._failed:
                self._connection.close()
            else:
                self._connection.part(_PART_S)
        self._selector.close()
        self._wake.close()
        self._secret.close()


def stop_by_signal(agent: Agent) -> list[int]:
    """SIGINT and SIGTERM end an agent as the head would; which of them came is in the list."""
    came: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        came.append(number)
        agent.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return came


def main(arguments: list[str]) -> int:
    """`python -m gradtide.launch.agent HEAD --node NAME [--slots N] (--secret-file PATH | --secret-fd N)`"""
    import argparse

    from gradtide.launch.nodes.secret import credentials_from
    from gradtide.transport.authenticate import parse_address

    parser = argparse.ArgumentParser(prog="gradtide.launch.agent", description=main.__doc__)
    parser.add_argument("head", help="where the head listens: tcp:host:port")
    parser.add_argument("--node", default=socket.gethostname(), help="this machine's name in the job")
    parser.add_argument("--slots", type=int, default=0, help="how many workers it takes; 0: as the head likes")
    parser.add_argument("--secret-file", default="", help="the job's secret")
    parser.add_argument("--secret-fd", type=int, default=-1, help="a descriptor to read the job's secret from")
    parser.add_argument("--parent-fd", type=int, default=-1, help="a descriptor that closes when it is to end")
    parser.add_argument("--insecure-network", action="store_true", help="unencrypted")
    given = parser.parse_args(arguments)
    try:
        credentials = credentials_from(given.secret_file, given.secret_fd, insecure_network=given.insecure_network)
        head = parse_address(given.head)
        agent = Agent(head, credentials, given.node, slots=given.slots, parent=given.parent_fd)
        stopped = stop_by_signal(agent)
        code = agent.run()
        return 128 + stopped[0] if stopped else code
    except (ConfigError, CommunicationError) as error:
        print(f"gradtide: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

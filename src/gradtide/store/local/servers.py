"""A store on this machine: coordinator and servers as real processes that heal, in a folder that only you can enter."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Self

import msgspec

from gradtide.calling import check_whole, refuse_foreign_names
from gradtide.environment import with_variables
from gradtide.errors import CommunicationError, ConfigError, PeerTimeout
from gradtide.processes.ready import can_read
from gradtide.processes.scratch import ScratchFolder
from gradtide.store.coordinator.loss_policy import Policy
from gradtide.store.coordinator.membership import WORKER_LEASE_S
from gradtide.store.coordinator.recovery import Recovering
from gradtide.store.local.forkserver import Alive, Command
from gradtide.store.local.roles import Role
from gradtide.store.local.scaling import SCALE_S, Scaled, scale

__all__ = ["Forks", "LocalServers", "local_servers"]

_OF_OTHERS = {
    "num_servers n_servers count n num": "say local_servers(2)",
    "workers num_workers": "workers are those of gradtide run --workers 2; they connect to the servers' .address",
    "port host address": "it is a socket of this machine's, which .address names; gradtide serve listens on a port",
    "replication replication_factor num_replicas": "it is called replicas=, and counts the copies besides the first",
    "checkpoint checkpoint_dir": "it is called checkpoints=",
}
_READY_S = 60.0


class Forks:
    """The fork server, as its parent sees it. One can serve several stores."""

    def __init__(self, *, find_modules_as_here: bool = False) -> None:
        paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} if find_modules_as_here else {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gradtide.store.local.forkserver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=with_variables(paths),
        )
        self._lock = threading.Lock()
        try:
            self._read_line()
        except BaseException:  # Ctrl-C, too: it may be seconds before it has loaded torch and finds us gone
            self.kill()
            raise

    def ask(self, command: Command) -> list[Alive]:
        with self._lock:
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(msgspec.json.encode(command) + b"\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                raise CommunicationError("the process that makes local servers is gone; start them again") from None
            return msgspec.json.decode(self._read_line(), type=list[Alive])

    def _read_line(self) -> bytes:
        assert self._process.stdout is not None
        if not can_read([self._process.stdout], _READY_S):
            raise PeerTimeout(f"the process that makes local servers did not answer within {_READY_S:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise CommunicationError("the process that makes local servers is gone; its own output says why")
        return line

    def kill(self) -> None:
        """Ends everything that it made, and itself, at once: nobody needs what they hold."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Ends everything that it made, and itself."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class LocalServers:
    """A running store. `.address` is what `gradtide.connect` wants; `.processes` are the living, each with a .pid."""

    def __init__(
        self,
        servers: int,
        *,
        replicas: int = 0,
        lease_s: float = 2.0,
        worker_lease_s: float = WORKER_LEASE_S,
        forks: Forks | None = None,
        recovering: Recovering | None = None,
        semirings: Sequence[str] = (),
        events: str = "",
    ) -> None:
        """`events`: a folder where they write down what happens, for a trace; "": nobody watches."""
        check_whole("local_servers", servers=servers, replicas=replicas)
        if servers < 1:
            raise ConfigError(f"{servers} servers can't hold anything; start at least one")
        if not 0 <= replicas < servers:
            raise ConfigError(
                f"{replicas} replicas need {replicas + 1} servers, not {servers}: each copy is on another"
            )
        recovering = recovering or Recovering()
        recovering.check()
        for path in semirings:
            _check_semiring(path)
        self._scratch = ScratchFolder()
        self.folder = self._scratch.path
        self.address = f"unix:{self.folder}/coordinator"
        self._own, self._closed = forks is None, False
        try:
            self._forks = forks or Forks(find_modules_as_here=bool(semirings))
        except BaseException:
            self._scratch.remove()
            raise
        journal = f"{self.folder}/journal"
        roles = [
            Role(
                role="coordinator", name="coordinator", address=self.address, lease_s=lease_s, journal=journal,
                worker_lease_s=worker_lease_s, events=events,
                restore=recovering.restore, checkpoints=recovering.checkpoints, after_loss=recovering.after_loss,
            )
        ]  # fmt: skip
        for i in range(servers):
            address = f"unix:{self.folder}/server-{i}"
            roles.append(
                Role(
                    role="server", name=f"server-{i}", address=address, coordinator=self.address, expected=servers,
                    replicas=replicas, semirings=tuple(semirings), events=events,
                )
            )  # fmt: skip
        try:
            self._forks.ask(Command("start", self.folder, tuple(roles)))
        except BaseException:
            if self._own:
                self._forks.kill()
                self._scratch.remove()
            raise

    @property
    def processes(self) -> list[Alive]:
        """The living. One that died is replaced within a moment, by one with another pid."""
        return [process for process in self._forks.ask(Command("list", self.folder)) if process.pid]

    def scale(self, servers: int, *, timeout_s: float = SCALE_S) -> Scaled:
        """Starts servers or lets some go; returns when everything has moved to where it is to stay."""
        return scale(self.address, servers, timeout_s=timeout_s)

    def wait_until_healed(self, dead_pid: int, timeout_s: float = 10.0) -> None:
        """Until the process that had this pid is gone and another one is in its place."""
        count, deadline_s = len(self._forks.ask(Command("list", self.folder))), time.monotonic() + timeout_s
        while True:
            pids = [process.pid for process in self.processes]
            if dead_pid not in pids and len(pids) == count:
                return
            if time.monotonic() > deadline_s:
                raise PeerTimeout(f"nothing has taken the place of process {dead_pid} within {timeout_s:g} s")
            time.sleep(0.005)

    def close(self) -> None:
        """Ends the processes and removes their folder. Once more does nothing."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(CommunicationError):
            self._forks.ask(Command("stop", self.folder))
        if self._own:
            self._forks.close()
        self._scratch.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@refuse_foreign_names(_OF_OTHERS)
def local_servers(
    servers: int = 1,
    *,
    replicas: int = 0,
    lease_s: float = 2.0,
    worker_lease_s: float = WORKER_LEASE_S,
    forks: Forks | None = None,
    restore: str | os.PathLike[str] | None = None,
    checkpoints: str | os.PathLike[str] | None = None,
    after_loss: Policy = "empty",
    semirings: Sequence[str] = (),
    events: str | os.PathLike[str] | None = None,
) -> LocalServers:
    """Starts a store on this machine: `with gradtide.local_servers(2) as servers: ...`.

    With `replicas=1` each shard is on two servers, and nothing that was acknowledged is lost when one of them dies.
    With `restore` it begins with a checkpoint, of however many servers. `after_loss` says what happens to shards when
    more servers die than there are replicas: they begin empty, or with the last of `checkpoints`, either the lost
    shards alone ("continue") or all shards together ("rewind"). A worker that hangs is struck off after
    `worker_lease_s`, and is in again when it goes on. `semirings` are reductions of your own, as "package.module:name";
    `events` is a folder where all processes write down what happens, for `gradtide trace`. A server that is not heard
    of for `lease_s` counts as dead; both leases are seconds. `forks` is for tests, which start many stores. Raises
    ConfigError for numbers that make no sense, and DataError if `restore` has no checkpoint.
    """
    recovering = Recovering(_text(restore), _text(checkpoints), after_loss)
    return LocalServers(
        servers,
        replicas=replicas,
        lease_s=lease_s,
        worker_lease_s=worker_lease_s,
        forks=forks,
        recovering=recovering,
        semirings=semirings,
        events="" if events is None else os.path.abspath(events),
    )


def _check_semiring(path: str) -> None:
    """Here, where a mistake is an error of the caller's; servers load it again."""
    from gradtide.store.rules.reductions import load_semiring

    if path.startswith("__main__:"):
        raise ConfigError(f"servers can't import {path!r}, a part of this script; put it into a module of its own")
    load_semiring(path)


def _text(path: str | os.PathLike[str] | None) -> str:
    return "" if path is None else os.fspath(path)

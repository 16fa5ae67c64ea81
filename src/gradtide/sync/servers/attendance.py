"""A worker's place at the servers, from when it connects to when it leaves; and who else is there."""

from collections.abc import Iterator
from contextlib import contextmanager

from gradtide.errors import ConfigError, Mismatch
from gradtide.store import Store, connect
from gradtide.sync.job import Job
from gradtide.sync.servers.lodging import Lodging
from gradtide.sync.servers.settings import Servers

__all__ = ["Attendance", "find_address"]

_WORD_S = 5.0  # for the coordinator to say who has gone; while it is down work goes on without


def find_address(job: Job, servers: Servers) -> str:
    """Where the servers are; raises ConfigError where nothing can be trained through them."""
    address = servers.address or job.store
    servers.consistency  # noqa: B018  that it is one
    if address is None:
        raise ConfigError("this job has no servers; start it with gradtide run --servers 2, or give their address=")
    if address in job.served:
        raise ConfigError(
            f"this worker trains another model through the servers at {address} already; close it, or put both "
            "into one module and wrap it with a list of optimizers"
        )
    return address


class Attendance:
    """Rounds are the store's; while this lasts, the job's rank and size are those of the round that comes."""

    def __init__(self, job: Job, servers: Servers, address: str) -> None:
        self._job, self._address, self.in_rounds = job, address, servers.mode != "async"
        self.number = job.rank
        self._place = job.rank, job.size  # the job's own, which the store's members change while this way is gone
        self._uneven, self._uneven_until = False, 0  # whether in join(); the last round that was in it
        self.was_uneven = False
        self.round = 0  # the last one that was pushed for
        self._until = 0  # the first step that this worker need not take, once it is to go
        job.apart = job.apart or job.elastic is not None
        self.store = self._connect(servers)
        job.served.add(address)
        self.lodging = Lodging(self.store, job, servers, *self._place)

    def _connect(self, servers: Servers) -> Store:
        return connect(
            self._address,
            worker=self.number,
            workers=self._job.size if self._job.elastic is None else 1,  # else who has come is waited for later
            consistency=servers.consistency,
            secret_file=servers.secret_file,
            insecure_network=servers.insecure_network,
            timeouts=self._job.timeouts,
            emit=self._job.news.append,
        )

    # --- who is in the next step ---

    @property
    def is_over(self) -> bool:
        """Whether this worker is to go, and the others can do without it now."""
        return bool(self._until) and self.store.step >= self._until

    def follow_members(self) -> bool:
        """Who is in the next step shares its batch; the first of them speaks for all. Returns whether that is this
        worker from now on."""
        if not self.in_rounds and self._job.elastic is None:
            return False  # who ends first has done its own part of every batch
        if self.in_rounds and self._job.elastic is not None:
            self.store.wait_until_members_are_known(self._job.timeout_s)
        members, led = self.store.members, self._job.rank == 0
        if self.number not in members:
            return False
        self._job.rank, self._job.size = members.index(self.number), len(members)
        return self._job.rank == 0 and not led

    def leads(self, round_: int) -> bool:
        """Whether this worker is the first of those who were in that round, and are there still."""
        there = [member.worker for member in self.store.round_members if member.from_round <= round_]
        return self.number == min(there, default=self.number)

    def check_all_go_on(self, round_: int) -> None:
        """One who has taken its last step has no part in this round, which would be a step of the others' parts."""
        if not self.in_rounds or self._job.elastic is not None or self._uneven or round_ <= self._uneven_until:
            return
        for member in self.store.ended:
            if member.until <= round_ and member.client in self.lodging.clients:
                raise Mismatch(
                    f"worker {member.worker} has taken its last step, or was lost, and worker {self.number} takes "
                    "another; give all workers as many steps: leave a loop over gradtide.shard on all of them or on "
                    "none, and put loops of different lengths into `with model.join():`"
                )

    @contextmanager
    def uneven(self) -> Iterator[None]:
        """In it some workers may take more steps than others: who goes on shares the batches of those who ended."""
        self._uneven = self.was_uneven = True
        try:
            yield
        finally:
            self._uneven, self._uneven_until = False, self.round

    # --- going ---

    def depart(self) -> None:
        """Goes after the next few rounds, when the others know it: until then no server takes what this one pushes."""
        if not self._until:
            self._until = self.store.announce_leave()
            self.store.wait_until_leave_is_known(self._job.timeout_s)

    def announce_end(self) -> bool:
        """Those who are behind must know that our part of their rounds is there. Returns whether there was any need."""
        announced = self.in_rounds and self.number in self.store.members
        if announced:
            self.store.announce_leave(now=True)
        return announced

    def wait_until_end_is_known(self) -> None:
        self.store.wait_until_leave_is_known(_WORD_S)

    def close(self) -> None:
        self._job.ended |= self.lodging.clients
        self.store.close()
        self._job.served.discard(self._address)
        self._job.rank, self._job.size = self._place

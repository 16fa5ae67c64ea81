"""Who leads, and the journal, as two keys of etcd: /gradtide/JOB/leader and /gradtide/JOB/journal.

The leader's key says who leads, in which term, and a token that nobody else has; it hangs on a lease of etcd's, and
goes with it. Every write of the journal is a transaction that compares the leader's key, so also its term, and the
revision of the journal: what is late, or said twice because nobody answered, changes nothing.

A transaction without a request in the branch that is taken is answered by one member alone, from what it has; so each
branch asks for something.
"""

import base64
import json
from typing import Any

import msgspec

from gradtide.errors import ConfigError, DataError, PeerLost
from gradtide.store.coordinator.election.etcd_members import EtcdMembers
from gradtide.store.coordinator.election.etcd_place import EtcdPlace
from gradtide.store.coordinator.election.register import (
    Answer,
    Campaign,
    Deposed,
    Elected,
    Kept,
    LeaderSeat,
    Question,
    Renew,
    Sighting,
    Unreachable,
    Write,
    Written,
)
from gradtide.store.coordinator.journal import unpack

__all__ = ["EtcdRegister"]

_LEASE_S = 6  # longer than anybody waits who sees that the leader does not prove itself
_FIRST_BYTES = 64  # the job's mark, before the journal itself
_Json = dict[str, Any]


class _Found(msgspec.Struct, frozen=True):
    """A key as it is; revision 0: it is not."""

    value: bytes = b""
    revision: int = 0


class EtcdRegister:
    """`job_marks`: what only coordinators of this job have, so that two jobs can't write one journal; the first is
    written, the others are good, too."""

    def __init__(self, place: EtcdPlace, job_marks: tuple[str, ...] = ("",)) -> None:
        self._members = EtcdMembers(place)
        self._leader, self._journal = (f"/gradtide/{place.job}/{name}" for name in ("leader", "journal"))
        self._marks = [mark.encode().ljust(_FIRST_BYTES, b" ")[:_FIRST_BYTES] for mark in job_marks]
        self._checked = False  # whose journal it is

    def describe(self) -> str:
        return str(self._members.place)

    def ask(self, question: Question) -> Answer:
        try:
            match question:
                case Campaign():
                    return self._campaign(question)
                case Renew():
                    return self._renew(question.seat)
                case Write():
                    return self._write(question)
        except PeerLost as error:
            return Unreachable(str(error))

    def resign(self, seat: LeaderSeat) -> None:
        """The leader's key stays, and says that nobody leads."""
        try:
            self._transact([_is(self._leader, seat.mark)], [_put(self._leader, b"")])
            self._members.ask(lambda client: client.post(client.get_url("/lease/revoke"), json={"ID": seat.hold}))
        except (PeerLost, LookupError):
            return  # they will find out

    def _campaign(self, campaign: Campaign) -> Answer:
        _, (leader,) = self._transact([], [_get(self._leader)])
        seen = _sighting(leader)
        if leader.value and seen != campaign.instead_of and self._checked:
            return seen
        _, (journal,) = self._transact([], [_get(self._journal)])
        self._check_job(journal)
        if leader.value and seen != campaign.instead_of:
            return seen
        content = journal.value[_FIRST_BYTES:] if journal.revision else None
        term = _term_after(content, self.describe())
        mark = json.dumps({"leader": campaign.address, "term": term, "token": campaign.token}).encode()
        lease = self._members.ask(lambda client: client.lease(_LEASE_S)).id
        unchanged = [_at(self._leader, leader.revision), _at(self._journal, journal.revision)]
        done, found = self._transact(unchanged, [_put(self._leader, mark, lease)], [_get(self._leader)])
        if not done:
            return _sighting(found[0])
        clear = leader.revision > 0 and (not leader.value or seen == campaign.instead_of)
        return Elected(LeaderSeat(mark, term, lease), content, journal.revision, clear)

    def _renew(self, seat: LeaderSeat) -> Answer:
        try:
            left_s = self._members.ask(lambda client: _keep_alive(client, seat.hold))
            done, _ = self._transact([_is(self._leader, seat.mark)], [_put(self._leader, seat.mark, seat.hold)])
        except LookupError:  # the lease has ended
            return Deposed()
        return Kept() if done and left_s > 0 else Deposed()

    def _write(self, write: Write) -> Answer:
        revision, content = write.revision, self._marks[0] + write.content
        while True:
            compared = [_is(self._leader, write.seat.mark), _at(self._journal, revision)]
            read = [_get(self._leader), _get(self._journal)]
            done, found = self._transact(compared, [_put(self._journal, content), _get(self._journal)], read)
            if done:
                return Written(found[-1].revision)
            leader, journal = found
            if leader.value != write.seat.mark:
                return Deposed()
            revision = journal.revision  # what was not answered was done: nobody else can have written

    def _transact(self, compare: list[_Json], then: list[_Json], otherwise: list[_Json] | None = None) -> "_Done":
        """Whether it was as compared; and what the keys that were asked for are."""
        wish = {"compare": compare, "success": then, "failure": otherwise or [_get(self._leader)]}
        said: _Json = dict(self._members.ask(lambda client: client.transaction(wish)))
        ranges = [part["response_range"] for part in said.get("responses", ()) if "response_range" in part]
        return bool(said.get("succeeded")), [_found(part) for part in ranges]

    def _check_job(self, journal: _Found) -> None:
        if journal.revision and journal.value[:_FIRST_BYTES] not in self._marks:
            raise ConfigError(
                f"the journal {self.describe()} is another job's: it was written with another secret; "
                "give the secret file of that job, or a name of its own to this one"
            )
        self._checked = True


_Done = tuple[bool, list[_Found]]


def _found(part: _Json) -> _Found:
    for entry in part.get("kvs", ()):
        return _Found(base64.b64decode(entry.get("value", "")), int(entry["mod_revision"]))
    return _Found()


def _keep_alive(client: Any, lease: int) -> int:
    """The seconds that a lease has; none if it is over."""
    said = client.post(client.get_url("/lease/keepalive"), json={"ID": lease})
    return int(said.get("result", {}).get("TTL", 0))


def _sighting(leader: _Found) -> Sighting:
    if not leader.value:
        return Sighting("", "", leader.revision)
    try:
        mark = json.loads(leader.value)
        return Sighting(str(mark["leader"]), str(mark["token"]), leader.revision)
    except (ValueError, KeyError, TypeError):
        raise DataError("the leader's key in etcd was written by something else; give another job") from None


def _term_after(content: bytes | None, where: str) -> int:
    try:
        return unpack(content).term + 1 if content is not None else 1
    except (ValueError, msgspec.MsgspecError):
        raise DataError(f"{where} holds no journal of a coordinator, or not a whole one; give another job") from None


def _text(data: str | bytes) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def _get(key: str) -> _Json:
    return {"request_range": {"key": _text(key)}}


def _put(key: str, value: bytes, lease: int = 0) -> _Json:
    return {"request_put": {"key": _text(key), "value": _text(value), "lease": lease}}


def _is(key: str, value: bytes) -> _Json:
    return {"key": _text(key), "target": "VALUE", "result": "EQUAL", "value": _text(value)}


def _at(key: str, revision: int) -> _Json:
    """Since this revision it has not changed; 0: it is not there."""
    return {"key": _text(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision}

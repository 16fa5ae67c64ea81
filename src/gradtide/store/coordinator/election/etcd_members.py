"""One request to whichever member of etcd answers: a second for each, the last that answered first.

etcd3gw speaks to one host, and waits for ever unless it is told not to.
"""

import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from gradtide.errors import ConfigError, PeerLost
from gradtide.store.coordinator.election.etcd_place import EtcdPlace

if TYPE_CHECKING:
    from etcd3gw.client import Etcd3Client

__all__ = ["EtcdMembers"]

T = TypeVar("T")
_REQUEST_S = 1.0
_API = "/v3/"  # since etcd 3.4
_NO_LEASE = "requested lease not found"
_NO_QUORUM = ("timed out", "no leader", "leader changed")


class EtcdMembers:
    """Each thread has connections of its own."""

    def __init__(self, place: EtcdPlace) -> None:
        self.place = place
        self._own = threading.local()
        self._first = 0  # the member that answered last
        _, exceptions, requests = _load()
        self._errors = (exceptions.Etcd3Exception, requests.exceptions.RequestException, OSError)

    def ask(self, request: "Callable[[Etcd3Client], T]") -> T:
        """The first answer. What was asked may have been done though nobody answered, even twice. Raises PeerLost if
        nobody answers, and LookupError of a lease that etcd does not know."""
        clients, first, refused = self._clients(), self._first, ""
        for turn in range(len(clients)):
            number = (first + turn) % len(clients)
            try:
                answer = request(clients[number])
            except self._errors as error:
                said = str(getattr(error, "detail_text", "") or "")
                if _NO_LEASE in said:
                    raise LookupError(_NO_LEASE) from None
                refused = refused or _message_of(said)
                continue
            self._first = number
            return answer
        raise PeerLost(self._why(refused))

    def _why(self, refused: str) -> str:
        """Nobody listens, or those who do can't agree, or won't."""
        there = 0
        for client in self._clients():
            try:
                client.status()  # which needs no other member
                there += 1
            except self._errors:
                continue
        if not there:
            return f"no member of etcd answers at {self.place}; start etcd, or check the address and certificates"
        if refused and not any(word in refused for word in _NO_QUORUM):
            return f"etcd at {self.place} refuses: {refused}"
        members = len(self.place.hosts)
        if there > members // 2:
            return f"etcd at {self.place} has no leader of its own, or is too slow: {there} of {members} members answer"
        return f"etcd at {self.place} has lost its quorum: {there} of {members} members answer; start the others"

    def _clients(self) -> "list[Etcd3Client]":
        if not hasattr(self._own, "clients"):
            self._own.clients = [self._client(host, port) for host, port in self.place.hosts]
        clients: list[Etcd3Client] = self._own.clients
        return clients

    def _client(self, host: str, port: int) -> "Etcd3Client":
        make, _, requests = _load()
        session = requests.Session()
        session.trust_env = False  # no proxy between a coordinator and its journal
        place = self.place
        if place.ca:
            session.verify = place.ca
        if place.certificate:
            session.cert = (place.certificate, place.certificate_key)
        scheme = "https" if place.tls else "http"
        client: Etcd3Client = make(host, port, scheme, timeout=_REQUEST_S, api_path=_API, session=session)
        return client


def _message_of(said: str) -> str:
    """What etcd said, of the JSON that it said it in; nothing of what is none: then nobody answered."""
    try:
        return str(json.loads(said).get("error", ""))
    except (ValueError, AttributeError):
        return ""


def _load() -> tuple[Any, Any, Any]:
    try:
        import requests
        from etcd3gw import exceptions
        from etcd3gw.client import Etcd3Client
    except ImportError:
        raise ConfigError("a journal in etcd needs etcd3gw: pip install 'gradtide[etcd]'") from None
    return Etcd3Client, exceptions, requests

"""The mutual challenge before anything else is parsed: who talks, and that both ends see the same connection.

    who dials    ->  magic, version, whether TLS follows                              (16 bytes, in clear)
    who listens  ->  magic, version, whether to go on                                 (16 bytes, in clear)
                     TLS 1.3, where it was asked for; all that follows is inside
    who dials    ->  role, name, nonce, by which keys it can prove itself             (124 bytes)
    who listens  ->  role, name, nonce, by which of the keys, its proof               (141 bytes)
    who dials    ->  its proof                                                        (32 bytes)

A proof is HMAC-SHA256, by the key of who dials, of all that both have said before and of the SHA-256 of the listener's
certificate as this end sees it. So whoever passes on what was said on another connection, ends TLS in between, takes
TLS away or changes a word makes the proofs wrong. The listener proves itself first, so the side with the wrong secret
is told so by its own end. On a UNIX socket there may be no secret: the same exchange then only says who is who.
"""

import hmac
import secrets
import struct
from dataclasses import dataclass

from gradtide.errors import AuthenticationError
from gradtide.transport.keys import NAME_BYTES, Credentials
from gradtide.transport.tls import NO_CERTIFICATE, TlsEnd, TlsListener

__all__ = ["ANSWER_BYTES", "GREETING_BYTES", "VERSION", "Challenge", "Handshake", "Identity", "greeting"]

VERSION = 2
_MAGIC = b"gradtide"
_GREETING = struct.Struct("<8sBB6x")
GREETING_BYTES = _GREETING.size
_OLD_BYTES = 80  # that a gradtide of version 1 waits for, before it says that versions differ
_CLEAR, _TLS = 0, 1  # what who dials asks for
_GO_ON, _OTHER_VERSION, _ONLY_TLS, _NO_TLS = range(4)  # what who listens says to that
_HELLO = struct.Struct(f"<12s{NAME_BYTES}s32s8s8s")
_WELCOME = struct.Struct(f"<B12s{NAME_BYTES}s32s")
_PROOF_BYTES = 32
ANSWER_BYTES = _WELCOME.size + _PROOF_BYTES
_REFUSED, _FIRST, _SECOND, _NO_KEY = range(4)  # which of the keys that were named
_NOTHING = b"-"  # instead of a secret
_MOST_BYTES = 32 << 10  # that can be decrypted at once: a record, and what one recv of a newcomer brings


@dataclass(frozen=True, slots=True)
class Identity:
    """Who is at the other end, as it has proven; on a UNIX socket without a secret, as it says: it is of our user."""

    role: str = ""  # worker, operator, server, coordinator, rank
    name: str = ""


def greeting(tls: bool) -> bytes:
    """The first words of who dials."""
    return _GREETING.pack(_MAGIC, VERSION, _TLS if tls else _CLEAR)


class Challenge:
    """The dialler's side, after the greeting."""

    def __init__(self, credentials: Credentials, role: str, tls: bool, where: str) -> None:
        role, name = credentials.claim(role)
        self._where, self._has_keys = where, bool(credentials.keys)
        self._keys = credentials.secrets_of(role, name)
        self._greeting = greeting(tls)
        names = [*map(_name_of, self._keys), bytes(8), bytes(8)]
        self.hello = _HELLO.pack(role.encode(), name.encode(), secrets.token_bytes(32), names[0], names[1])
        self.identity = Identity()

    def hear_greeting(self, reply: bytes) -> None:
        magic, version, verdict = _GREETING.unpack(reply)
        if magic != _MAGIC:
            raise AuthenticationError(f"what listens at {self._where} is no gradtide; check the address")
        if version != VERSION or verdict == _OTHER_VERSION:
            raise AuthenticationError(
                f"what listens at {self._where} speaks version {version} of gradtide's handshake, this end version "
                f"{VERSION}; run the same gradtide at both ends"
            )
        if verdict == _ONLY_TLS:
            raise AuthenticationError(
                f"{self._where} lets nobody in unencrypted; write it as tls:host:port, without insecure_network"
            )
        if verdict != _GO_ON:
            raise AuthenticationError(
                f"{self._where} listens for its own machine alone, unencrypted; write it as tcp:host:port, or "
                "start it with tls:host:port"
            )
        self._greeting += reply

    def prove(self, answer: bytes, certificate_hash: bytes, local: bool) -> bytes:
        """Checks the other side's proof: ours. `local`: at a UNIX socket, where no secret is needed."""
        which, role, name, _ = _WELCOME.unpack_from(answer)
        if which == _REFUSED or which > _NO_KEY or (which == _NO_KEY and not local):
            raise AuthenticationError(f"wrong secret for {self._where}; {self._advice()}")
        key = _NOTHING if which == _NO_KEY else [*self._keys, b"", b""][which - _FIRST]
        covered = self._greeting + self.hello + answer[: _WELCOME.size] + certificate_hash
        if not key or not hmac.compare_digest(answer[_WELCOME.size :], _proof(key, b"listens", covered)):
            raise AuthenticationError(
                f"what answers at {self._where} could not prove itself on this connection; somebody in between "
                "passes on, or changes, what is said"
            )
        self.identity = Identity(_text(role), _text(name))
        return _proof(key, b"dials", covered)

    def _advice(self) -> str:
        if self._has_keys:
            return "use a file that its server knows"
        return "give the job's secret file: --secret-file PATH, in Python secret_file=PATH"


class Handshake:
    """The listener's side, as bytes in and bytes out; it needs no socket."""

    def __init__(
        self, credentials: Credentials, role: str, tls: TlsListener | None = None, only_tls: bool = False
    ) -> None:
        self._credentials, self._claim = credentials, credentials.claim(role)
        self._listener, self._only_tls = tls, only_tls
        self._received = bytearray()
        self._covered = b""  # from the greeting on
        self._expected = b""  # the dialler's proof
        self._says: Identity | None = None  # who it is, not proven yet
        self.tls: TlsEnd | None = None
        self.identity = Identity()
        self.refusal = ""  # why it is sent away, once it has been told
        self.done = False
        self.rest = b""  # what came behind the proof already

    @property
    def says(self) -> str:
        """Who it says it is, for a log: it may be a stranger's text."""
        return ascii(f"{self._says.role} {self._says.name}".rstrip()) if self._says is not None else ""

    def feed(self, data: bytes) -> bytes:
        """What to send back (nothing, often). Raises AuthenticationError when the other side is none of ours."""
        if self.refusal:
            return b""
        answer = b""
        if not self._covered:
            self._received += data
            answer, goes_on = self._greet()
            if not goes_on:
                return answer
            data = bytes(self._received)
            self._received.clear()
        if self.tls is None:
            self._received += data
            return answer + self._challenge()
        answer += self.tls.shake(data)
        if self.tls.finished:
            room = memoryview(bytearray(_MOST_BYTES))
            self._received += room[: self.tls.decrypt_into(room)]
            reply = self._challenge()
            answer += self.tls.encrypt(reply) if reply else b""
        return answer

    def _greet(self) -> tuple[bytes, bool]:
        """The answer to the greeting, once it is here, and whether it goes on."""
        received = self._received
        if not _MAGIC.startswith(bytes(received[: len(_MAGIC)])):
            raise AuthenticationError("it speaks another protocol")
        if len(received) < GREETING_BYTES:
            return b"", False
        _, version, wish = _GREETING.unpack_from(received)
        verdict, wants_tls = _GO_ON, wish == _TLS
        if version != VERSION:
            verdict = _OTHER_VERSION
            self.refusal = f"it speaks version {version} of gradtide's handshake, this end version {VERSION}; update it"
        elif self._only_tls and not wants_tls:
            verdict, self.refusal = _ONLY_TLS, "it came unencrypted; say at its end tls:host:port, no insecure_network"
        elif wants_tls and self._listener is None:
            verdict, self.refusal = _NO_TLS, "it asked for TLS; start this end with tls:host:port"
        reply = _GREETING.pack(_MAGIC, VERSION, verdict)
        self._covered = bytes(received[:GREETING_BYTES]) + reply
        del received[:GREETING_BYTES]
        if wants_tls and self._listener is not None:
            self.tls = self._listener.accept()
        return (reply if version >= VERSION else reply.ljust(_OLD_BYTES, b"\0")), verdict == _GO_ON

    def _challenge(self) -> bytes:
        """The answer to the hello, once it is here; then the proof is looked at."""
        received, answer = self._received, b""
        if not self._expected and len(received) >= _HELLO.size:
            answer = self._answer(bytes(received[: _HELLO.size]))
            del received[: _HELLO.size]
        if self._expected and len(received) >= _PROOF_BYTES:
            if not hmac.compare_digest(bytes(received[:_PROOF_BYTES]), self._expected):
                raise AuthenticationError(
                    "it could not prove itself on this connection; somebody in between passes on, or changes, "
                    "what is said"
                )
            assert self._says is not None
            self.identity, self.rest, self.done = self._says, bytes(received[_PROOF_BYTES:]), True
        return answer

    def _answer(self, hello: bytes) -> bytes:
        role, name, _, *offered = _HELLO.unpack(hello)
        self._says = Identity(_text(role), _text(name))
        which, key = self._choose(self._says, offered)
        if which == _REFUSED:
            self.refusal = "it does not know the secret"
        mine = [word.encode() for word in self._claim]
        welcome = _WELCOME.pack(which, *mine, secrets.token_bytes(32))
        certificate = self._listener.certificate_hash if self.tls is not None and self._listener else NO_CERTIFICATE
        covered = self._covered + hello + welcome + certificate
        self._expected = _proof(key, b"dials", covered)
        return welcome + _proof(key, b"listens", covered)

    def _choose(self, who: Identity, offered: list[bytes]) -> tuple[int, bytes]:
        """The first of the keys that were named and that we know."""
        if not self._credentials.keys:
            return _NO_KEY, _NOTHING
        known = {_name_of(key): key for key in self._credentials.secrets_of(who.role, who.name)}
        for which, name in enumerate(offered, _FIRST):
            if name in known:
                return which, known[name]
        return _REFUSED, secrets.token_bytes(32)


def _name_of(key: bytes) -> bytes:
    """By which two ends find out whether they have the same key; nothing follows from it."""
    return hmac.digest(key, b"gradtide key's name", "sha256")[:8]


def _proof(key: bytes, side: bytes, covered: bytes) -> bytes:
    return hmac.digest(key, side + covered, "sha256")


def _text(padded: bytes) -> str:
    try:
        return padded.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        raise AuthenticationError("it gave a name that is none") from None

"""Who may talk at all: addresses, the secret file, and the mutual challenge before anything else is parsed.

A UNIX socket lies in a folder that only its owner can enter, and both ends compare their users. A TCP socket needs the
job's secret: both ends prove with HMAC-SHA256 over both nonces and both roles that they know it, and neither says
anything else before. The exchange has fixed lengths:

    who connects  ->  magic, version, role, nonce                 (48 bytes)
    who listens   ->  magic, version, role, nonce, its proof      (80 bytes)
    who connects  ->  its proof                                   (32 bytes)

The listener proves itself first, so the side with the wrong secret is told so by its own end. On a UNIX socket the
secret is empty, and the same exchange only checks that both speak this protocol.
"""

import hmac
import os
import secrets
import socket
import stat
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from gradtide.errors import AuthenticationError, ConfigError, PeerLost, PeerTimeout

__all__ = [
    "HANDSHAKE_S",
    "Address",
    "Handshake",
    "dial",
    "listen",
    "make_secret_file",
    "parse_address",
    "read_secret_file",
    "same_user",
]

HANDSHAKE_S = 5.0
SECRET_BYTES = 32
_MAGIC = b"gradtide"
_VERSION = 1
_HELLO = struct.Struct("<8sB7s32s")  # magic, version, role, nonce
_PROOF_BYTES = 32
_BUFFER_BYTES = 4 << 20  # of the kernel, each way: fewer switches between processes with large messages


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server or the coordinator listens: `unix:/folder/name.sock` or `tcp:host:port`."""

    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"tcp:[{self.host}]:{self.port}" if ":" in self.host else f"tcp:{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`unix:/path`, `tcp:host:port` or `host:port`."""
    if text.startswith("unix:") and len(text) > 5:
        if len(os.fsencode(text[5:])) > 107:
            raise ConfigError(f"{text} is longer than the 107 bytes that a UNIX socket's path may have; use a shorter")
        return Address(path=text[5:])
    host, _, port = text.removeprefix("tcp:").rpartition(":")
    if not host or not port.isdecimal() or not int(port) < 65536:
        raise ConfigError(f"{text!r} is no address; write unix:/path/to/socket or tcp:host:port")
    return Address(host=host.strip("[]"), port=int(port))


def make_secret_file(path: Path) -> None:
    """32 random bytes that only the owner can read; never overwrites."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigError(f"can't make the secret file {path} ({error.strerror}); choose another path") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(SECRET_BYTES))


def read_secret_file(path: str | Path) -> bytes:
    """The secret; refuses a file that others can read, or of another length."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            secret = file.read(SECRET_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"can't read the secret file {path} ({error.strerror})") from None
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
        raise ConfigError(f"the secret file {path} is open to other users; say: chmod 600 {path}")
    if len(secret) != SECRET_BYTES:
        raise ConfigError(
            f"the secret file {path} must hold {SECRET_BYTES} random bytes; make one: gradtide secret PATH"
        )
    return secret


class Handshake:
    """The listener's side of the challenge, as bytes in and bytes out; it needs no socket."""

    def __init__(self, secret: bytes, role: str) -> None:
        self._secret, self._role = secret, _role(role)
        self._nonce = secrets.token_bytes(32)
        self._expected = b""
        self._received = bytearray()
        self.done = False
        self.rest = b""  # what came behind the proof already

    def feed(self, data: bytes) -> bytes:
        """What to send back (nothing, often). Raises AuthenticationError when the other side is none of ours."""
        self._received += data
        answer = b""
        if not self._expected and len(self._received) >= _HELLO.size:
            hello = bytes(self._received[: _HELLO.size])
            del self._received[: _HELLO.size]
            answer = self._answer(hello)
        elif not self._expected and not _MAGIC.startswith(bytes(self._received[: len(_MAGIC)])):
            raise AuthenticationError("it speaks another protocol")
        if self._expected and len(self._received) >= _PROOF_BYTES:
            if not hmac.compare_digest(bytes(self._received[:_PROOF_BYTES]), self._expected):
                raise AuthenticationError("it does not know the secret")
            self.rest, self.done = bytes(self._received[_PROOF_BYTES:]), True
        return answer

    def _answer(self, hello: bytes) -> bytes:
        magic, version, role, nonce = _HELLO.unpack(hello)
        if magic != _MAGIC or version != _VERSION:
            raise AuthenticationError("it speaks another protocol, or another version of it")
        covered = nonce + self._nonce + role + self._role
        self._expected = _proof(self._secret, b"connects", covered)
        return _HELLO.pack(_MAGIC, _VERSION, self._role, self._nonce) + _proof(self._secret, b"listens", covered)


def dial(address: Address, secret: bytes, role: str, timeout_s: float = HANDSHAKE_S, memory: int = -1) -> socket.socket:
    """A connected socket whose other end has proven that it belongs to this job.

    `memory` is a descriptor to hand over at a UNIX socket: see window.py.
    """
    deadline = time.monotonic() + timeout_s
    sock = _connect(address, timeout_s)
    try:
        if address.path and not same_user(sock):
            raise AuthenticationError(f"another user listens at {address}; connect to a socket of your own")
        proof = _challenge(sock, address, secret, _role(role), deadline)
        if memory >= 0 and address.path:
            socket.send_fds(sock, [proof], [memory])
        else:
            sock.sendall(proof)
    except TimeoutError:
        sock.close()
        raise PeerTimeout(f"what listens at {address} did not answer within {timeout_s:g} s; is it gradtide?") from None
    except OSError as error:
        sock.close()
        raise PeerLost(f"{address} broke off the handshake ({error.strerror}); is it gradtide?") from None
    except BaseException:
        sock.close()
        raise
    return sock


def _connect(address: Address, timeout_s: float) -> socket.socket:
    sock = None
    try:
        if address.path:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(timeout_s)
            sock.connect(address.path)
        else:
            sock = socket.create_connection((address.host, address.port), timeout_s)
    except OSError as error:
        if sock is not None:
            sock.close()
        why = error.strerror or "no answer"
        raise PeerLost(f"no gradtide server at {address} ({why}); start one, or check the address") from None
    tune(sock)
    return sock


def _challenge(sock: socket.socket, address: Address, secret: bytes, role: bytes, deadline: float) -> bytes:
    """Checks the other side's proof; ours, which is to be sent."""
    nonce = secrets.token_bytes(32)
    sock.sendall(_HELLO.pack(_MAGIC, _VERSION, role, nonce))
    reply = b""
    while len(reply) < _HELLO.size + _PROOF_BYTES:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        piece = sock.recv(_HELLO.size + _PROOF_BYTES - len(reply))
        if not piece:
            raise PeerLost(f"{address} closed the connection in the handshake; is it gradtide, and not overloaded?")
        reply += piece
    magic, version, their_role, their_nonce = _HELLO.unpack_from(reply)
    if magic != _MAGIC or version != _VERSION:
        raise AuthenticationError(f"what listens at {address} speaks another protocol, or another version of it")
    covered = nonce + their_nonce + role + their_role
    if not hmac.compare_digest(reply[_HELLO.size :], _proof(secret, b"listens", covered)):
        what = "give the job's secret_file" if not secret else "use the file that its server was started with"
        raise AuthenticationError(f"wrong secret for {address}; {what}")
    return _proof(secret, b"connects", covered)


def _proof(secret: bytes, side: bytes, covered: bytes) -> bytes:
    return hmac.digest(secret or b"-", side + covered, "sha256")


def _role(role: str) -> bytes:
    return role.encode()[:7].ljust(7)


def same_user(sock: socket.socket) -> bool:
    """Whether the process at the other end of a UNIX socket is of our user, or root."""
    _, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return user in (0, os.getuid())


def tune(sock: socket.socket) -> None:
    """Small messages leave at once; large ones fill large buffers."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    else:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)


def listen(address: Address, secret: bytes, insecure_network: bool = False) -> socket.socket:
    """A listening socket: UNIX in a folder of mode 0700, or TCP with a secret, on loopback unless told otherwise."""
    if address.path:
        return _listen_unix(Path(address.path))
    if not secret:
        raise ConfigError(f"a server at {address} needs a secret file; make one: gradtide secret PATH")
    try:
        family, _, _, _, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        if not insecure_network and not _is_loopback(str(where[0])):
            raise ConfigError(
                f"{address} is open to the network, where tensors would travel unencrypted; listen on 127.0.0.1, "
                "or say --insecure-network"
            )
        return socket.create_server((str(where[0]), address.port), family=family, backlog=1024)
    except OSError as error:
        raise ConfigError(f"can't listen at {address} ({error.strerror}); choose another port") from None


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host == "::1"


def _listen_unix(path: Path) -> socket.socket:
    folder = path.parent
    try:
        status = folder.stat()
        if status.st_mode & 0o077 or status.st_uid != os.getuid():
            raise ConfigError(f"{folder} is open to other users; a server's socket needs a folder of mode 0700")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(str(path))
            sock.listen(1024)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise ConfigError(f"can't listen at unix:{path} ({error.strerror}); is another server there?") from None
    return sock

"""Who may talk at all: addresses, and sockets whose other end has proven itself (handshake.py).

A UNIX socket lies in a folder that only its owner can enter, and both ends compare their users. A TCP socket needs the
job's secret. Between machines it is encrypted, unless both ends were told that the network may be insecure; on one
machine (loopback) it is not, unless the address says `tls:`.
"""

import contextlib
import errno
import fcntl
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gradtide.errors import AuthenticationError, ConfigError, PeerLost, PeerTimeout
from gradtide.processes.credentials import user_of
from gradtide.transport.handshake import ANSWER_BYTES, GREETING_BYTES, VERSION, Challenge, Identity, greeting
from gradtide.transport.keys import Credentials
from gradtide.transport.tls import NO_CERTIFICATE, TlsEnd, call_tls

__all__ = [
    "HANDSHAKE_S",
    "Address",
    "Line",
    "dial",
    "family_of",
    "is_loopback",
    "listen",
    "parse_address",
    "same_user",
    "set_congestion",
    "tune",
]

HANDSHAKE_S = 5.0
_WIRE_OPTIONS = (
    (socket.TCP_NODELAY, 1),
    (socket.TCP_KEEPIDLE, 2),
    (socket.TCP_KEEPINTVL, 1),
    (socket.TCP_KEEPCNT, 3),
    (socket.TCP_USER_TIMEOUT, 5000),  # ms
)
_BUFFER_BYTES = 4 << 20  # of the kernel, each way: fewer switches between processes with large messages
_RECEIVE_BYTES = 64 << 10
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server or the coordinator listens: `unix:/folder/name.sock`, `tcp:host:port` or `tls:host:port`."""

    path: str = ""
    host: str = ""
    port: int = 0
    tls: bool = False  # encrypted on one machine, too

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        kind = "tls" if self.tls else "tcp"
        return f"{kind}:[{self.host}]:{self.port}" if ":" in self.host else f"{kind}:{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Line:
    """A socket whose other end has proven who it is, and the encryption on it."""

    sock: socket.socket
    identity: Identity  # of the other end
    tls: TlsEnd | None = None

    def close(self) -> None:
        self.sock.close()


def parse_address(text: str) -> Address:
    """`unix:/path`, `tcp:host:port`, `tls:host:port` or `host:port`."""
    if text.startswith("unix:") and len(text) > 5:
        if len(os.fsencode(text[5:])) > 107:
            raise ConfigError(f"{text} is longer than the 107 bytes that a UNIX socket's path may have; use a shorter")
        return Address(path=text[5:])
    tls = text.startswith("tls:")
    host, _, port = text.removeprefix("tls:" if tls else "tcp:").rpartition(":")
    if not host or not port.isdecimal() or not int(port) < 65536:
        raise ConfigError(f"{text!r} is no address; write unix:/path/to/socket, tcp:host:port or tls:host:port")
    return Address(host=host.strip("[]"), port=int(port), tls=tls)


def family_of(host: str) -> socket.AddressFamily:
    """Of an address in figures."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def dial(
    address: Address,
    credentials: Credentials,
    role: str,
    timeout_s: float = HANDSHAKE_S,
    memory: int = -1,
    congestion: str = "",
    look: Callable[[], None] | None = None,
) -> Line:
    """A connected socket whose other end has proven that it belongs to this job.

    `memory` is a descriptor to hand over at a UNIX socket: see shared_ring.py. `congestion`: see set_congestion.
    `look`: called now and then until it is connected; it may raise. (After that the kernel notices a dead wire.)
    """
    deadline_s = time.monotonic() + timeout_s
    sock = _connect(address, timeout_s, congestion, look)
    try:
        if address.path and not same_user(sock):
            raise AuthenticationError(f"another user listens at {address}; connect to a socket of your own")
        return _Call(sock, address, deadline_s).shake_hands(credentials, role, memory)
    except TimeoutError:
        sock.close()
        waited = f"{round(timeout_s, 3):g} s"
        raise PeerTimeout(f"what listens at {address} did not answer within {waited}; is it gradtide?") from None
    except OSError:
        sock.close()
        raise PeerLost(f"{address} closed the connection as soon as it was made; is it being stopped?") from None
    except BaseException:
        sock.close()
        raise


class _Call:
    """The dialler's part of the handshake, on a socket."""

    def __init__(self, sock: socket.socket, address: Address, deadline_s: float) -> None:
        self._sock, self._address, self._deadline_s = sock, address, deadline_s
        self._heard = False
        self._tls: TlsEnd | None = None

    def shake_hands(self, credentials: Credentials, role: str, memory: int) -> Line:
        address = self._address
        tls = call_tls() if _encrypts(self._sock, address, credentials) else None
        challenge = Challenge(credentials, role, tls is not None, str(address))
        self._offer(greeting(tls is not None) + (tls.shake(b"") if tls is not None else challenge.hello))
        challenge.hear_greeting(self._receive(GREETING_BYTES))
        if tls is not None:
            self._begin_tls(tls)
            self._offer(challenge.hello)
        certificate_hash = tls.certificate_hash() if tls is not None else NO_CERTIFICATE
        proof = challenge.prove(self._receive(ANSWER_BYTES), certificate_hash, bool(address.path))
        if memory >= 0 and address.path:
            self._send(proof, memory)
        else:
            self._send(proof)
        return Line(self._sock, challenge.identity, tls)

    def _begin_tls(self, tls: TlsEnd) -> None:
        try:
            while not tls.finished:
                answer = tls.shake(self._recv(_RECEIVE_BYTES))
                if answer:
                    self._offer(answer)
        except AuthenticationError as error:
            raise AuthenticationError(f"what listens at {self._address}: {error}") from None
        self._tls = tls

    def _offer(self, data: bytes) -> None:
        """Send what an answer is waited for. Who has closed already may have said why: that is still to be read."""
        with contextlib.suppress(PeerLost):
            self._send(data)

    def _send(self, data: bytes, memory: int = -1) -> None:
        self._sock.settimeout(max(0.001, self._deadline_s - time.monotonic()))
        try:
            if memory >= 0:
                socket.send_fds(self._sock, [data], [memory])
            else:
                self._sock.sendall(self._tls.encrypt(data) if self._tls is not None else data)
        except TimeoutError:
            raise
        except OSError:
            raise self._broken_off() from None

    def _receive(self, size: int) -> bytes:
        """So many bytes, and never more: what comes behind them is another's to read."""
        tls, data, room = self._tls, b"", memoryview(bytearray(size))
        while len(data) < size:
            if tls is not None:
                data += room[: tls.decrypt_into(room[: size - len(data)])]
                if len(data) < size:
                    tls.feed(memoryview(self._recv(_RECEIVE_BYTES)))
            else:
                data += self._recv(size - len(data))
        return data

    def _recv(self, most: int) -> bytes:
        self._sock.settimeout(max(0.001, self._deadline_s - time.monotonic()))
        try:
            data = self._sock.recv(most)
        except TimeoutError:
            raise
        except OSError:
            data = b""
        if not data:
            raise self._broken_off()
        self._heard = True
        return data

    def _broken_off(self) -> PeerLost:
        if self._heard:
            return PeerLost(f"{self._address} broke off the handshake; its own output may say why")
        return PeerLost(
            f"{self._address} closed the connection without an answer: it is overloaded, or no gradtide, or one that "
            f"speaks version 1 of the handshake, while this end speaks version {VERSION}"
        )


def _encrypts(sock: socket.socket, address: Address, credentials: Credentials) -> bool:
    if address.path:
        return False
    return address.tls or not (credentials.insecure_network or is_loopback(str(sock.getpeername()[0])))


def _connect(
    address: Address, timeout_s: float, congestion: str, look: Callable[[], None] | None = None
) -> socket.socket:
    sock = None
    try:
        if address.path:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(timeout_s)
            sock.connect(address.path)
        elif congestion or look is not None:
            sock = socket.socket(family_of(address.host))
            if congestion:
                set_congestion(sock, congestion)
            _connect_looking(sock, address, time.monotonic() + timeout_s, look)
        else:
            sock = socket.create_connection((address.host, address.port), timeout_s)
    except (OSError, UnicodeError) as error:  # the latter of a host that no name can be
        if sock is not None:
            sock.close()
        why = (error.strerror if isinstance(error, OSError) else "no name of a host") or "no answer"
        raise PeerLost(f"no gradtide server at {address} ({why}); start one, or check the address") from None
    tune(sock)
    return sock


def _connect_looking(sock: socket.socket, address: Address, deadline_s: float, look: Callable[[], None] | None) -> None:
    """Connects; meanwhile it looks now and then. What look raises comes to the caller, and the socket is closed."""
    sock.setblocking(False)
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    code = sock.connect_ex((address.host, address.port))
    try:
        while code == errno.EINPROGRESS:
            if look is not None:
                look()
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError(errno.ETIMEDOUT, "no answer")
            if poll.poll(1000 * min(remaining_s, _LOOK_S)):
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    except BaseException:
        sock.close()
        raise
    if code:
        raise OSError(code, os.strerror(code))


def same_user(sock: socket.socket) -> bool:
    """Whether the process at the other end of a UNIX socket is of our user, or root."""
    return user_of(sock) in (0, os.getuid())


def set_congestion(sock: socket.socket, name: str) -> None:
    """By which of the kernel's ways it avoids congestion: "cubic", "bbr". To be said before it is connected, or of who
    listens: once BBR has begun to pace a connection by timers, that stays."""
    with contextlib.suppress(OSError):  # a system need not have it, or allow it
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())


def tune(sock: socket.socket) -> None:
    """Small messages leave at once; large ones fill large buffers; a wire or host that is dead is noticed in seconds.

    The kernel asks a silent peer's kernel after two seconds whether it is there, and then every second; what it sends
    and nobody confirms ends the connection after five. A process that is busy or stopped does not, as its kernel
    answers, unless it leaves so much unread for as long that its kernel takes no more.
    """
    if sock.family != socket.AF_UNIX:
        for option, value in _WIRE_OPTIONS:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    else:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)


def listen(address: Address, credentials: Credentials) -> socket.socket:
    """A listening socket: UNIX in a folder of mode 0700, or TCP with a secret."""
    if credentials.keys and not credentials.has_root:
        raise ConfigError(f"the key of {credentials.keys[0]} is not for servers; give the job's root secret file")
    if address.path and credentials.certificate:
        raise ConfigError(f"{address} is not encrypted and needs no certificate; leave out {credentials.certificate}")
    if address.path:
        return _listen_unix(Path(address.path))
    if not credentials.keys:
        raise ConfigError(
            f"a server at {address} needs a secret file: give --secret-file PATH (gradtide secret PATH makes one)"
        )
    try:
        family, _, _, _, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((str(where[0]), address.port), family=family, backlog=1024)
    except UnicodeError:
        raise ConfigError(
            f"can't listen at {address}: {address.host} is no name of a host; check the address"
        ) from None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror  # Python adds the address
        raise ConfigError(f"can't listen at {address} ({why}); choose another port") from None


def is_loopback(host: str) -> bool:
    host = host.removeprefix("::ffff:")
    return host.startswith("127.") or host == "::1"


def _listen_unix(path: Path) -> socket.socket:
    folder = path.parent
    try:
        status = folder.stat()
        if status.st_mode & 0o077 or status.st_uid != os.getuid():
            raise ConfigError(f"{folder} is open to other users; a server's socket needs a folder of mode 0700")
        with _one_at_a_time(folder):
            if _was_left(path):
                path.unlink()
            return _bound(path)
    except OSError as error:
        raise ConfigError(f"can't listen at unix:{path} ({error.strerror}); is another server there?") from None


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Two that start together must not both take a socket for one that was left."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _was_left(path: Path) -> bool:
    """Whether the socket there is of a process that is gone: nobody listens. One that is stopped or busy still does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return path.is_socket() and probe.connect_ex(str(path)) == errno.ECONNREFUSED


def _bound(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
        sock.listen(1024)
    except OSError:
        sock.close()
        raise
    return sock

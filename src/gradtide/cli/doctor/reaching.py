"""Whether ports of other hosts can be reached from here, and what stands between."""

import errno
import socket

from gradtide.errors import ConfigError

__all__ = ["Reached", "reach"]

_PATIENCE_S = 3.0


class Reached(tuple[str, bool, str]):
    """An address, whether it can be reached, and what was found there."""

    __slots__ = ()


def reach(address: str, timeout_s: float = _PATIENCE_S) -> Reached:
    """Tries a connection. A host that refuses has been reached: nothing listens there yet, nothing is in the way."""
    host, _, port = address.removeprefix("tcp:").removeprefix("tls:").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"--reach {address} is no address; write host:port, several with commas")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except TimeoutError:
        return Reached((address, False, f"no answer within {timeout_s:g} s: a firewall, or a host that is off"))
    except socket.gaierror:
        return Reached((address, False, "no host of that name; check the spelling, DNS or /etc/hosts"))
    except OSError as error:
        if error.errno == errno.ECONNREFUSED:
            return Reached((address, True, "reached; nothing listens there yet"))
        why = error.strerror.lower() if error.strerror else "can't be reached"
        return Reached((address, False, f"{why}: check routes and firewalls"))
    return Reached((address, True, "reached; something listens there"))

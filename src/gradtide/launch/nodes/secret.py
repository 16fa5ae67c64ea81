"""The job's secret, for processes that an agent starts: a file in memory, which is gone when the agent is."""

import os

from gradtide.errors import ConfigError
from gradtide.transport.keys import Credentials, parse_keys, read_credentials

__all__ = ["SecretInMemory", "credentials_from"]

_MOST_BYTES = 1024


class SecretInMemory:
    """`path` is good for processes of this user on this machine, as long as this one lives."""

    def __init__(self, credentials: Credentials) -> None:
        self._descriptor = os.memfd_create("gradtide-secret", os.MFD_CLOEXEC)
        os.fchmod(self._descriptor, 0o600)
        lines = [f"gradtide-key {key.role} {key.name or '-'} {key.secret.hex()}\n" for key in credentials.keys]
        os.write(self._descriptor, "".join(lines).encode("ascii"))
        self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def credentials_from(path: str, descriptor: int, *, insecure_network: bool) -> Credentials:
    """Of a secret file (or the one that GRADTIDE_SECRET_FILE names), or read from a descriptor until its end."""
    if descriptor < 0:
        found = read_credentials(path or None, insecure_network=insecure_network)
    else:
        with open(descriptor, "rb") as stream:
            keys = parse_keys(f"descriptor {descriptor}", stream.read(_MOST_BYTES))
        found = Credentials(keys, insecure_network=insecure_network)
    if not found.keys:
        raise ConfigError("an agent needs the job's secret; give --secret-file or --secret-fd")
    return found

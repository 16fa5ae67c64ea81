"""Keys: the root secret of a job, the keys by role that follow from it, and the files that hold them.

A secret file has one line a key. Two lines are good for the time in which a secret is replaced: both are accepted.

    gradtide-key root - 6f3a…          of servers and coordinator: every other key follows from it
    gradtide-key worker w3 91c0…       of one worker: no other key follows from it

Every handshake is proven with the key of the one who dials: whoever has the root key derives it. 32 bytes and nothing
else are a root key, too: that is what secret files were before there were roles.
"""

import binascii
import hmac
import logging
import os
import re
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from gradtide.environment import read_environment
from gradtide.errors import ConfigError

__all__ = [
    "NAME_BYTES",
    "ROLES",
    "Credentials",
    "Key",
    "derive_key_file",
    "make_secret_file",
    "parse_keys",
    "read_credentials",
]

ROLES = ("worker", "operator")  # that have keys of their own; a server or coordinator has the root key
NAME_BYTES = 64
_KEY_BYTES = 32
_ROOT = "root"
_NOBODY = "-"  # in a file, for no name
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_BYTES - 1}}}")
_LINE = re.compile(rf"gradtide-key (\w+) (\S+) ([0-9a-f]{{{2 * _KEY_BYTES}}})")
_MOST_BYTES = 1024  # of a file
_log = logging.getLogger("gradtide.transport")


@dataclass(frozen=True, slots=True)
class Key:
    """A secret, and who it belongs to."""

    secret: bytes = field(repr=False)
    role: str = _ROOT
    name: str = ""

    @property
    def is_root(self) -> bool:
        return self.role == _ROOT

    def derive(self, role: str, name: str) -> bytes:
        """The secret of that role and name: HKDF-Expand (RFC 5869) with SHA-256, of a root key."""
        if not self.is_root:
            raise ConfigError(f"no other key follows from that of {self}; take the job's root secret file")
        info = b"gradtide key\0" + role.encode() + b"\0" + name.encode()
        return hmac.digest(self.secret, info + b"\x01", "sha256")

    def __str__(self) -> str:
        return f"{self.role} {self.name}".rstrip()


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a process proves itself with, and how it talks to other machines."""

    keys: tuple[Key, ...] = ()  # of one role and name; the first is the newest
    name: str = ""  # of who has the root key; other keys say themselves whose they are
    insecure_network: bool = False  # True: unencrypted
    certificate: str = ""  # a file in PEM, of who listens; else one is made
    certificate_key: str = ""  # the file of its private key, if that is not in the same one

    def __post_init__(self) -> None:
        if len(self.name.encode()) > NAME_BYTES:
            raise ConfigError(f"the name {self.name!r} has more than {NAME_BYTES} bytes; choose a shorter one")
        if self.certificate_key and not self.certificate:
            raise ConfigError(f"{self.certificate_key} is the key of no certificate; give that, too: --certificate")

    @property
    def has_root(self) -> bool:
        return bool(self.keys) and self.keys[0].is_root

    def claim(self, role: str) -> tuple[str, str]:
        """The role and name to go by, for who would be of that role: a key that is not the root's decides itself."""
        key = self.keys[0] if self.keys else None
        return (role, self.name) if key is None or key.is_root else (key.role, key.name)

    def secrets_of(self, role: str, name: str) -> list[bytes]:
        """What somebody of that role and name proves itself with, as far as we know it."""
        known = [key for key in self.keys if key.is_root or (key.role, key.name) == (role, name)]
        return [key.derive(role, name) if key.is_root else key.secret for key in known]


def make_secret_file(path: Path) -> None:
    """A root key that only the owner can read; never overwrites."""
    _write(path, [Key(secrets.token_bytes(_KEY_BYTES))])


def derive_key_file(root: str | Path | None, path: Path, role: str, name: str) -> None:
    """The key of that role and name, made of a root key; of each of two, if the file has two."""
    if role not in ROLES:
        raise ConfigError(f"there are no keys for the role {role!r}; choose one of {', '.join(ROLES)}")
    if name and not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name for a key; take letters, digits, dots and dashes, at most {NAME_BYTES}")
    keys = read_credentials(root).keys
    if not keys:
        raise ConfigError("say which secret file to derive a key from: --secret-file job.secret")
    _write(path, [Key(key.derive(role, name), role, name) for key in keys])


def read_credentials(
    path: str | Path | None,
    *,
    insecure_network: bool = False,
    certificate: str | Path | None = None,
    certificate_key: str | Path | None = None,
) -> Credentials:
    """The keys of a secret file, or of the one that GRADTIDE_SECRET_FILE names; none without either."""
    path = path or read_environment().secret_file or None
    if insecure_network:
        _log.warning(
            "insecure network: nothing that goes to other machines is encrypted; whoever is on the way "
            "can read tensors and change them"
        )
    keys = () if path is None else parse_keys(path, _read(path))
    return Credentials(keys, "", insecure_network, str(certificate or ""), str(certificate_key or ""))


def _write(path: Path, keys: list[Key]) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigError(f"can't make the secret file {path} ({error.strerror}); choose another path") from None
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        for key in keys:
            file.write(f"gradtide-key {key.role} {key.name or _NOBODY} {key.secret.hex()}\n")


def _read(path: str | Path) -> bytes:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"can't read the secret file {path} ({error.strerror})") from None
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o037:
        raise ConfigError(f"the secret file {path} is open to other users; say: chmod 600 {path}")
    if status.st_mode & 0o040:  # as Kubernetes mounts them for pods with an fsGroup
        _log.warning("the secret file %s can be read by group %d; keep it to yourself: chmod 600", path, status.st_gid)
    return content


def parse_keys(path: str | Path, content: bytes) -> tuple[Key, ...]:
    """What is in a secret file; `path` is how a mistake in it is told."""
    if len(content) == _KEY_BYTES:
        return (Key(content),)
    found = [_LINE.fullmatch(line) for line in content.decode("ascii", errors="replace").splitlines()]
    if not 1 <= len(found) <= 2 or None in found:
        raise ConfigError(f"the secret file {path} must hold one key or two; make one: gradtide secret PATH")
    keys = tuple(
        Key(binascii.unhexlify(match[3]), match[1], "" if match[2] == _NOBODY else match[2])
        for match in found
        if match is not None
    )
    if len({(key.role, key.name) for key in keys}) > 1:
        raise ConfigError(f"the secret file {path} holds the keys of {keys[0]} and of {keys[1]}; keep them apart")
    return keys

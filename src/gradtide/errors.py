"""Every error that gradtide raises on purpose.

    GradtideError                 something the caller can act on; its text is one line that says what to do
    ├── ConfigError               an argument, option or environment variable makes no sense
    │   └── DeviceError           a device that is unknown, missing or too many
    ├── DataError                 data is missing, corrupt, or not what it claims to be
    ├── OutputError               a result can't be written where it was asked for
    ├── TopologyError             a description of links and devices is wrong
    ├── ScheduleError             a schedule would give a wrong result or never end
    ├── StoreError                the store refuses what was asked
    │   ├── NotMember             this worker is not, or no longer, in the rounds
    │   ├── RolledBack            more servers died than there were replicas: something is gone
    │   ├── StaleGradient         the round that a push is for is closed
    │   └── UnknownKey            nobody has initialised that key
    ├── WorkerFailed              a worker of gradtide.launch failed: which one, and with what
    └── CommunicationError        ranks that should work together can't
        ├── AuthenticationError   the other side does not know the secret, or is no gradtide
        ├── Closed                you closed it
        ├── FrameError            what came over a socket is no frame of gradtide
        ├── Mismatch              ranks asked for different things at the same time
        ├── PeerLost              a rank died or left
        └── PeerTimeout           a rank did not arrive by the deadline

The command line prints the text of any of them on one line and exits with 2. A failed `assert` or any other
exception is a bug in gradtide.
"""

__all__ = [
    "AuthenticationError",
    "Closed",
    "CommunicationError",
    "ConfigError",
    "DataError",
    "DeviceError",
    "FrameError",
    "GradtideError",
    "Mismatch",
    "NotMember",
    "OutputError",
    "PeerLost",
    "PeerTimeout",
    "RolledBack",
    "ScheduleError",
    "StaleGradient",
    "StoreError",
    "TopologyError",
    "UnknownKey",
    "WorkerFailed",
]


class GradtideError(Exception):
    """Something the caller can act on."""


class ConfigError(GradtideError):
    """An argument, option or environment variable makes no sense."""


class DeviceError(ConfigError):
    """A device that is unknown, missing or too many."""


class DataError(GradtideError):
    """Data is missing, corrupt, or not what it claims to be."""


class OutputError(GradtideError):
    """A result can't be written where it was asked for."""


class TopologyError(GradtideError):
    """A description of links and devices is wrong."""


class ScheduleError(GradtideError):
    """A schedule would give a wrong result or never end."""


class StoreError(GradtideError):
    """The store refuses what was asked."""


class NotMember(StoreError):
    """This worker is not, or no longer, in the rounds."""


class RolledBack(StoreError):
    """More servers died than there were replicas: its text says which keys went back to which version."""


class StaleGradient(StoreError):
    """The round that a push is for is closed."""


class UnknownKey(StoreError):
    """Nobody has initialised that key."""


class WorkerFailed(GradtideError):
    """A worker of gradtide.launch failed: which one, and with what."""


class CommunicationError(GradtideError):
    """Ranks that should work together can't."""


class AuthenticationError(CommunicationError):
    """The other side does not know the secret, or is no gradtide."""


class Closed(CommunicationError):
    """You closed it."""


class FrameError(CommunicationError):
    """What came over a socket is no frame of gradtide."""


class Mismatch(CommunicationError):
    """Ranks asked for different things at the same time."""


class PeerLost(CommunicationError):
    """A rank died or left."""


class PeerTimeout(CommunicationError):
    """A rank did not arrive by the deadline."""

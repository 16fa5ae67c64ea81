"""Our errors as torch's: programs written for torch.distributed catch DistBackendError or RuntimeError."""

import torch.distributed as dist

from gradtide import errors

__all__ = [
    "BadArgument",
    "TorchCommunicationError",
    "TorchMismatch",
    "TorchPeerLost",
    "TorchPeerTimeout",
    "as_torch_error",
]

_BackendError: type[RuntimeError] = vars(dist)["DistBackendError"]  # torch does not declare it


class TorchCommunicationError(errors.CommunicationError, _BackendError):  # type: ignore[misc, valid-type]
    """Ranks that should work together can't."""


class TorchPeerLost(errors.PeerLost, TorchCommunicationError):
    """A rank died or left."""


class TorchPeerTimeout(errors.PeerTimeout, TorchCommunicationError):
    """A rank did not arrive by the deadline."""


class TorchMismatch(errors.Mismatch, TorchCommunicationError):
    """Ranks asked for different things at the same time."""


class BadArgument(errors.ConfigError, ValueError, RuntimeError):
    """An argument makes no sense."""


_OURS: dict[type[errors.GradtideError], type[Exception]] = {
    errors.PeerLost: TorchPeerLost,
    errors.PeerTimeout: TorchPeerTimeout,
    errors.Mismatch: TorchMismatch,
    errors.CommunicationError: TorchCommunicationError,
    errors.ConfigError: BadArgument,
}


def as_torch_error(error: BaseException) -> BaseException:
    """The same error as one that torch's users catch; what is none of ours stays as it is."""
    for ours, theirs in _OURS.items():
        if isinstance(error, ours) and not isinstance(error, theirs):
            text = f"the timeout is over: {error}" if ours is errors.PeerTimeout else str(error)
            return theirs(text).with_traceback(error.__traceback__)
    return error

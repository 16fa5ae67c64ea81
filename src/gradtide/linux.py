"""What needs Linux says so in one line; the planner works everywhere."""

import sys

from gradtide.errors import ConfigError

__all__ = ["require_linux"]

_SYSTEMS = {"darwin": "macOS", "win32": "Windows"}


def require_linux(what: str) -> None:
    """Raises ConfigError where shared memory, abstract sockets and /proc are not what Linux has."""
    if sys.platform != "linux":
        system = _SYSTEMS.get(sys.platform, sys.platform)
        raise ConfigError(
            f"{what} needs Linux, and this is {system}; here the planner works: gradtide plan, "
            "gradtide topology show, gradtide.plan in Python"
        )

"""The only reader of environment variables, into one frozen object."""

import os
from dataclasses import dataclass
from pathlib import Path

from gradtide.errors import ConfigError

__all__ = ["Environment", "Launch", "read_environment", "with_root_allowed"]


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launcher (torchrun, say) tells each process of a job."""

    rank: int  # RANK
    size: int  # WORLD_SIZE
    master_addr: str  # MASTER_ADDR
    master_port: int  # MASTER_PORT
    agent_store: bool  # TORCHELASTIC_USE_AGENT_STORE: torchrun itself holds the store at that address


@dataclass(frozen=True, slots=True)
class Environment:
    """What the surroundings of this process say."""

    cache_dir: Path  # GRADTIDE_CACHE, or a folder in XDG_CACHE_HOME or ~/.cache
    launch: Launch | None = None  # when RANK is set


def read_environment() -> Environment:
    own = os.environ.get("GRADTIDE_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Environment(cache_dir=Path(own) if own else Path(shared) / "gradtide", launch=_launch())


def _launch() -> Launch | None:
    if "RANK" not in os.environ:
        return None
    return Launch(
        _number("RANK"),
        _number("WORLD_SIZE"),
        os.environ.get("MASTER_ADDR", "127.0.0.1"),
        _number("MASTER_PORT", "29500"),
        os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _number(name: str, default: str | None = None) -> int:
    text = os.environ.get(name, default)
    if text is None or not text.isdecimal():
        raise ConfigError(f"the environment variable {name} must be a whole number, not {text!r}; start with torchrun")
    return int(text)


def with_root_allowed() -> dict[str, str]:
    """The environment for Open MPI's mpiexec, which refuses to run as root (in a container, say) unless told twice."""
    return dict(os.environ) | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

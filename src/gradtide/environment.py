"""The only reader of environment variables, into one frozen object."""

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Environment", "read_environment"]


@dataclass(frozen=True, slots=True)
class Environment:
    """What the surroundings of this process say."""

    cache_dir: Path  # GRADTIDE_CACHE, or a folder in XDG_CACHE_HOME or ~/.cache


def read_environment() -> Environment:
    own = os.environ.get("GRADTIDE_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Environment(cache_dir=Path(own) if own else Path(shared) / "gradtide")

"""Whether all nodes have the same gradtide, torch and Python: a job of different ones would not be one job."""

import platform
from collections.abc import Mapping

import msgspec

from gradtide.errors import ConfigError

__all__ = ["Versions", "check_versions", "versions_here"]


class Versions(msgspec.Struct, frozen=True):
    """Of what has to be alike."""

    gradtide: str
    torch: str
    python: str


def versions_here() -> Versions:
    from importlib.metadata import version

    import gradtide

    return Versions(gradtide.__version__, version("torch"), ".".join(platform.python_version_tuple()[:2]))


def check_versions(mine: Versions, where: str, others: Mapping[str, Versions]) -> None:
    """Raises a line that names the first node that differs, and in what."""
    for node, theirs in others.items():
        for what in Versions.__struct_fields__:
            here, there = getattr(mine, what), getattr(theirs, what)
            if here != there:
                raise ConfigError(
                    f"{node} has {what} {there}, and {where} has {what} {here}; install the same on all nodes"
                )

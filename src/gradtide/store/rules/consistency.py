"""How consistency is written: async, bsp or bounded:k."""

import re
import warnings

from gradtide.calling import users_level
from gradtide.errors import ConfigError

__all__ = ["parse_consistency", "show_consistency"]


def parse_consistency(text: str) -> int | None:
    """None for async, else by how many rounds a step may be ahead: 0 for bsp."""
    if text in ("async", "bsp"):
        return None if text == "async" else 0
    match = re.fullmatch(r"bounded(?::(\d{1,6})|\((\d{1,6})\))", text)
    if match is None:
        raise ConfigError(f"unknown consistency {text!r}; choose async, bsp or bounded:k, as in bounded:4")
    if match[2] is not None:  # the old spelling goes with 0.3.0
        new = f"bounded:{match[2]}"
        warnings.warn(f"consistency {text!r} is written {new!r} now", DeprecationWarning, users_level())
    return int(match[1] or match[2])


def show_consistency(delay: int | None) -> str:
    if delay is None:
        return "async"
    return f"bounded:{delay}" if delay else "bsp"

"""Words for errors: what was typed, kept short, and what was probably meant."""

import difflib
from collections.abc import Iterable

__all__ = ["nearest", "shown"]


def shown(text: object, most: int = 60) -> str:
    """A value as an error quotes it: escaped, and cut where it is long."""
    quoted = repr(text[: most + 1] if isinstance(text, str) else text)
    return quoted if len(quoted) <= most else f"{quoted[: most - 1]}…"


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence: "; did you mean 'gpu0'?", or else the few that are known, or nothing."""
    names = sorted(str(name) for name in known)
    match = difflib.get_close_matches(word[:80], names, n=1, cutoff=0.6)
    if match:
        return f"; did you mean {match[0]!r}?"
    return f"; known are {', '.join(names)}" if 0 < len(names) <= 12 else ""

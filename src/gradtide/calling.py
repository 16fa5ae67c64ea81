"""Names that nobody knows here, in a call or a command: refused in one line that says what to write instead."""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import ParamSpec, TypeVar

from gradtide.errors import ConfigError

__all__ = ["check_flags", "check_whole", "meant", "refuse_foreign_names", "users_level"]

_PACKAGE = os.path.dirname(__file__) + os.sep

P = ParamSpec("P")
R = TypeVar("R")
Words = str | Callable[[str, Mapping[str, object]], str]  # what to write instead: of the name, and all that was named


def refuse_foreign_names(
    elsewhere: Mapping[str, Words], unnamed: str = "give the others by name"
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For a function or an `__init__`. `elsewhere` has the names that other libraries use, in groups that are separated
    by spaces, and what to write instead; `unnamed` says what to write if there are too many arguments without names."""
    instead = {name: words for names, words in elsewhere.items() for name in names.split()}

    def around(call: Callable[P, R]) -> Callable[P, R]:
        who = call.__qualname__.removesuffix(".__init__")
        parameters = inspect.signature(call).parameters
        places = sum(one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters.values())
        kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        needed = [name for name, one in parameters.items() if one.default is one.empty and one.kind in kinds]

        @functools.wraps(call)
        def checked(*given: P.args, **named: P.kwargs) -> R:
            for name in named:
                if name not in parameters:
                    raise ConfigError(f"{who}: {_say(name, instead, [*parameters], named)}")
            if len(given) > places:
                raise ConfigError(f"{who}: too many arguments without a name; {unnamed}")
            for name in needed[len(given) :]:
                if name not in named:
                    raise ConfigError(f"{who}: {name} is missing; {unnamed}")
            return call(*given, **named)

        return checked

    return around


def check_flags(who: str, **flags: object) -> None:
    """Words are true, too: `overlap="no"` would mean yes."""
    for name, value in flags.items():
        if not isinstance(value, bool | int):
            raise ConfigError(f"{who}: {name}={value!r} makes no sense; say True or False")


def check_whole(who: str, **counts: object) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise ConfigError(f"{who}: {name}={value!r} makes no sense; give a whole number")


def _say(name: str, instead: Mapping[str, Words], known: list[str], named: Mapping[str, object]) -> str:
    if name in instead:
        words = instead[name]
        return f"there is no {name}=; {words if isinstance(words, str) else words(name, named)}"
    ours = [one for one in known if one != "self"]
    near = meant(f"{name}=", [f"{one}=" for one in ours])
    return f"there is no {name}={near or '; its arguments are ' + ', '.join(ours)}"


def meant(word: str, known: Iterable[str]) -> str:
    """Behind a word that nobody knows: " (did you mean --size?)", or nothing."""
    import difflib  # only now: every program that trains loads this file

    match = difflib.get_close_matches(word[:80], list(known), n=1, cutoff=0.6)
    return f" (did you mean {match[0]}?)" if match else ""


def users_level() -> int:
    """The stacklevel for a warning of the function that calls this: the first caller that is neither of gradtide nor of
    torch, whose backward calls us."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("gradtide", "torch"):
        level, frame = level + 1, frame.f_back
    return level

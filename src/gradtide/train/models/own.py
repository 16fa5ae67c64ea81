"""A user's own function by where it is: `my_module:make_model`."""

import importlib
import sys
from pathlib import Path
from typing import Any

from gradtide.calling import meant
from gradtide.errors import ConfigError

__all__ = ["find_own", "is_own", "make_own"]


def is_own(text: str) -> bool:
    """Whether it names a function of the user's, and not something built in."""
    return ":" in text


def find_own(text: str, option: str) -> Any:
    """What `module:name` names; the module is looked for in the current folder too."""
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{option} {text!r} makes no sense; write MODULE:FUNCTION, as in my_module:make_model")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{option} {text}: there is no module {module_name!r} here or among those installed; run in the folder "
                f"of {module_name.partition('.')[0]}.py"
            ) from None
        raise
    if not hasattr(found, name):
        near = meant(name, [known for known in vars(found) if not known.startswith("_")])
        raise ConfigError(f"{option} {text}: {module_name} has no {name!r}{near or '; look at the name'}")
    return getattr(found, name)


def make_own(text: str, option: str) -> Any:
    """What the function that `module:name` names gives, called without arguments."""
    function = find_own(text, option)
    if not callable(function):
        raise ConfigError(f"{option} {text} is a {type(function).__name__}; name a function without arguments")
    return function()

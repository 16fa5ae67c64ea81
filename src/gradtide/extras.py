"""What is installed only where it is wanted: `pip install 'gradtide[plot]'`, and what to say where it is missing."""

import importlib.util

from gradtide.errors import ConfigError

__all__ = ["EXTRAS", "is_there", "lacking", "missing", "require"]

EXTRAS = {
    "dashboard": "starlette",
    "digits": "sklearn",
    "etcd": "etcd3gw",
    "huggingface": "transformers",
    "lightning": "lightning",
    "metrics": "prometheus_client",
    "plot": "matplotlib",
    "ray": "ray",
    "tensorboard": "tensorboard",
}
_LIBRARIES = {"sklearn": "scikit-learn"}  # where the name to install is not that to import


def is_there(extra: str) -> bool:
    """Whether what the extra brings can be imported; nothing is imported."""
    return importlib.util.find_spec(EXTRAS[extra]) is not None


def require(extra: str, what: str) -> None:
    """Raises ConfigError, which names the command that installs it, if it is not there."""
    if not is_there(extra):
        raise ConfigError(lacking(extra, what))


def lacking(extra: str, what: str) -> str:
    library = _LIBRARIES.get(EXTRAS[extra], EXTRAS[extra])
    return f"{what} needs {library}, which is not installed: pip install 'gradtide[{extra}]'"


def missing() -> list[str]:
    return [extra for extra in EXTRAS if not is_there(extra)]

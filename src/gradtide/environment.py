"""The only reader of environment variables, into one frozen object."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gradtide.errors import ConfigError

__all__ = [
    "Environment",
    "Launch",
    "extend_environment",
    "in_notebook",
    "read_environment",
    "with_root_allowed",
    "with_variables",
]


_COMPILING = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX", "NUMBA_OPT")


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launcher (`gradtide run`, torchrun) tells each process of a job."""

    rank: int  # RANK
    size: int  # WORLD_SIZE
    master_addr: str  # MASTER_ADDR
    master_port: int  # MASTER_PORT
    agent_store: bool  # TORCHELASTIC_USE_AGENT_STORE: torchrun itself holds the store at that address
    job: str = ""  # GRADTIDE_JOB: our own launcher started all ranks; on one host they meet under this name
    several_hosts: bool = False  # GRADTIDE_SEVERAL_HOSTS: it did so on several


@dataclass(frozen=True, slots=True)
class Environment:
    """What the surroundings of this process say."""

    cache_dir: Path  # GRADTIDE_CACHE, or a folder in XDG_CACHE_HOME or ~/.cache
    launch: Launch | None = None  # when RANK is set
    store: str = ""  # GRADTIDE_STORE: the address of the job's store, if it has one
    secret_file: str = ""  # GRADTIDE_SECRET_FILE: where this process's key is, for a store over TCP
    insecure_network: bool = False  # GRADTIDE_INSECURE_NETWORK: the job's registrar is reached unencrypted
    encrypt: bool = False  # GRADTIDE_ENCRYPT: whether what goes between hosts is encrypted; needs a secret file
    flows: int = 0  # GRADTIDE_FLOWS: connections between each two ranks of different hosts; 0: as measured, or one
    incarnation: int = 0  # GRADTIDE_INCARNATION: how often this rank was started again
    members: str = ""  # GRADTIDE_MEMBERS: where to ask who works together, in a job that goes on when a worker dies
    step_s: float | None = None  # GRADTIDE_STEP_TIMEOUT: how long a step may wait for a worker that lives
    topology: str = ""  # GRADTIDE_TOPOLOGY: the file or preset that process groups on several hosts plan on
    events: str = ""  # GRADTIDE_EVENTS: a folder where workers and servers write their events down, for who watches
    trace: bool = False  # GRADTIDE_TRACE: whether each task of a step that is split is told of, too
    reports: str = ""  # GRADTIDE_REPORTS: "ray-train:" and a word, in a worker of Ray Train: fit reports there
    nan_check: bool = False  # TORCH_DIST_NAN_CHECK: torch (from 2.14 on) looks for NaN in what collectives are given
    ray_address: str = ""  # RAY_ADDRESS: of the Ray cluster to run on, unless another is named
    threads: int | None = None  # OMP_NUM_THREADS
    compiled_dir: Path | None = None  # NUMBA_CACHE_DIR: where machine code is kept, numba's and ours
    compiling: tuple[str, ...] = ()  # NUMBA_CPU_NAME and the others by which numba makes other machine code
    colour: bool = True  # unless NO_COLOR is set or TERM is dumb


def read_environment() -> Environment:
    own = os.environ.get("GRADTIDE_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return Environment(
        cache_dir=Path(own) if own else Path(shared) / "gradtide",
        launch=_launch(),
        store=os.environ.get("GRADTIDE_STORE", ""),
        secret_file=os.environ.get("GRADTIDE_SECRET_FILE", ""),
        insecure_network=_flag("GRADTIDE_INSECURE_NETWORK"),
        encrypt=_flag("GRADTIDE_ENCRYPT"),
        flows=_flows(),
        incarnation=_number("GRADTIDE_INCARNATION", os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        members=os.environ.get("GRADTIDE_MEMBERS", ""),
        step_s=_seconds("GRADTIDE_STEP_TIMEOUT"),
        topology=os.environ.get("GRADTIDE_TOPOLOGY", ""),
        events=os.environ.get("GRADTIDE_EVENTS", ""),
        trace=_flag("GRADTIDE_TRACE"),
        reports=os.environ.get("GRADTIDE_REPORTS", ""),
        nan_check=os.environ.get("TORCH_DIST_NAN_CHECK") == "1",
        ray_address=os.environ.get("RAY_ADDRESS", ""),
        threads=int(threads) if threads.isdecimal() else None,
        compiled_dir=Path(compiled).absolute() if (compiled := os.environ.get("NUMBA_CACHE_DIR")) else None,
        compiling=tuple(f"{name}={os.environ.get(name, '')}" for name in _COMPILING),
        colour=not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb",
    )


def _launch() -> Launch | None:
    if "RANK" not in os.environ:
        return None
    return Launch(
        _number("RANK"),
        _number("WORLD_SIZE"),
        os.environ.get("MASTER_ADDR", "127.0.0.1"),
        _number("MASTER_PORT", "29500"),
        os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        _job(),
        _flag("GRADTIDE_SEVERAL_HOSTS"),
    )


def _job() -> str:
    """Our launcher's name for the job, unless another launcher (torchrun inside a worker) has started this process."""
    job = os.environ.get("GRADTIDE_JOB", "")
    return job if job == os.environ.get("TORCHELASTIC_RUN_ID") else ""


def _number(name: str, default: str | None = None) -> int:
    text = os.environ.get(name, default)
    if text is None or not text.isdecimal():
        raise ConfigError(
            f"the environment variable {name} must be a whole number, not {text!r}; start with gradtide run or torchrun"
        )
    return int(text)


def _flag(name: str) -> bool:
    text = os.environ.get(name, "")
    if text not in ("", "0", "1"):
        raise ConfigError(f"the environment variable {name} must be 1 or 0, not {text!r}")
    return text == "1"


def _flows() -> int:
    text = os.environ.get("GRADTIDE_FLOWS", "")
    if text and (not text.isdecimal() or not 1 <= int(text) <= 8):
        raise ConfigError(f"the environment variable GRADTIDE_FLOWS must be a number from 1 to 8, not {text!r}")
    return int(text or 0)


def _seconds(name: str) -> float | None:
    text = os.environ.get(name, "")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ConfigError(f"the environment variable {name} must be a number of seconds above 0, not {text!r}")
    return seconds


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel, which a worker of a job is not."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel") and "RANK" not in os.environ


def with_root_allowed() -> dict[str, str]:
    """The environment for Open MPI's mpiexec, which refuses to run as root (in a container, say) unless told twice."""
    return dict(os.environ) | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def with_variables(more: Mapping[str, str]) -> dict[str, str]:
    """This process's environment and more, for a process that it starts."""
    return dict(os.environ) | dict(more)


def extend_environment(more: Mapping[str, str]) -> None:
    """Sets variables of this process: a worker does so once, before its script runs."""
    os.environ.update(more)

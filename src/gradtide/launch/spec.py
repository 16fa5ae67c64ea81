"""What a job is to be: how many workers, what they run, what happens when one dies, and what each finds around it."""

import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from gradtide.environment import read_environment
from gradtide.errors import ConfigError
from gradtide.launch.target import Target
from gradtide.timeouts import default_timeouts

__all__ = ["Spec", "check_spec", "describe", "describe_nodes", "free_port", "variables_between", "variables_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A job on this machine."""

    target: Target
    workers: int
    min_workers: int | None = None  # the job goes on while so many live; all of them, unless said
    max_workers: int | None = None  # so many `gradtide scale` may make of them; as many as there are, unless said
    max_restarts: int = 0  # over the whole job
    threads: int | None = None  # of each worker; an even share of the cores, unless said here or by OMP_NUM_THREADS
    grace_s: float = 1.5  # between a signal and SIGKILL
    step_s: float | None = None  # how long a worker that lives may keep the others waiting; as usual, unless said
    preload: str = ""  # a module whose load() the fork server calls before it makes workers
    name: str = field(default_factory=lambda: f"run-{secrets.token_hex(4)}")

    @property
    def needed(self) -> int:
        return self.workers if self.min_workers is None else self.min_workers

    @property
    def most(self) -> int:
        return self.workers if self.max_workers is None else self.max_workers

    @property
    def elastic(self) -> bool:
        return self.needed < self.workers or self.max_restarts > 0 or self.most > self.workers

    @property
    def patience_s(self) -> float:
        return default_timeouts().step_s if self.step_s is None else self.step_s

    @property
    def threads_each(self) -> int:
        return self.threads or read_environment().threads or max(1, _cores() // self.workers)


def check_spec(spec: Spec) -> None:
    """Raises ConfigError if the numbers make no sense. More workers than cores are slow, not wrong."""
    if spec.workers < 1:
        raise ConfigError(f"{spec.workers} workers can't train anything; start at least one (--workers)")
    if not 1 <= spec.needed <= spec.workers:
        raise ConfigError(f"--min-workers {spec.needed} makes no sense with {spec.workers} workers; give 1 to that")
    if spec.most < spec.workers:
        raise ConfigError(f"--max-workers {spec.most} makes no sense with {spec.workers} workers; give that or more")
    if spec.max_restarts < 0:
        raise ConfigError(f"--max-restarts {spec.max_restarts} makes no sense; give 0 or more")
    if spec.threads is not None and spec.threads < 1:
        raise ConfigError(f"--threads {spec.threads} makes no sense; a worker has at least one")
    if spec.grace_s < 0:
        raise ConfigError(f"--grace {spec.grace_s:g} makes no sense; give 0 seconds or more")
    if spec.step_s is not None and not spec.step_s > 0:
        raise ConfigError(f"--step-timeout {spec.step_s:g} makes no sense; give more than 0 seconds")


def describe(spec: Spec) -> str:
    """What is said once, when a job starts."""
    workers = "1 worker" if spec.workers == 1 else f"{spec.workers} workers"
    threads = "1 thread" if spec.threads_each == 1 else f"{spec.threads_each} threads"
    each = " each" if spec.workers > 1 else ""
    return f"job {spec.name}: {workers} with {threads}{each}, {_cores()} cores"


def variables_of(spec: Spec, port: int, rank: int, incarnation: int) -> dict[str, str]:
    """A worker's variables: those that torchrun would set, and ours."""
    numbers = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "ROLE_RANK": rank,
        "GROUP_RANK": 0,
        "WORLD_SIZE": spec.workers,
        "LOCAL_WORLD_SIZE": spec.workers,
        "ROLE_WORLD_SIZE": spec.workers,
        "GROUP_WORLD_SIZE": 1,
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": incarnation,
        "TORCHELASTIC_MAX_RESTARTS": spec.max_restarts,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1,
        "GRADTIDE_INCARNATION": incarnation,
        "GRADTIDE_ELASTIC": int(spec.elastic),
        "GRADTIDE_MIN_WORKERS": spec.needed,
    }
    names = {
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RUN_ID": spec.name,
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 opens torch's store, for who wants one
        "GRADTIDE_JOB": spec.name,
    } | ({} if spec.step_s is None else {"GRADTIDE_STEP_TIMEOUT": f"{spec.step_s:g}"})
    return {name: str(number) for name, number in numbers.items()} | names


def describe_nodes(spec: Spec, places: Sequence[str]) -> str:
    """The same for a job on several machines. `places`: each worker's node."""
    workers = "1 worker" if spec.workers == 1 else f"{spec.workers} workers"
    shares = ", ".join(f"{places.count(name)} on {name}" for name in dict.fromkeys(places))
    return f"job {spec.name}: {workers} ({shares})"


def variables_between(
    spec: Spec, rank: int, incarnation: int, local: tuple[int, int], place: tuple[int, int]
) -> dict[str, str]:
    """The same for a job on several machines. `local`: the worker's number on its node, and how many are there;
    `place`: the node's number, and how many there are."""
    numbers = {
        "LOCAL_RANK": local[0],
        "LOCAL_WORLD_SIZE": local[1],
        "GROUP_RANK": place[0],
        "GROUP_WORLD_SIZE": place[1],
        "GRADTIDE_SEVERAL_HOSTS": 1,
    }
    return variables_of(spec, 0, rank, incarnation) | {name: str(number) for name, number in numbers.items()}


def free_port() -> int:
    """A port that nobody has now, for rank 0 to listen on if the script opens a torch.distributed group."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _cores() -> int:
    return len(os.sched_getaffinity(0))

"""How fast two workers on two hosts train that meet now and then: beside never, always, and other libraries."""

import importlib.util
import json
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from gradtide.bench import report
from gradtide.bench.contender import Contender, ContenderFailed, interleave
from gradtide.errors import ConfigError
from gradtide.schedule.predict.less_often import forecast_step
from gradtide.testing.hosts import ADDRESSES, INTERFACES, two_hosts
from gradtide.train.models import check_model

__all__ = ["FrugalSpeed", "SpeedSettings", "bench_speed"]

_FIRST_PORT = 29_800
_NEVER, _DENSE = "never synchronised", "every step together"


@dataclass(frozen=True, slots=True)
class SpeedSettings:
    """What is measured."""

    model: str = "mlp"
    batch_size: int = 256  # over both workers
    rate: str = "1gbit"
    every: int = 50
    rounds: int = 3
    peers: str = ""  # a folder with accelerate and torchft, for who does not want them beside torch

    def check(self) -> None:
        check_model(self.model)
        if self.batch_size < 2 or self.rounds < 1 or self.every < 1:
            raise ConfigError("the batch needs 2 samples or more, and there must be 1 round and 1 step or more")

    @property
    def kinds(self) -> dict[str, str]:
        """Name in the table -> what worker.py is to be. The first is the measure."""
        return {
            _NEVER: "independent",
            _DENSE: "dense",
            f"Local({self.every})": "local",
            f"Local({self.every}, outer)": "diloco",
            "torchft's LocalSGD": "torchft-local",
            "torchft's DiLoCo": "torchft-diloco",
            "accelerate's LocalSGD": "accelerate",
        }


@dataclass(frozen=True, slots=True)
class FrugalSpeed:
    """What was found."""

    rows: list[report.Row]
    seconds: dict[str, list[float]]  # of a step, in each round
    predicted_s: dict[str, float]  # of a step
    skipped: dict[str, str]  # who could not take part, and why


def bench_speed(settings: SpeedSettings, tell: Callable[[str], None]) -> FrugalSpeed:
    """Samples per second of both workers together."""
    settings.check()
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        links = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradtide-bench-"))) / "links"
        hosts = stack.enter_context(two_hosts(settings.rate))
        peers = []
        for number, (name, kind) in enumerate(settings.kinds.items()):
            missing = _missing(kind, settings.peers)
            if missing:
                skipped[name] = missing
                continue
            tell(f"starting {name}")
            peer = _start(settings, (name, kind), hosts, links, _FIRST_PORT + 10 * number)
            try:
                stack.enter_context(peer).wait_until_ready()
            except ContenderFailed as error:
                if not kind.startswith(("torchft", "accelerate")):
                    raise
                skipped[name] = str(error)
                continue
            peers.append(peer)
        steps = {_NEVER: max(1, settings.every // 5), _DENSE: 4}
        seconds = interleave(peers, settings.rounds, lambda name: steps.get(name, settings.every), tell)
        predicted = _predict(settings, median(seconds[_NEVER]), json.loads(links.read_text()))
    return FrugalSpeed(report.rows(seconds, settings.batch_size // 2 * 2), seconds, predicted, skipped)


def _missing(kind: str, folder: str) -> str:
    library = kind.partition("-")[0]
    if library not in ("torchft", "accelerate") or importlib.util.find_spec(library):
        return ""
    there = folder and (Path(folder) / library).is_dir()
    return "" if there else f"{library} is not installed; pip install --target FOLDER it, and give --peers FOLDER"


def _start(
    settings: SpeedSettings, what: tuple[str, str], hosts: tuple[list[str], list[str]], links: Path, port: int
) -> Contender:
    name, kind = what
    asked = [kind, settings.model, str(settings.batch_size // 2), str(settings.every), str(links), settings.peers]
    command = ["-m", "gradtide.bench.frugal.worker", *asked]
    inside = [[*hosts[rank], "env", *_environment(rank, port)] for rank in range(2)]
    return Contender(name, [command, command], inside)


def _environment(rank: int, port: int) -> list[str]:
    return [
        f"RANK={rank}",
        "WORLD_SIZE=2",
        "LOCAL_RANK=0",
        f"MASTER_ADDR={ADDRESSES[0]}",
        f"MASTER_PORT={port}",
        f"GLOO_SOCKET_IFNAME={INTERFACES[rank]}",
        "OMP_NUM_THREADS=1",
    ]


def _predict(settings: SpeedSettings, compute_s: float, links: dict[str, float]) -> dict[str, float]:
    """From a step that is never synchronised, and what the links took for tensors of a few sizes; taken together, also
    from when each gradient is ready in backward."""
    found = forecast_step(compute_s, links["meeting_s"], links["bytes"], settings.every, overlap=False)
    local = {name: found.local_s for name in settings.kinds if name.startswith("Local(")}
    return {_DENSE: compute_s + links["waiting_s"], **local}

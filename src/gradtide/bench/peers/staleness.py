"""One worker of `bench staleness`: trains a small MLP through servers while something slows it; settings as JSON."""

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import gradtide
from gradtide.sync import Servers, current_job
from gradtide.train.datasets.fashion_mnist import load_fashion_mnist
from gradtide.train.source import as_source

__all__ = ["GOAL", "STALL_PROBABILITY", "STALL_S", "WEATHERS", "StalenessCase"]

STALL_PROBABILITY, STALL_S = 0.05, 0.15
SNAPSHOT_STEPS = 5
GOAL = 0.8
BEYOND = 6  # snapshots that are still looked at after the goal


@dataclass(frozen=True, slots=True)
class StalenessCase:
    """One run."""

    mode: str
    weather: str  # a key of WEATHERS
    seed: int
    steps: int
    batch_size: int  # of all workers together
    lr: float
    data_dir: str
    result: str  # where worker 0 writes what it saw


# --- what slows a worker: (case, rank) -> seconds to sleep before a step, from those that the last one computed ---


def calm(case: StalenessCase, rank: int) -> Callable[[float], float]:
    return lambda computed_s: 0.0


def slow(case: StalenessCase, rank: int) -> Callable[[float], float]:
    """Worker 1 computes at a third of its speed."""
    return lambda computed_s: 2 * computed_s if rank == 1 else 0.0


def stalls(case: StalenessCase, rank: int) -> Callable[[float], float]:
    """Now and then any worker stops for a while."""
    draws = random.Random(f"{case.seed} {rank}")
    return lambda computed_s: STALL_S if draws.random() < STALL_PROBABILITY else 0.0


WEATHERS: dict[str, Callable[[StalenessCase, int], Callable[[float], float]]] = {
    "slow": slow,
    "stalls": stalls,
    "calm": calm,
}


def train(case: StalenessCase) -> list[tuple[float, dict[str, Tensor]]]:
    """Worker 0's parameters every few steps, with the seconds since all began together."""
    job = current_job()
    measures = job.rank == 0  # as it begins: who is left when others have gone gets their rank
    train_data, _ = _data(case)
    torch.manual_seed(case.seed)
    net = build()
    model = gradtide.DataParallel(net, torch.optim.SGD(net.parameters(), lr=case.lr), Servers(case.mode), job=job)
    sleep_s, computed_s = WEATHERS[case.weather](case, job.rank), 0.0
    snapshots: list[tuple[float, dict[str, Tensor]]] = []
    finished = Path(case.result + ".finished")
    if job.group is not None:
        job.group.barrier()
    began_s = time.monotonic()
    for step, (inputs, targets) in enumerate(gradtide.shard(_batches(case, train_data))):
        if step % SNAPSHOT_STEPS == 0 and measures:
            snapshots.append((time.monotonic() - began_s, {k: v.clone() for k, v in net.state_dict().items()}))
        # Before it computes: gradients leave while backward goes on, so a slow worker's must not have left yet.
        time.sleep(sleep_s(computed_s))
        started_s = time.monotonic()
        functional.cross_entropy(model(inputs), targets).backward()
        computed_s = time.monotonic() - started_s
        model.step()
        if case.mode == "async" and finished.exists():  # nobody measures any more; in rounds all stop together
            break
    if measures:
        finished.touch()
    model.close()
    return snapshots


def build() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def _data(case: StalenessCase) -> Any:
    return load_fashion_mnist(Path(case.data_dir))


def _batches(case: StalenessCase, data: Any) -> Iterator[tuple[Tensor, Tensor]]:
    source, left, epoch = as_source(data, case.batch_size, case.seed), case.steps, 0
    while left:
        epoch += 1
        for batch in source.read(epoch):
            if left and len(batch[0]) == case.batch_size:
                left -= 1
                yield batch


def main() -> None:
    case = StalenessCase(**json.loads(sys.argv[1]))
    snapshots = train(case)
    if snapshots:  # worker 0's, evaluated only now, so that it takes no time from the run
        _, (inputs, targets) = _data(case)
        Path(case.result).write_text(json.dumps(_accuracies(snapshots, inputs, targets)))


def _accuracies(
    snapshots: list[tuple[float, dict[str, Tensor]]], inputs: Tensor, targets: Tensor
) -> list[tuple[float, float]]:
    """Test accuracy over time, until a little after the goal."""
    net, curve, beyond = build(), [], 0
    for seconds, state in snapshots:
        net.load_state_dict(state)
        with torch.no_grad():
            accuracy = float((net(inputs).argmax(1) == targets).float().mean())
        curve.append((seconds, accuracy))
        beyond += accuracy >= GOAL
        if beyond > BEYOND:
            break
    return curve


if __name__ == "__main__":
    main()

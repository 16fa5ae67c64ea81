"""One worker of `bench frugal --compress`: SETTINGS OUTPUT; its rank is in the environment.

All contenders live in this process, and take turns: a model each, which the other worker has, too.
"""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gradtide
from gradtide.bench.frugal.codec_speed import measure_codecs
from gradtide.bench.frugal.contenders import NEVER, SmallerContender, contenders_of
from gradtide.bench.frugal.hooks import TorchGroups, hook_step
from gradtide.bench.peers.training import LR, Batch, Step, plain_step, random_batch, wrapped_step
from gradtide.collective import Group
from gradtide.events import Event, GradientsSynchronised
from gradtide.processes.malloc import keep_freed_memory
from gradtide.sync import Job
from gradtide.train.models import build_model

__all__ = ["main"]

_MOST_STEPS = 10


@dataclass(slots=True)
class _Taking:
    """A contender that takes part."""

    step: Step
    before: int = 1  # steps before what is measured
    payload: int | None = None  # bytes that a worker gave in its last step, where that is told
    steps: int = 1  # in a turn
    seconds: list[float] = field(default_factory=list)  # of a step, in each turn
    sent: list[float] = field(default_factory=list)  # bytes a step that left on the interface

    def observe(self, event: Event) -> None:
        if isinstance(event, GradientsSynchronised):
            self.payload = event.wire_bytes


def _take_part(which: SmallerContender, asked: Mapping[str, Any], group: Group, torch_groups: TorchGroups) -> _Taking:
    model, batch = build_model(asked["model"], 0), random_batch(asked["batch_size"] // 2, group.rank)
    if which.name == NEVER:
        return _Taking(plain_step(model, batch))
    if which.hook:
        return _Taking(*hook_step(which.name, which.codec or "", model, batch, torch_groups))
    taking = _Taking(lambda: None)
    taking.step = _ours(which, asked, model, batch, group, taking)
    return taking


def _ours(
    which: SmallerContender, asked: Mapping[str, Any], model: nn.Module, batch: Batch, group: Group, taking: _Taking
) -> Step:
    sync: Any = "auto"
    if which.over_servers:
        address, secret = asked["stores"][which.name]
        sync = gradtide.Servers("bsp", address, secret, insecure_network=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    job = Job.of(group)
    wrapped = gradtide.DataParallel(model, optimizer, sync, compress=which.codec, job=job, emit=taking.observe)
    return wrapped_step(wrapped, batch)


def _turn(taking: _Taking, steps: int, group: Group) -> tuple[float, float]:
    """Seconds of a step, of the slower worker, and bytes of a step, of the one that sent more."""
    group.barrier()
    sent, began_s = _left_bytes(), time.perf_counter()
    for _ in range(steps):
        taking.step()
    found = torch.tensor([time.perf_counter() - began_s, float(_left_bytes() - sent)], dtype=torch.float64)
    group.all_reduce(found, "max")
    return float(found[0]) / steps, float(found[1]) / steps


def _left_bytes() -> int:
    """That have left this host, with all headers."""
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    return sum(int(line.split(":")[1].split()[8]) for line in lines if line.strip().startswith("gt"))


def _measure(asked: Mapping[str, Any], group: Group) -> dict[str, Any]:
    taking, torch_groups = {}, TorchGroups(group.rank, asked["torch_port"])
    for which in contenders_of(asked["codecs"]):
        _say(group, f"starting {which.name}")
        taking[which.name] = one = _take_part(which, asked, group, torch_groups)
        for _ in range(one.before):
            took_s, _ = _turn(one, 1, group)
        one.steps = max(1, min(_MOST_STEPS, round(asked["turn_s"] / took_s)))  # both have the same figure
    for number in range(asked["rounds"]):
        for name in taking if number % 2 == 0 else reversed(taking):
            _say(group, f"round {number + 1} of {asked['rounds']}: {name}")
            seconds, sent = _turn(taking[name], taking[name].steps, group)
            taking[name].seconds.append(seconds)
            taking[name].sent.append(sent)
    return {name: {"payload": of.payload, "seconds": of.seconds, "sent": of.sent} for name, of in taking.items()}


def _say(group: Group, text: str) -> None:
    if group.rank == 0:
        print(text, flush=True)


def main() -> None:
    asked, output = json.loads(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    keep_freed_memory()  # for all contenders alike
    group, speeds = Group.from_environment(), []
    _say(group, "codecs on one core")
    if group.rank == 0:
        speeds = measure_codecs(asked["codecs"], asked["codec_values"], asked["rounds"])
    group.barrier()
    steps = _measure(asked, group)
    if group.rank == 0:
        shapes = [list(parameter.shape) for parameter in build_model(asked["model"], 0).parameters()]
        found = {"speeds": [asdict(speed) for speed in speeds], "steps": steps, "shapes": shapes}
        output.write_text(json.dumps(found))
    group.barrier()


if __name__ == "__main__":
    main()

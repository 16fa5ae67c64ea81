"""One of two processes of `bench split --predict`: MODEL BATCH ROUNDS STEPS MEETING RANK.

Both profile the model at the same time, since they share memory's bandwidth in training too. Then each layout is run
in turn, round after round. Rank 0 prints what was predicted and measured as JSON.
"""

import json
import os
import sys
from dataclasses import asdict, replace
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional

import gradtide
from gradtide.bench.peers.training import LR, random_batch
from gradtide.bench.split.forecast import layouts_of, predicted, probe, step_seconds
from gradtide.collective import Group
from gradtide.errors import GradtideError
from gradtide.events import Event, TaskDone
from gradtide.parallel.split.profile import profile
from gradtide.parallel.split.trace import trace
from gradtide.processes.malloc import keep_freed_memory
from gradtide.schedule.step.choice.wording import layout_text
from gradtide.schedule.step.files.layout_json import layout_from_json, layout_to_json
from gradtide.schedule.step.layout import Layout
from gradtide.schedule.step.planned import plan_split
from gradtide.sync import Job
from gradtide.train.models import build_model, transformer

WORDS, LENGTH = 200, 32
TAKEN = "what the planner takes"


def model_of(name: str) -> nn.Module:
    if name != "transformer":
        return build_model(name, 0)
    torch.manual_seed(0)
    return transformer(vocabulary=WORDS, length=LENGTH, width=128, heads=4, layers=4, dropout=0.1)


def batch_of(name: str, size: int) -> tuple[Tensor, Tensor]:
    if name != "transformer":
        return random_batch(size)
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(0, WORDS, (2, size, LENGTH), generator=generator)
    return words[0], words[1]


class Stepping:
    """A model that is split as a layout says; its tasks' seconds by kind, of the last steps."""

    def __init__(self, model: nn.Module, layout: Layout, batch: tuple[Tensor, Tensor], group: Group) -> None:
        rule = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
        self._split = gradtide.ModelParallel(model, rule, layout, job=Job.of(group), emit=self._see)
        self._batch = batch
        self._steps: list[dict[str, float]] = []

    def __call__(self) -> None:
        self._steps.append({})
        self._split.step(*self._batch, functional.cross_entropy)

    def _see(self, event: Event) -> None:
        if isinstance(event, TaskDone):
            seconds = event.end_s - event.begin_s - event.waited_s
            self._steps[-1][event.kind] = self._steps[-1].get(event.kind, 0.0) + seconds

    def by_kind(self) -> dict[str, float]:
        """The lower quartile of the steps after the first."""
        seen = self._steps[1:] or self._steps
        return {kind: sorted(one.get(kind, 0.0) for one in seen)[len(seen) // 4] for kind in seen[0]}


def main() -> None:
    name, batch_size, rounds, steps, meeting, rank = sys.argv[1:]
    torch.set_num_threads(1)
    keep_freed_memory()
    batch = batch_of(name, int(batch_size))
    with Group.join(meeting, int(rank), 2) as group:
        wire, own = probe(group)
        model = model_of(name)
        chain = trace(model, batch[0][:4])
        group.barrier()
        costs = profile(chain, batch[0], samples=int(batch_size), threads=1, optimizer="momentum")
        costs = replace(costs, overheads=own)
        layouts = layouts_of(chain, costs) | {TAKEN: plan_split(costs, 2, wire).layout}
        layouts = layouts_of_first(group, layouts)
        said = {key: predicted(one, costs, wire) for key, one in layouts.items()}
        seen, spent, skipped = measured(name, layouts, batch, group, int(rounds), int(steps))
        if rank == "0":
            rows = [
                {
                    "layout": key,
                    "predicted_s": said[key][0],
                    "measured_s": seen[key],
                    "text": layout_text(layouts[key]),
                    "predicted_tasks_s": said[key][1],
                    "measured_tasks_s": spent[key],
                }
                for key in seen
            ]
            link = wire.links[0]
            known = {"overheads": asdict(own), "bytes_per_s": link.bytes_per_s, "latency_s": link.latency_s}
            print(json.dumps({"rows": rows, "skipped": skipped, "known": known}), flush=True)
        group.barrier()
    sys.stdout.flush()
    os._exit(0)  # the models' groups go with the process


def layouts_of_first(group: Group, layouts: dict[str, Layout]) -> dict[str, Layout]:
    """Rank 0's: the two have timed the model each for itself, and may have found different ones."""
    text = json.dumps({key: layout_to_json(one) for key, one in layouts.items()}).encode()
    size = group.broadcast(torch.tensor([len(text)]))
    raw = torch.zeros(int(size), dtype=torch.uint8)
    if group.rank == 0:
        raw.copy_(torch.tensor(list(text), dtype=torch.uint8))
    told: dict[str, str] = json.loads(bytes(group.broadcast(raw).tolist()))
    return {key: layout_from_json(one) for key, one in told.items()}


def measured(
    name: str, layouts: dict[str, Layout], batch: tuple[Tensor, Tensor], group: Group, rounds: int, steps: int
) -> tuple[dict[str, float], dict[str, dict[str, float]], dict[str, str]]:
    """Medians over rounds in which every layout has its turn; seconds of this device's tasks; why some had no turn."""
    running: dict[str, Stepping] = {}
    skipped: dict[str, str] = {}
    for key, layout in layouts.items():
        step = Stepping(model_of(name), layout, batch, group)
        try:
            step()
        except GradtideError as error:  # told on both before anything was sent
            skipped[key] = str(error).splitlines()[0]
            continue
        running[key] = step
    seconds: dict[str, list[float]] = {key: [] for key in running}
    for _ in range(rounds):
        for key, step in running.items():
            seconds[key].append(step_seconds(step, group, steps))
    spent = {key: step.by_kind() for key, step in running.items()}
    return {key: median(taken) for key, taken in seconds.items()}, spent, skipped


if __name__ == "__main__":
    main()

"""One worker of one contender of `bench overlap`: KIND MODEL BATCH PREDICTION; its rank is in the environment."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional

import gradtide
from gradtide.bench.contender import repeating, serve
from gradtide.bench.peers.training import LR, Batch, Step, plain_step, random_batch, wrapped_step
from gradtide.collective import Group
from gradtide.processes.malloc import keep_freed_memory
from gradtide.registration import register
from gradtide.schedule.predict.exchange_model import ExchangeModel
from gradtide.sync import Job
from gradtide.sync.buckets import cut_into_buckets
from gradtide.train.models import build_model

__all__ = ["main", "predict_step", "timeline"]


def independent(model: nn.Module, batch: Batch, prediction: Path) -> tuple[Step, Step]:
    return plain_step(model, batch), lambda: None


def ddp(model: nn.Module, batch: Batch, prediction: Path, backend: str) -> tuple[Step, Step]:
    import torch.distributed as dist

    register()
    dist.init_process_group(backend)
    return plain_step(nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True), batch), dist.barrier


def with_gradtide(model: nn.Module, batch: Batch, prediction: Path, overlap: bool) -> tuple[Step, Step]:
    group, optimizer = Group.from_environment(), torch.optim.SGD(model.parameters(), lr=LR)
    keep_freed_memory()  # as it will be later
    group.barrier()
    group.explain(probe=True)  # for the prediction
    times = [timeline(model, optimizer, batch) for _ in range(7)][2:]
    wrapped = gradtide.DataParallel(model, optimizer, overlap=overlap, job=Job.of(group))
    if group.rank == 0:
        assert group.exchange_model is not None
        step_s = predict_step(times, list(model.parameters()), group.exchange_model, overlap)
        prediction.write_text(json.dumps({"step_s": step_s}))
    return wrapped_step(wrapped, batch), group.barrier


def timeline(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> tuple[list[float], float]:
    """When each parameter's gradient is whole, and when a step ends that is not synchronised, in seconds."""
    ready: list[float] = [0.0] * len(list(model.parameters()))

    def watch(index: int) -> Callable[[Tensor], None]:
        def note(parameter: Tensor) -> None:
            ready[index] = time.perf_counter() - begin

        return note

    hooks = [p.register_post_accumulate_grad_hook(watch(index)) for index, p in enumerate(model.parameters())]
    begin = time.perf_counter()
    functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
    optimizer.zero_grad()
    end = time.perf_counter() - begin
    for hook in hooks:
        hook.remove()
    return ready, end


def predict_step(
    times: list[tuple[list[float], float]], parameters: list[nn.Parameter], model: ExchangeModel, overlap: bool
) -> float:
    """One bucket after the other takes what its links did when measured, from when it is ready, or from the end of
    backward on."""
    ready = [median(of_step[index] for of_step, _ in times) for index in range(len(parameters))]
    backward_s, whole_s = max(ready), median(end for _, end in times)
    free = 0.0
    for bucket in cut_into_buckets(parameters):
        size = sum(parameters[index].nbytes for index in bucket)
        begin = max(ready[index] for index in bucket) if overlap else backward_s
        free = max(free, begin) + model.seconds("all_reduce", size)
    return free + whole_s - backward_s


KINDS: dict[str, Callable[[nn.Module, Batch, Path], tuple[Step, Step]]] = {
    "independent": independent,
    "ddp": lambda model, batch, path: ddp(model, batch, path, "gloo"),
    "ddp-gradtide": lambda model, batch, path: ddp(model, batch, path, "gradtide"),
    "apart": lambda model, batch, path: with_gradtide(model, batch, path, overlap=False),
    "overlap": lambda model, batch, path: with_gradtide(model, batch, path, overlap=True),
}


def main() -> None:
    kind, name, batch_size, prediction = sys.argv[1:]
    torch.set_num_threads(1)
    step, barrier = KINDS[kind](build_model(name, 0), random_batch(int(batch_size)), Path(prediction))
    serve(repeating(step), barrier)


if __name__ == "__main__":
    main()

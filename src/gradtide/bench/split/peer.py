"""One process of a contender of `bench split`: KIND MODEL BATCH MICRO_BATCHES MEETING RANK."""

import sys
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from gradtide.bench.contender import repeating, serve
from gradtide.bench.peers.training import LR
from gradtide.bench.split.by_hand import with_gradtide, with_torch
from gradtide.bench.split.cases import find_case
from gradtide.collective import Group
from gradtide.processes.malloc import keep_freed_memory
from gradtide.registration import register
from gradtide.schedule.step.by_hand import parse_layout
from gradtide.sync import Job


def main() -> None:
    kind, name, batch_size, micro_batches, meeting, rank = sys.argv[1:]
    torch.set_num_threads(1)
    case = find_case(name)
    batch, model = case.batch(int(batch_size)), case.model()
    if kind == "split":
        group = Group.join(meeting, int(rank), 2)
        units = [str(number) for number in range(len(model))]
        layout = parse_layout(f"0..{case.cut - 1} | {case.cut}..", units, int(micro_batches))
        step = with_gradtide(model, layout, Job.of(group), LR)
        together: Callable[[], object] = group.barrier
    else:
        register()
        keep_freed_memory()  # as gradtide does: else torch's contender pays for memory at every step
        dist.init_process_group(kind, f"file://{meeting}", rank=int(rank), world_size=2)
        step, together = with_torch(model, case.cut, int(micro_batches), LR), dist.barrier
    serve(repeating(partial(step, *batch)), together)


if __name__ == "__main__":
    main()

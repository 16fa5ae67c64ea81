"""One worker of one contender of `bench reading`: KIND SAMPLES SAMPLE_MS BATCH PROCESSES MEETING WORKERS RANK."""

import sys
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import gradtide
from gradtide.bench.contender import repeating, serve
from gradtide.collective import Group
from gradtide.errors import DataError
from gradtide.sync import Job


class Slow(Dataset[int]):
    """Every sample takes its time, as one that is decoded would."""

    def __init__(self, samples: int, sample_s: float) -> None:
        self._samples, self._sample_s = samples, sample_s

    def __getitem__(self, index: int) -> int:
        time.sleep(self._sample_s)
        return index

    def __len__(self) -> int:
        return self._samples


def make(kind: str, data: Slow, batch_size: int, processes: int, group: Group | None) -> Iterable[Any]:
    options: dict[str, Any] = {"num_workers": processes, "persistent_workers": processes > 0}
    if kind == "sampler":
        assert group is not None
        sampler: DistributedSampler[int] = DistributedSampler(data, group.size, group.rank)
        return DataLoader(data, batch_size // group.size, sampler=sampler, **options)
    loader = DataLoader(data, batch_size, shuffle=True, **options)
    if group is None:
        return loader
    return gradtide.shard(loader, read="whole" if kind == "whole" else None, job=Job.of(group))


def main() -> None:
    kind, samples, sample_ms, batch_size, processes, meeting, workers, rank = sys.argv[1:]
    torch.set_num_threads(1)
    group = Group.join(meeting, int(rank), int(workers)) if int(workers) > 1 else None
    data = Slow(int(samples), float(sample_ms) / 1e3)
    batches = make(kind, data, int(batch_size), int(processes), group)

    def epoch() -> None:
        seen = torch.cat(list(batches)).bincount(minlength=int(samples))
        seen = seen if group is None else group.all_reduce(seen)
        if not bool((seen == 1).all()):
            raise DataError(f"{kind}: {int((seen != 1).sum())} samples were not given once")

    serve(repeating(epoch), (lambda: None) if group is None else group.barrier)


if __name__ == "__main__":
    main()

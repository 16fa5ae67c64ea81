"""One worker of one contender of `bench train --trainer lightning`: KIND MODEL BATCH WORKERS PORT RANK.

The Trainer is the program here: the batches that it is given come when the benchmark asks for them, and the time of a
turn ends where the Trainer asks for the batch after it.
"""

import logging
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.nn import functional

from gradtide.bench.peers.training import LR, Batch, random_batch
from gradtide.environment import extend_environment
from gradtide.lightning import GradtideStrategy
from gradtide.train.models import build_model


class BatchTurns:
    """The batches of a training: the same one, as often as the benchmark asks for it."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def __len__(self) -> int:
        """More than any benchmark asks for. Of a loader with a length Lightning fetches no batch ahead."""
        return 1 << 40

    def __iter__(self) -> Iterator[Batch]:
        print("ready", flush=True)
        for line in sys.stdin:
            repetitions = int(line.split()[1])
            dist.barrier()
            started = time.perf_counter()
            for _ in range(repetitions):
                yield self._batch
            print(time.perf_counter() - started, flush=True)


class Classifier(pl.LightningModule):
    """One of gradtide's models, as a user of Lightning would have it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.net = build_model(name, 0)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        inputs, targets = batch
        return functional.cross_entropy(self.net(inputs), targets)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=LR)


def strategy_of(kind: str) -> Any:
    if kind == "gradtide":
        return GradtideStrategy()
    return DDPStrategy(process_group_backend={"gloo": "gloo", "ddp-gradtide": "gradtide"}[kind])


def main() -> None:
    kind, name, batch_size, workers, port, rank = sys.argv[1:]
    warnings.filterwarnings("ignore")
    for chatty in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": workers, "LOCAL_WORLD_SIZE": workers, "GROUP_RANK": "0"}
    extend_environment(own | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "bench"})
    torch.set_num_threads(1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(workers),
        strategy=strategy_of(kind),
        max_epochs=1,
        enable_checkpointing=False,
        use_distributed_sampler=False,
        **quiet,
    )
    trainer.fit(Classifier(name), BatchTurns(random_batch(int(batch_size), int(rank))))


if __name__ == "__main__":
    main()

"""A small GPT that reads Python: tied weights, gradient accumulation, clipping, AdamW in two groups, a cosine.

    python examples/nano_gpt.py                             # one process
    gradtide run --workers 2 examples/nano_gpt.py           # two workers, each with half of every batch
    torchrun --nproc-per-node 2 examples/nano_gpt.py        # the same

Lines that end in "# gradtide" make the difference. Without them this is the program for one process, and with them two
workers end with the parameters that one process would have (`--exact` computes in float64, where one can see that).
"""

import argparse
import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import gradtide  # gradtide

LAYERS, HEADS, WIDTH, BLOCK = 2, 2, 32, 32
BATCH, ACCUMULATE = 8, 3  # sequences in a micro-batch, of all workers together; micro-batches in a step
PEAK, LOWEST, WARM_UP, DECAY = 3e-3, 3e-4, 5, 0.1
IS_FIRST = os.environ.get("RANK", "0") == "0"  # gradtide run and torchrun number their processes; one of them prints


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        samples, length, _ = x.shape
        heads = self.qkv(self.before_attention(x)).view(samples, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(samples, length, WIDTH))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters, bias=False)
        self.apply(self._begin)
        self.head.weight = self.letter.weight  # tied: one parameter, used twice

    @staticmethod
    def _begin(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean loss of a letter."""
        hidden = self.letter(x) + self.place(torch.arange(x.shape[1]))
        logits = self.head(self.norm(self.blocks(hidden)))
        return functional.cross_entropy(logits.flatten(0, 1), y.flatten())


def batches(text: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Whole batches, drawn from a seed: the same on all workers. (`shard` compares the first, and refuses others.)"""
    draw = torch.Generator().manual_seed(1)
    for _ in range(count):
        begins = torch.randint(len(text) - BLOCK, (BATCH,), generator=draw)
        pieces = torch.stack([text[begin : begin + BLOCK + 1] for begin in begins])
        yield pieces[:, :-1], pieces[:, 1:]


def rate(step: int, steps: int) -> float:
    """Of the peak: a straight line up, then half a cosine down."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    done = (step - WARM_UP) / max(1, steps - WARM_UP)
    return (LOWEST + (PEAK - LOWEST) * (1 + math.cos(math.pi * done)) / 2) / PEAK


def main() -> nn.Module:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=30)
    options.add_argument("--exact", action="store_true", help="compute in float64")
    chosen = options.parse_args()
    if chosen.exact:
        torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)

    written = Path(argparse.__file__).read_text()  # a hundred thousand letters of Python that every Python has
    letters = {letter: number for number, letter in enumerate(sorted(set(written)))}
    text = torch.tensor([letters[letter] for letter in written])

    model = GPT(len(letters))
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, chosen.steps))
    data = batches(text, chosen.steps * ACCUMULATE)
    no_sync = contextlib.nullcontext

    model = gradtide.DataParallel(model, optimizer)  # gradtide
    data = gradtide.shard(data)  # gradtide
    no_sync = model.no_sync  # gradtide

    for number, (x, y) in enumerate(data):
        is_last = number % ACCUMULATE == ACCUMULATE - 1
        # As under DDP: workers need not tell each other of gradients to which more will be added.
        with contextlib.nullcontext() if is_last else no_sync():
            loss = model(x, y) / ACCUMULATE
            loss.backward()
        if is_last:
            # Here .grad is the gradient of all workers, so its norm is the norm of one process.
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if IS_FIRST and is_last and (number // ACCUMULATE) % 5 == 4:
            # With several workers this is the loss of the first one's part, as under DDP.
            print(f"step {number // ACCUMULATE + 1}: loss {loss.item() * ACCUMULATE:.3f}")
    return model


if __name__ == "__main__":
    main()

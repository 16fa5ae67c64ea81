"""A language model on words of different lengths: targets are padded, and the loss is a mean over real letters only.

    python examples/padded_words.py                             # one process
    gradtide run --workers 2 examples/padded_words.py           # two workers, each with half of every batch
    torchrun --nproc-per-node 2 examples/padded_words.py        # the same

Lines that end in "# gradtide" make the difference. Without them this is the program for one process, and with them two
workers end with the parameters that one process would have (`--exact` computes in float64, where one can see that).
"""

import argparse
import keyword
import os
import pydoc_data.topics
import re

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import gradtide  # gradtide

IGNORED, WIDTH, BATCH = -100, 32, 31  # the batch of all workers together
IS_FIRST = os.environ.get("RANK", "0") == "0"  # gradtide run and torchrun number their processes; one of them prints


class Speller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letter = nn.Embedding(27, WIDTH)
        self.memory = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, 27)

    def forward(self, letters: Tensor) -> Tensor:
        return self.head(self.memory(self.letter(letters))[0])


def words() -> list[Tensor]:
    """Words of Python's own manual, as numbers of letters: 0 begins and ends each."""
    found = {word for text in pydoc_data.topics.topics.values() for word in re.findall(r"[a-z]{2,14}", text)}
    chosen = sorted(found | {word for word in keyword.kwlist if word.islower()})[::8]
    return [torch.tensor([0, *(ord(letter) - 96 for letter in word), 0]) for word in chosen]


def pad(several: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Inputs and the letters that follow them. Where a word has ended, nothing is to be learnt."""
    inputs = pad_sequence([word[:-1] for word in several], batch_first=True)
    targets = pad_sequence([word[1:] for word in several], batch_first=True, padding_value=IGNORED)
    return inputs, targets


def main() -> nn.Module:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--exact", action="store_true", help="compute in float64")
    chosen = options.parse_args()
    if chosen.exact:
        torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)

    loader = DataLoader(words(), batch_size=BATCH, shuffle=True, collate_fn=pad)
    model = Speller()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    model = gradtide.DataParallel(model, optimizer)  # gradtide
    loader = gradtide.shard(loader)  # gradtide

    for epoch in range(chosen.epochs):
        losses, letters = 0.0, 0
        for inputs, targets in loader:
            terms = int((targets != IGNORED).sum())
            # Workers have as many words, but not as many letters: one with more of them counts more. Without this line
            # each worker's mean would count the same, as it does under DDP, and long words would be learnt less.
            model.weigh(terms)  # gradtide
            loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses, letters = losses + loss.item() * terms, letters + terms
        if IS_FIRST:  # with several workers this is the loss of the first one's parts, as under DDP
            print(f"epoch {epoch + 1}: loss {losses / letters:.3f} a letter")
    return model


if __name__ == "__main__":
    main()

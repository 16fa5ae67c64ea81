"""Local steps in one process, which plays all workers in the order of their ranks: what a job must give, bit for bit.

Each player has a copy of the model and an optimizer of its own, and trains on its part of every batch. Where they meet,
what each has changed is added up in rank order, weighted by the samples it has seen, and the outer optimizer steps the
base with the mean. Buffers are not looked at.
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradtide.even_share import even_share
from gradtide.store.rules.updates import make_optimizer
from gradtide.store.wire.messages import UpdateRule

__all__ = ["play_local"]


@dataclass(slots=True)
class _Player:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    samples: float = 0.0

    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())


def play_local(
    model: nn.Module,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    loss: Callable[[Tensor, Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    workers: int,
    every: int,
    outer: UpdateRule,
    after: int = 0,
) -> nn.Module:
    """The model that all have after the last batch, when they meet; who has no sample of a batch takes no step."""
    copies = [copy.deepcopy(model) for _ in range(workers)]
    players = [_Player(one, optimizer(one.parameters())) for one in copies]
    base = [nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()]
    rule = make_optimizer(outer, base)
    apart = 0
    for steps, (x, y) in enumerate(batches, 1):
        parts = [even_share(len(x), rank, workers) for rank in range(workers)]
        for player, (begin, end) in zip(players, parts, strict=True):
            player.optimizer.zero_grad()
            if end > begin:
                loss(player.model(x[begin:end]), y[begin:end]).backward()
        if steps <= after:
            _add_up(players, [(end - begin) / len(x) for begin, end in parts])
        else:
            apart += 1
            for player, (begin, end) in zip(players, parts, strict=True):
                player.samples += end - begin
        for player in players:
            player.optimizer.step()
        if steps == after:
            _take(base, players[0])
        if apart == every:
            _meet(players, base, rule)
            apart = 0
    if apart:
        _meet(players, base, rule)
    return players[0].model


def _add_up(players: list[_Player], weights: list[float]) -> None:
    """The gradient of all, in rank order, becomes everybody's."""
    for same in zip(*(player.parameters() for player in players), strict=True):
        terms = [torch.zeros_like(p) if p.grad is None else p.grad * w for p, w in zip(same, weights, strict=True)]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        for parameter in same:
            parameter.grad = total.clone()


@torch.no_grad()
def _take(base: list[nn.Parameter], player: _Player) -> None:
    for kept, own in zip(base, player.parameters(), strict=True):
        kept.copy_(own)


@torch.no_grad()
def _meet(players: list[_Player], base: list[nn.Parameter], rule: torch.optim.Optimizer) -> None:
    total = sum(player.samples for player in players)
    for number, kept in enumerate(base):
        changes = [(kept - player.parameters()[number]) * player.samples for player in players]
        mean = changes[0]
        for change in changes[1:]:
            mean = mean + change
        kept.grad = mean / total if len(players) > 1 else kept - players[0].parameters()[number]
    rule.step()
    for player in players:
        player.samples = 0.0
        for kept, own in zip(base, player.parameters(), strict=True):
            own.copy_(kept)

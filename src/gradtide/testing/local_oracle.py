"""Local steps in one process, which plays all workers in the order of their ranks: what a job must give, bit for bit.

Each player has a copy of the model and an optimizer of its own, and trains on its part of every batch. Where they meet,
what each has changed is added up in rank order, weighted by the samples it has seen, and the outer optimizer steps the
base with the mean. Buffers are not looked at.

A player that dies is missing from the next meeting: its part of every batch until then is lost. One that goes gives
what it has first. One that comes begins after a meeting, from the base and with the first player's optimizer state.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor, nn

from gradtide.even_share import even_share
from gradtide.store.rules.reductions import weighted_mean
from gradtide.store.rules.updates import make_optimizer
from gradtide.store.wire.messages import UpdateRule
from gradtide.store.wire.placement import block_count, block_span

__all__ = ["LocalPlan", "MemberChange", "play_local", "play_rounds", "served_outer"]


@dataclass(frozen=True, slots=True)
class MemberChange:
    """At the meeting after some batch."""

    dies: tuple[int, ...] = ()  # by their ranks
    goes: tuple[int, ...] = ()
    comes: int = 0  # so many of them


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """How often all meet, and what becomes of what they have changed."""

    every: int
    outer: UpdateRule
    after: int = 0
    changes: Mapping[int, MemberChange] = field(default_factory=dict)  # by the number of batches done
    hosts: tuple[int, ...] = ()  # so many players on each, who take every step together
    over_servers: bool = False  # which round the weighted mean in their own way, and step each block by itself
    read_apart: bool = False  # each part in memory of its own: at another place kernels may round otherwise


@dataclass(slots=True)
class _Player:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    samples: float = 0.0

    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())


Weighted = Sequence[tuple[float | None, Tensor]]
Step = Callable[[Sequence[Weighted]], None]  # with the changes of each parameter, by worker


def _outer(rule: UpdateRule, base: list[nn.Parameter]) -> Step:
    """As collectives do it."""
    optimizer = make_optimizer(rule, base)

    def step(changes: Sequence[Weighted]) -> None:
        for kept, weighted in zip(base, changes, strict=True):
            kept.grad = _mean_in_rank_order(weighted)
        optimizer.step()

    return step


def served_outer(rule: UpdateRule, base: Sequence[Tensor]) -> Step:
    """As servers do it, block by block."""
    blocks = [[nn.Parameter(part) for part in _split(kept.detach())] for kept in base]
    optimizers = [[make_optimizer(rule, [part]) for part in parts] for parts in blocks]

    def step(changes: Sequence[Weighted]) -> None:
        for parts, rules, weighted in zip(blocks, optimizers, changes, strict=True):
            for number, (part, optimizer) in enumerate(zip(parts, rules, strict=True)):
                part.grad = weighted_mean([(weight, _split(change)[number]) for weight, change in weighted])
                optimizer.step()

    return step


def _split(tensor: Tensor) -> list[Tensor]:
    flat = tensor.reshape(-1)
    count = block_count(flat.numel(), flat.element_size())
    return [flat[slice(*block_span(block, flat.numel(), flat.element_size()))] for block in range(count)]


def _mean_in_rank_order(weighted: Weighted) -> Tensor:
    """Each product is rounded, then each sum."""
    if len(weighted) == 1:
        return weighted[0][1]
    weights = [1.0 if weight is None else weight for weight, _ in weighted]
    total = weighted[0][1] * weights[0]
    for weight, (_, change) in zip(weights[1:], weighted[1:], strict=True):
        total = total + change * weight
    return total / sum(weights)


def play_local(
    model: nn.Module,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    loss: Callable[[Tensor, Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    workers: int,
    plan: LocalPlan,
) -> nn.Module:
    """The model that all have after the last batch, when they meet; who has no sample of a batch takes no step."""
    copies = [copy.deepcopy(model) for _ in range(workers)]
    players = [_Player(one, optimizer(one.parameters())) for one in copies]
    base = [nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()]
    step = served_outer(plan.outer, base) if plan.over_servers else _outer(plan.outer, base)
    apart = 0
    for steps, (x, y) in enumerate(batches, 1):
        parts = [even_share(len(x), rank, len(players)) for rank in range(len(players))]
        for player, (begin, end) in zip(players, parts, strict=True):
            player.optimizer.zero_grad()
            if end > begin:
                mine = (x[begin:end].clone(), y[begin:end].clone()) if plan.read_apart else (x[begin:end], y[begin:end])
                loss(player.model(mine[0]), mine[1]).backward()
        if steps <= plan.after:
            _add_up(players, [(end - begin) / len(x) for begin, end in parts])
        else:
            apart += 1
            for player, (begin, end) in zip(players, parts, strict=True):
                player.samples += end - begin
            _add_up_inside(players, [end - begin for begin, end in parts], plan.hosts)
        for player in players:
            player.optimizer.step()
        if steps == plan.after:
            _take(base, players[0])
        if apart == plan.every:
            _lead(players, plan.hosts)
            _change(players, base, step, plan.changes.get(steps, MemberChange()), optimizer)
            apart = 0
    if apart:
        _lead(players, plan.hosts)
        _meet(players, base, step)
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


def _add_up_inside(players: list[_Player], samples: list[int], hosts: tuple[int, ...]) -> None:
    """The same inside of each host. One that has no sample takes no step."""
    for first, last in _places(hosts):
        total = sum(samples[first:last])
        if total:
            _add_up(players[first:last], [count / total for count in samples[first:last]])


def _lead(players: list[_Player], hosts: tuple[int, ...]) -> None:
    """A host's first player gives what all of them have seen."""
    for first, last in _places(hosts):
        players[first].samples = sum(player.samples for player in players[first:last])
        for player in players[first + 1 : last]:
            player.samples = 0.0


def _places(hosts: tuple[int, ...]) -> list[tuple[int, int]]:
    ends = list(accumulate(hosts))
    return list(zip([0, *ends], ends, strict=False))


@torch.no_grad()
def _take(base: list[nn.Parameter], player: _Player) -> None:
    for kept, own in zip(base, player.parameters(), strict=True):
        kept.copy_(own)


def _change(
    players: list[_Player],
    base: list[nn.Parameter],
    step: Step,
    change: MemberChange,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
) -> None:
    """A meeting, before and after which some may be missing."""
    players[:] = [player for rank, player in enumerate(players) if rank not in change.dies]
    _meet(players, base, step)
    players[:] = [player for rank, player in enumerate(players) if rank not in change.goes]
    for _ in range(change.comes):
        model = copy.deepcopy(players[0].model)
        newcomer = _Player(model, optimizer(model.parameters()))
        newcomer.optimizer.load_state_dict(copy.deepcopy(players[0].optimizer.state_dict()))
        players.append(newcomer)


@torch.no_grad()
def _meet(players: list[_Player], base: Sequence[nn.Parameter], step: Step) -> None:
    step(
        [
            [(player.samples, kept - player.parameters()[number]) for player in players]
            for number, kept in enumerate(base)
        ]
    )
    for player in players:
        player.samples = 0.0
        for kept, own in zip(base, player.parameters(), strict=True):
            own.copy_(kept)


def play_rounds(
    model: nn.Module,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    loss: Callable[[Tensor, Tensor], Tensor],
    rounds: Iterable[Mapping[int, Sequence[tuple[Tensor, Tensor]]]],
    outer: UpdateRule,
) -> nn.Module:
    """Over servers, with workers that come, go and die: each round has the batches of those who were in it, by worker.
    One that was not in a round before begins with a new optimizer. Returns the base after the last."""
    served = copy.deepcopy(model)
    base, players = list(served.parameters()), dict[int, _Player]()
    step = served_outer(outer, base)
    for of_round in rounds:
        present = []
        for worker, batches in sorted(of_round.items()):
            if worker not in players:
                own = copy.deepcopy(model)
                players[worker] = _Player(own, optimizer(own.parameters()))
            present.append(players[worker])
            _give(base, players[worker])
            for x, y in batches:
                players[worker].optimizer.zero_grad()
                loss(players[worker].model(x), y).backward()
                players[worker].optimizer.step()
                players[worker].samples += len(x)
        _meet(present, base, step)
    return served


@torch.no_grad()
def _give(base: Sequence[nn.Parameter], player: _Player) -> None:
    for kept, own in zip(base, player.parameters(), strict=True):
        own.copy_(kept)

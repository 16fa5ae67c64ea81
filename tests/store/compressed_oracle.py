"""Rounds with compression both ways in one process, and the same on servers."""

import threading
from dataclasses import dataclass, field

import torch

import gradtide
from gradtide.store.rules.codecs import answers_whole, block_codec, draw_of, tag_of
from gradtide.store.rules.updates import make_optimizer
from gradtide.store.wire.messages import KeySpec
from gradtide.store.wire.placement import block_elements

__all__ = ["Case", "expected", "on_servers"]


@dataclass
class Case:
    """What is trained. `weights`: what each worker counts."""

    rule: object
    compress: str
    count: int = 3000
    dtype: torch.dtype = torch.float32
    delay: int = 0
    steps: int = 8
    weights: tuple = (1.0, 2.0)
    key: str = "w"
    seen: list = field(default_factory=list)

    @property
    def spec(self):
        name = str(self.dtype).removeprefix("torch.")
        return KeySpec(self.key, (self.count,), name, self.rule, self.delay, compress=tag_of(self.compress))

    def start(self):
        return torch.linspace(-1, 1, self.count, dtype=self.dtype)

    def gradient(self, worker, step, values):
        """It depends on what was pulled: a wrong pull shows."""
        generator = torch.Generator().manual_seed(1000 * step + worker)
        return torch.randn(self.count, generator=generator, dtype=self.dtype) + 0.25 * values


def _spans(case):
    per_block = block_elements(case.dtype.itemsize)
    return [(b, b * per_block, min(case.count, (b + 1) * per_block)) for b in range(-(-case.count // per_block))]


class _Pushed:
    """One worker's way there."""

    def __init__(self, case, worker):
        self.case, self.worker, self.residual = case, worker, torch.zeros(case.count, dtype=case.dtype)

    def arrives(self, gradient, round_):
        case, weight, out = self.case, self.case.weights[self.worker], torch.empty_like(gradient)
        for block, start, stop in _spans(case):
            codec = block_codec(case.spec, stop - start)
            values = torch.add(gradient[start:stop], self.residual[start:stop], alpha=1 / weight)
            given = values.clone()
            body = codec.encode(values, draw_of(case.key, block, round_, self.worker))
            codec.decode(body, out[start:stop], add=False)
            if codec.feedback:
                self.residual[start:stop] = (given - out[start:stop]) * weight
        return out


def expected(case, first=1):
    """What every worker pulls, step by step, in one process; round numbers begin at `first`."""
    value = torch.nn.Parameter(case.start())
    optimizer = None if case.rule.name in ("mean", "add") else make_optimizer(case.rule, [value])
    workers = [_Pushed(case, w) for w in range(len(case.weights))]
    published, left = [case.start()], torch.zeros(case.count, dtype=case.dtype)
    pulls = []
    for t in range(case.steps + 1):
        pulls.append(published[max(0, t - case.delay)].clone())
        grads = [w.arrives(case.gradient(w.worker, t, pulls[-1]), first + t) for w in workers]
        total = sum(weight * grad for weight, grad in zip(case.weights, grads, strict=True))
        with torch.no_grad():
            if case.rule.name == "add":
                value += total
            elif case.rule.name == "mean":
                value.copy_(total / sum(case.weights))
        if optimizer is not None:
            value.grad = total / sum(case.weights)
            optimizer.step()
        published.append(_back(case, value.detach(), published[-1], left, first + t))
    return pulls


def _back(case, value, before, left, round_):
    out = before.clone()
    for _, start, stop in _spans(case):
        codec = block_codec(case.spec, stop - start)
        whole = answers_whole(case.spec)
        given = value[start:stop] + left[start:stop] if whole else value[start:stop] - before[start:stop]
        values = given.clone()
        body = codec.encode(values, draw_of(case.key, round_))
        codec.decode(body, out[start:stop], add=not whole)
        if whole and codec.feedback:
            left[start:stop] = given - out[start:stop]
    return out


def on_servers(address, case, at=lambda store, step: None):
    """What each worker pulls, step by step; and the first round. `at` is called by worker 0 before each step."""
    count = len(case.weights)
    pulls, failed, first = [[] for _ in range(count)], [], [0] * count
    consistency = f"bounded:{case.delay}" if case.delay else "bsp"

    def work(worker):
        try:
            with gradtide.connect(address, worker=worker, workers=count, consistency=consistency) as store:
                store.wait_for_members(count, 30)
                first[worker] = max(store.first_rounds.values())
                store.begin_at(first[worker])
                store.init(case.key, case.start(), update=case.rule, compress=case.compress)
                values = torch.empty(case.count, dtype=case.dtype)
                for step in range(case.steps + 1):
                    if worker == 0:
                        at(store, step)
                    store.pull(case.key, out=values)
                    pulls[worker].append(values.clone())
                    values.mul_(1.0)
                    if step < case.steps:
                        gradient = case.gradient(worker, step, values)
                        values.fill_(float("nan"))  # the user's own: nothing may depend on it
                        store.push(case.key, gradient, weight=case.weights[worker])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    assert len(set(first)) == 1
    return pulls, first[0]

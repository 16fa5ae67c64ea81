"""Local steps in a few plain lines, to compare with: each worker's own copy trains on its part, what all have changed
is gathered and averaged by the samples behind it, and an outer optimizer of each parameter steps the base with it.

Nothing of gradtide is used but the gathering. A program gets an `Around`, as those of `programs` do.
"""

import contextlib
import warnings

import torch
from torch import nn

import gradtide
from gradtide.collective import Group
from gradtide.errors import GradtideError
from gradtide.even_share import even_share
from gradtide.sync import Job


class Played(nn.Module):
    """What a program takes for the wrapped model."""

    def __init__(self, around, module, optimizer, every, outer=None, after=0, clip_norm=None, broadcast_buffers=True):
        super().__init__()
        self.module, self._around, self._every, self._after = module, around, every, after
        self._outer_rule, self._clip_norm, self._broadcast_buffers = outer, clip_norm, broadcast_buffers
        self._optimizers, self._hooks, self._stepping = [], [], False
        self._steps, self._total, self._moved, self._samples, self._before = 0, 0, False, 0.0, 0.0
        self._terms, self._summed = None, {}
        self._outer = {}  # a parameter's copy, and the optimizer that steps it
        self._know(optimizer if isinstance(optimizer, list) else [optimizer])
        self._begin()

    # --- who steps what ---

    def _know(self, optimizers):
        for hook in self._hooks:
            hook.remove()
        self._optimizers, self._hooks = optimizers, []
        for one in optimizers:
            self._hooks.append(one.register_step_pre_hook(lambda *_: None if self._stepping else self._before_step()))
            self._hooks.append(
                one.register_step_post_hook(lambda o, *_: None if self._stepping else self._stepped([o]))
            )

    def _outline(self):
        parameters = [(name, id(p), p.requires_grad, p.dtype) for name, p in self.module.named_parameters()]
        return parameters, [[id(p) for p in group["params"]] for o in self._optimizers for group in o.param_groups]

    def _begin(self):
        """A window, with what worker 0 has."""
        owned = {id(p) for o in self._optimizers for group in o.param_groups for p in group["params"]}
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            self._around.tell(tensor.data)
        named = self.module.named_parameters()
        self._own = {name: p for name, p in named if p.requires_grad and id(p) in owned}
        self._base = {name: p.detach().clone() for name, p in self._own.items()}
        self._seen = self._outline()

    def _follow(self):
        self.meet()
        known = {name: number for name, number, *_ in self._seen[0]}
        for name, number, *_ in self._outline()[0]:
            if known.get(name) != number:
                self._outer.pop(name, None)
        self._begin()

    @property
    def optimizer(self):
        return self._optimizers[0]

    @optimizer.setter
    def optimizer(self, optimizer):
        self._know([optimizer])
        self._follow()

    # --- a step ---

    def forward(self, *inputs):
        if torch.is_grad_enabled() and self._outline() != self._seen:
            self._follow()
        outputs = self.module(*inputs)
        if outputs.requires_grad:
            ended = []
            queue = torch.autograd.Variable._execution_engine.queue_callback
            outputs.register_hook(lambda gradient: queue(lambda: ended or (ended.append(1), self._saw())) and None)
        return outputs

    def _saw(self):
        terms, self._terms = self._terms, None
        if self._total < self._after:
            self._add_up(terms)
            return
        if terms == 0:
            self._drop()
        self._samples += self._around.samples if terms is None else terms

    def _drop(self):
        for p in self.module.parameters():
            p.grad = None

    @torch.no_grad()
    def _add_up(self, terms):
        """Where steps are taken together: what this backward has added, weighted, on all workers."""
        share = self._around.part if terms is None else terms / sum(map(float, self._around.all(torch.tensor(terms))))
        for p in self.module.parameters():
            known, summed = self._summed.get(p, (None, None))
            before = summed if known is not None and known is p.grad else torch.zeros_like(p)
            own = torch.zeros_like(p) if p.grad is None else p.grad - before
            if any(self._around.all(torch.tensor(p.grad is not None))):
                p.grad = before + sum(self._around.all(own * share))
                self._summed[p] = p.grad, p.grad.clone()

    def _before_step(self):
        self._moved = self._total >= self._after
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self.module.parameters(), self._clip_norm)

    def step(self, optimizer=None):
        optimizers = self._optimizers if optimizer is None else [optimizer]
        if self._around.samples == 0 and self._total >= self._after:
            self._drop()
        self._stepping = True
        self._before_step()
        for one in optimizers:
            one.step()
            one.zero_grad()
        self._stepping = False
        self._stepped(optimizers)

    def _stepped(self, optimizers):
        if not any(one is self._optimizers[-1] for one in optimizers):
            return
        self._total += 1
        if self._total > self._after:
            self._steps += 1
            if self._steps == self._every:
                self.meet()
            return
        if self._broadcast_buffers:
            for buffer in self.module.buffers():
                self._around.tell(buffer)
        if self._total == self._after:
            self._base = {name: p.detach().clone() for name, p in self._own.items()}

    # --- a meeting ---

    @torch.no_grad()
    def meet(self):
        if not self._moved:
            return
        weights = [float(one) for one in self._around.all(torch.tensor(self._samples))]
        weights = weights if sum(weights) else [float(one) for one in self._around.all(torch.tensor(self._before))]
        for name, own in self._own.items():
            changes = self._around.all(self._base[name] - own)
            outer, rule = self._outer_of(name)
            outer.copy_(self._base[name])
            outer.grad = sum(c * w for c, w in zip(changes, weights, strict=True)) / sum(weights)
            rule.step()
            self._base[name] = outer.detach().clone()
            own.copy_(outer)
        for buffer in self.module.buffers() if self._broadcast_buffers else []:
            every = self._around.all(buffer)
            if buffer.is_floating_point():
                every = [sum(b * w for b, w in zip(every, weights, strict=True)) / sum(weights)]
            buffer.copy_(torch.stack(every).amax(0))
        self._before, self._steps, self._samples, self._moved = self._samples, 0, 0.0, False

    def _outer_of(self, name):
        if name not in self._outer:
            copy, rule = nn.Parameter(self._base[name].clone()), self._outer_rule
            make = {None: torch.optim.SGD, "sgd": torch.optim.SGD, "adam": torch.optim.Adam}[rule and rule.name]
            self._outer[name] = copy, make([copy], **(dict(rule.arguments) if rule else {"lr": 1.0}))
        return self._outer[name]

    # --- besides ---

    def no_sync(self):
        return contextlib.nullcontext()

    def weigh(self, terms):
        self._terms = float(terms)

    @contextlib.contextmanager
    def edit(self):
        self.meet()
        yield
        self._begin()

    def state_dict(self):
        return self.module.state_dict()

    def load_state_dict(self, state):
        with self.edit():
            return self.module.load_state_dict(state)

    def close(self):
        self.meet()


class Around:
    """How a program wraps its model and shares its batches: in gradtide, or in what it is compared with."""

    def __init__(self, group, options, played):
        self.rank, self.size = (0, 1) if group is None else (group.rank, group.size)
        self.job = Job() if group is None else Job.of(group, None)
        self.group, self.options, self.played, self._share = group, options, played, None
        self.model = None

    def wrap(self, module, optimizer, **more):
        if self.played:
            return Played(self, module, optimizer, **{**self.options, **more})
        given = {**self.options, **more}
        local = {name: given.pop(name) for name in ("every", "outer", "after", "over") if name in given}
        self.model = gradtide.DataParallel(module, optimizer, gradtide.Local(**local), job=self.job, **given)
        return self.model

    def shard(self, batches):
        if not self.played:
            yield from gradtide.shard(batches, job=self.job)
            return
        for x, y in batches:
            begin, end = even_share(len(x), self.rank, self.size)
            self._share = end - begin, len(x)
            yield (x[begin:end], y[begin:end]) if end > begin else (x[:1], y[:1])
        self._share = None

    @property
    def samples(self):
        return 1.0 if self._share is None else float(self._share[0])

    @property
    def part(self):
        return 1 / self.size if self._share is None else self._share[0] / self._share[1]

    def tell(self, tensor):
        if self.group is not None:
            self.group.broadcast(tensor)

    def all(self, tensor):
        own = tensor.detach().double() if tensor.is_floating_point() else tensor.detach().clone()
        if self.group is None:
            return [own]
        return list(self.group.all_gather(own.reshape(1, -1).contiguous()).reshape(self.size, *own.shape).unbind())


def run(rank, size, name, program, options, played=False):
    """What the program returned as one of several workers, or what it was refused with."""
    group = Group.join(name, rank, size, timeout_s=30) if size > 1 else None
    around = Around(group, dict(options), played)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return program(around)
    except GradtideError as error:
        if around.model is not None:
            around.model.abandon()
        return f"{type(error).__name__}: {error}"
    finally:
        if group is not None:
            group.close()

"""Programs as PyTorch users write them, to be run by one process without gradtide and by several with it.

A program gets an `Around` (how to wrap, how to share batches) and returns the tensors that must be the same.
"""

import contextlib
import copy
import gc
import os
import warnings

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import gradtide
from gradtide.collective import Group
from gradtide.errors import GradtideError
from gradtide.sync import Job

STEPS = 6


class Plain(nn.Module):
    """What a wrapped model looks like to a program that runs without gradtide."""

    def __init__(self, module, optimizer):
        super().__init__()
        self.module = module
        self._optimizers = optimizer if isinstance(optimizer, list) else [optimizer]

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def step(self, optimizer=None):
        for one in self._optimizers if optimizer is None else [optimizer]:
            one.step()
            one.zero_grad()

    def no_sync(self):
        return contextlib.nullcontext()

    edit = join = no_sync

    def weigh(self, terms):
        pass

    def close(self):
        pass

    def state_dict(self, *arguments, **options):
        return self.module.state_dict(*arguments, **options)

    def load_state_dict(self, state, *arguments, **options):
        return self.module.load_state_dict(state, *arguments, **options)


class Around:
    """How a program wraps its model and shares its batches."""

    def __init__(self, job=None, options=None):
        self.job, self.options = job, options or {}
        self.rank = 0 if job is None else job.rank

    def wrap(self, module, optimizer, **more):
        if self.job is None:
            return Plain(module, optimizer)
        return gradtide.DataParallel(module, optimizer, job=self.job, **{**self.options, **more})

    def shard(self, batches, **more):
        return batches if self.job is None else gradtide.shard(batches, job=self.job, **more)


def run(rank, size, name, program, options, far=False):
    """As one of several workers: what the program returned and the model's explanation, or what it was refused with."""
    store = options.pop("store", None)
    if name is None:
        group = None
    elif far:
        group = Group.from_environment(timeout_s=30)
    else:
        group = Group.join(name, rank, size, timeout_s=30)
    job = Job.of(group, store) if group else Job(store=store)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {**PROGRAMS, **SPECIAL}[program](Around(job, options))
    except GradtideError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        if group is not None:
            group.close()


def alone(program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {**PROGRAMS, **SPECIAL}[program](Around())


# --- what they are made of ---


def batches(steps=STEPS, size=7, seed=1):
    """Parts of different sizes for 2 and 3 workers."""
    draw = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 5, dtype=torch.float64, generator=draw), torch.randint(3, (size,), generator=draw))
        for _ in range(steps)
    ]


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def sgd(model, lr=0.1):
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr, momentum=0.9)


def results(model):
    return [p.detach().clone() for p in model.parameters()]


def trained(around, between=None, make=net, optimizer=sgd, loss=functional.cross_entropy, by_hand=False, **options):
    """The loop that most programs have; `between` comes between backward and step."""
    model = make()
    rule = optimizer(model)
    wrapped = around.wrap(model, rule, **options)
    for step, (x, y) in enumerate(around.shard(batches())):
        loss(wrapped(x), y).backward()
        if between is not None:
            between(wrapped, rule, step)
        if by_hand:
            rule.step()
            rule.zero_grad()
        else:
            wrapped.step()
    wrapped.close()
    return results(model)


# --- gradients after backward ---


def clip_norm(around):
    return trained(around, lambda model, rule, step: nn.utils.clip_grad_norm_(model.parameters(), 0.1), by_hand=True)


def clip_norm_then_model_step(around):
    return trained(around, lambda model, rule, step: nn.utils.clip_grad_norm_(model.parameters(), 0.1))


def clip_value(around):
    return trained(around, lambda model, rule, step: nn.utils.clip_grad_value_(model.parameters(), 0.01))


def replaced_gradient(around):
    def between(model, rule, step):
        for p in model.parameters():
            p.grad = p.grad * 0.1

    return trained(around, between)


def gradient_data(around):
    def between(model, rule, step):
        for p in model.parameters():
            p.grad.data.mul_(0.5)

    return trained(around, between)


def late_edit(around):
    """Nothing is edited until the fifth step, when parameters may be shared already."""

    def between(model, rule, step):
        if step == 4:
            nn.utils.clip_grad_value_(model.parameters(), 0.001)

    return trained(around, between)


def masked(around):
    def between(model, rule, step):
        for p in model.parameters():
            p.grad *= torch.arange(p.numel()).reshape(p.shape) % 2

    return trained(around, between, by_hand=True)


def noise(around):
    def between(model, rule, step):
        for p in model.parameters():
            p.grad.add_(torch.randn(p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(step)))

    return trained(around, between, by_hand=True)


def scaler(around):
    model = net()
    rule, scale = sgd(model), torch.amp.GradScaler("cpu", init_scale=64.0)
    wrapped = around.wrap(model, rule)
    for x, y in around.shard(batches()):
        rule.zero_grad()
        scale.scale(functional.cross_entropy(wrapped(x), y)).backward()
        scale.unscale_(rule)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scale.step(rule)
        scale.update()
    return results(model)


def by_hand(around):
    return trained(around, by_hand=True)


def closure(around):
    model = net()
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    for x, y in around.shard(batches()):

        def evaluate(x=x, y=y):
            rule.zero_grad()
            loss = functional.cross_entropy(wrapped(x), y)
            loss.backward()
            return loss

        rule.step(evaluate)
    return results(model)


def kept_gradients(around):
    """A gradient that somebody keeps is tomorrow what it was."""
    model, kept = net(), []
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    for x, y in around.shard(batches()):
        functional.cross_entropy(wrapped(x), y).backward()
        kept.append(model[0].weight.grad)
        rule.step()
        rule.zero_grad(set_to_none=True)
    return [*results(model), *kept]


def reads_gradients(around):
    """To look at is not to edit."""
    norms = []

    def between(model, rule, step):
        norms.append(torch.stack([p.grad.norm() for p in model.parameters()]))

    return [*trained(around, between, by_hand=True), *norms]


# --- several backwards ---


def uneven_micro_batches(around):
    model = net()
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    data = [b for size in (7, 3, 8, 2) for b in batches(1, size, seed=size)]
    for step, (x, y) in enumerate(around.shard(data * 3)):
        loss = functional.cross_entropy(wrapped(x), y)
        if step % 2:
            loss.backward()
            wrapped.step()
        else:
            with wrapped.no_sync():
                loss.backward()
    wrapped.close()
    return results(model)


def two_backwards(around):
    model = net()
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    for x, y in around.shard(batches()):
        functional.cross_entropy(wrapped(x), y).backward()
        (wrapped(x) ** 2).mean().backward()
        wrapped.step()
    wrapped.close()
    return results(model)


def backwards_in_no_sync_only(around):
    model = net()
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    for x, y in around.shard(batches()):
        with wrapped.no_sync():
            functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    wrapped.close()
    return results(model)


def two_forwards(around):
    model = net()
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    for x, y in around.shard(batches()):
        first, second = wrapped(x), wrapped(x * 2)
        (functional.cross_entropy(first, y) + functional.cross_entropy(second, y)).backward()
        wrapped.step()
    wrapped.close()
    return results(model)


def gradient_penalty(around):
    """autograd.grad goes through the wrapper's outputs, and is no backward of the parameters."""
    model = net()
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    for x, y in around.shard(batches()):
        x = x.clone().requires_grad_()
        outputs = wrapped(x)
        (slope,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
        (functional.cross_entropy(outputs, y) + slope.square().sum(1).mean()).backward()
        wrapped.step()
    wrapped.close()
    return results(model)


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self._reentrant = reentrant

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(2):  # the same layer in two checkpoints
            hidden = checkpoint(lambda h: torch.tanh(self.twice(h)), hidden, use_reentrant=self._reentrant)
        return self.last(self.twice(hidden))


def _checkpointed(around, reentrant):
    def make():
        torch.manual_seed(3)
        return Checkpointed(reentrant).double()

    return trained(around, make=make)


def checkpoint_reentrant(around):
    return _checkpointed(around, True)


def checkpoint_not_reentrant(around):
    return _checkpointed(around, False)


def compiled_wrapper(around):
    model = net()
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    fast = torch.compile(wrapped, backend="eager")
    for x, y in around.shard(batches()):
        functional.cross_entropy(fast(x), y).backward()
        wrapped.step()
    wrapped.close()
    return results(model)


def skipped_backward(around):
    """A worker that has nothing to learn from its part."""
    model = net()
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = around.wrap(model, rule)
    data = [(x, y) for x, y in batches(size=1)]  # only the last worker has a sample of each
    for step, (x, y) in enumerate(around.shard(data)):
        has_one = around.job is None or around.job.share.samples
        if step % 2 == 0 or has_one:
            functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    wrapped.close()
    return results(model)


def validates_in_between(around):
    """Another loop over shard, between getting a batch and learning from it."""
    model = net()
    wrapped = around.wrap(model, sgd(model))
    for x, y in around.shard(batches()):
        with torch.no_grad():
            for u, _ in around.shard(batches(2, 4, seed=5)):
                wrapped(u)
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    wrapped.close()
    return results(model)


def goes_on_with_state(around):
    """An optimizer that has taken steps before it is wrapped."""
    model = net()
    rule = sgd(model)
    for x, y in batches(3, seed=9):
        functional.cross_entropy(model(x), y).backward()
        rule.step()
        rule.zero_grad()
    wrapped = around.wrap(model, rule)
    for x, y in around.shard(batches()):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    wrapped.close()
    return results(model)


def token_means(around):
    """A mean over the tokens that count, which differ from worker to worker."""
    model = net()
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    for x, y in around.shard(batches()):
        y = torch.where(x[:, 0] > 0, y, -100)
        tokens = int((y != -100).sum())
        wrapped.weigh(tokens)
        outputs = wrapped(x)
        loss = functional.cross_entropy(outputs, y, ignore_index=-100) if tokens else outputs.sum() * 0
        loss.backward()
        wrapped.step()
    wrapped.close()
    return results(model)


def token_means_accumulated(around):
    model = net()
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    for step, (x, y) in enumerate(around.shard(batches())):
        y = torch.where(x[:, 0] > -1, y, -100)
        wrapped.weigh(int((y != -100).sum()))
        with wrapped.no_sync() if step % 2 == 0 else contextlib.nullcontext():
            functional.cross_entropy(wrapped(x), y, ignore_index=-100).backward()
        if step % 2:
            wrapped.step()
    wrapped.close()
    return results(model)


# --- editing parameters ---


def _edited(around, edit, proper):
    model = net()
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    for step, (x, y) in enumerate(around.shard(batches())):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
        with wrapped.edit() if proper else contextlib.nullcontext():
            edit(model, step)
    wrapped.close()
    return results(model)


def _shrink(model, step):
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.9)


def _clamp(model, step):
    if step != 1:
        model[0].weight.data.clamp_(-0.1, 0.1)


def shrunk_parameters(around):
    return _edited(around, _shrink, proper=False)


def clamped_parameters(around):
    return _edited(around, _clamp, proper=False)


def shrunk_in_edit(around):
    return _edited(around, _shrink, proper=True)


def clamped_in_edit(around):
    return _edited(around, _clamp, proper=True)


def average_swapped_in(around):
    """An exponential average takes the place of the parameters for a while, as in validation."""
    model = net()
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    average, seen = copy.deepcopy(model), []
    for x, y in around.shard(batches()):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
        with torch.no_grad():
            for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(p, 0.1)
        kept = {k: v.clone() for k, v in model.state_dict().items()}
        wrapped.load_state_dict(average.state_dict())
        with torch.no_grad():
            seen.append(wrapped(batches(1)[0][0]))
        wrapped.load_state_dict(kept)
    wrapped.close()
    return [*results(model), *seen]


def averaged_model(around):
    model = net()
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    average = torch.optim.swa_utils.AveragedModel(wrapped)
    for x, y in around.shard(batches()):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
        average.update_parameters(wrapped)
    wrapped.close()
    return [*results(model), *results(average), copy.deepcopy(wrapped)(batches(1)[0][0]).detach()]


def parent_reloads(around):
    """A wrapper inside a larger module that saves and loads itself."""
    model = net()
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    parent = nn.ModuleDict({"head": wrapped})
    kept = {k: v.clone() for k, v in parent.state_dict().items()}
    if around.job is None:  # Plain has a name of its own inside
        kept = {k.replace("head.", "head.module."): v for k, v in kept.items()}
    for x, y in around.shard(batches()):
        functional.cross_entropy(parent["head"](x), y).backward()
        wrapped.step()
    parent.load_state_dict(kept)
    wrapped.close()
    return results(model)


# --- which parameters, which buffers ---


class WithFrozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen, self.last = nn.Linear(5, 8), nn.Linear(8, 3)
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x):
        return self.last(torch.tanh(self.frozen(x)) * self.scale)


def frozen_unseeded(around):
    """Every worker makes other numbers; worker 0's are everybody's."""
    torch.manual_seed(100 + around.rank)
    model = WithFrozen().double()
    model.scale.copy_(torch.rand(8))
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    for x, y in around.shard(batches()):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    wrapped.close()
    return [*results(model), model.scale]


def two_optimizers(around):
    """A GAN's rhythm: each takes its own steps."""
    torch.manual_seed(3)
    model = nn.ModuleDict({"g": nn.Linear(5, 5), "d": nn.Linear(5, 1)}).double()
    for_g, for_d = torch.optim.Adam(model["g"].parameters(), lr=0.01), torch.optim.SGD(model["d"].parameters(), lr=0.1)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = model

        def forward(self, x, detach):
            made = self.parts["g"](x)
            return self.parts["d"](made.detach() if detach else made), self.parts["d"](x)

    both = Both()
    wrapped = around.wrap(both, [for_g, for_d])
    for x, _ in around.shard(batches()):
        fake, real = wrapped(x, True)
        (fake.mean() - real.mean()).backward()
        nn.utils.clip_grad_norm_(model["d"].parameters(), 0.5)
        for_d.step()
        for_d.zero_grad()
        fake, _ = wrapped(x, False)
        (-fake.mean()).backward()
        for_g.step()
        for_g.zero_grad()
        for_d.zero_grad()
    return results(both)


def in_no_optimizer(around):
    """A trainable parameter that no optimizer has is averaged, and the program steps it."""
    torch.manual_seed(100 + around.rank)
    model = net() if around.rank == 0 else nn.Sequential(*net())
    rule = torch.optim.SGD(model[4].parameters(), lr=0.1)
    wrapped = around.wrap(model, rule)
    for x, y in around.shard(batches()):
        functional.cross_entropy(wrapped(x), y).backward()
        rule.step()
        with torch.no_grad():
            for p in model[0].parameters():
                p -= 0.05 * p.grad
        model.zero_grad()
    return results(model)


def unfrozen_later(around):
    model = net()
    model[0].requires_grad_(False)
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = around.wrap(model, rule)
    for step, (x, y) in enumerate(around.shard(batches(8))):
        if step == 4:
            model[0].requires_grad_(True)
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    wrapped.close()
    return results(model)


def group_added_later(around):
    model = net()
    rule = torch.optim.SGD(model[4].parameters(), lr=0.1, momentum=0.9)
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    wrapped = around.wrap(model, rule)
    for step, (x, y) in enumerate(around.shard(batches(8))):
        if step == 4:
            model[2].requires_grad_(True)
            rule.add_param_group({"params": list(model[2].parameters()), "lr": 0.01})
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    wrapped.close()
    return results(model)


class Reassigns(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(5, 3)
        self.register_buffer("seen", torch.zeros(5))

    def forward(self, x):
        self.seen = self.seen + x.detach()[0]  # another tensor each time; of this worker's own part
        return self.last(x)


def reassigned_buffer(around):
    """Workers see other parts: after a step all have what worker 0 has, whose part begins as the batch does."""

    def make():
        torch.manual_seed(3)
        return Reassigns().double()

    model = make()
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    seen = []
    for x, y in around.shard(batches()):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
        seen.append(model.seen.clone())
    wrapped.close()
    return [*results(model), *(seen if around.rank == 0 else [])]


def converted_after_wrapping(around):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Unflatten(1, (1, 5, 1)), nn.Conv2d(1, 4, (3, 1)), nn.Flatten(), nn.Linear(12, 3))
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    wrapped.double()
    wrapped.to(memory_format=torch.channels_last)
    wrapped.to("cpu")
    for x, y in around.shard(batches()):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    wrapped.close()
    return results(model)


def step_hooks(around):
    model, calls = net(), []
    rule = sgd(model)

    def clip(*_):
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    rule.register_step_pre_hook(clip)
    rule.register_step_post_hook(lambda *_: calls.append(model[0].weight.detach().clone()))
    wrapped = around.wrap(model, rule)
    for x, y in around.shard(batches()):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    wrapped.close()
    return [*results(model), *calls]


def tied(around):
    def make():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(5, 5, bias=False), nn.Tanh(), nn.Linear(5, 5, bias=False), nn.Linear(5, 3))
        model[2].weight = model[0].weight
        return model.double()

    return trained(around, make=make)


def _sparse(around, optimizer):
    torch.manual_seed(3)

    class Embedded(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(11, 3, sparse=True)

        def forward(self, x):
            return self.table((x[:, :2].abs() * 4).long().clamp_(max=10)).sum(1)

    model = Embedded().double()
    rule = optimizer(model.parameters())
    wrapped = around.wrap(model, rule)
    for x, y in around.shard(batches()):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    wrapped.close()
    return results(model)


def sparse_sgd(around):
    return _sparse(around, lambda ps: torch.optim.SGD(ps, lr=0.5))


def sparse_adam(around):
    return _sparse(around, lambda ps: torch.optim.SparseAdam(list(ps), lr=0.05))


# --- options ---


def options_differ(around):
    """A worker that sets another rate than worker 0: worker 0's counts."""
    model = net()
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    for step, (x, y) in enumerate(around.shard(batches())):
        rule.param_groups[0]["lr"] = 0.1 / (step + 1) * (1 + around.rank)
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    wrapped.close()
    return results(model)


def _options_change(around, optimizer, changes):
    model = net()
    rule = optimizer(model.parameters())
    wrapped = around.wrap(model, rule)
    for step, (x, y) in enumerate(around.shard(batches())):
        if step in changes:
            rule.param_groups[0].update(changes[step])
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    wrapped.close()
    return results(model)


def options_of_other_kinds(around):
    """A tuple, a tensor, numbers of numpy's, a tuple of tensors."""
    changes = {
        1: {"betas": (0.8, 0.9)},
        2: {"lr": torch.tensor(0.02, dtype=torch.float64)},
        3: {"lr": np.float64(0.03)},
        4: {"betas": (np.float32(0.5), 0.9), "amsgrad": False},
    }
    return _options_change(around, lambda ps: torch.optim.Adam(ps, lr=0.01), changes)


def default_dtype(around):
    """Some optimizers keep numbers in torch's default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return _options_change(around, lambda ps: torch.optim.NAdam(ps, lr=0.01), {})
    finally:
        torch.set_default_dtype(before)


def _touches_state(around, touch):
    """In the fifth step, when parameters may be shared already."""
    model = net()
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    for step, (x, y) in enumerate(around.shard(batches())):
        if step == 4:
            touch(rule)
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    wrapped.close()
    return results(model)


def state_cleared(around):
    return _touches_state(around, lambda rule: rule.state.clear())


def momentum_zeroed(around):
    def touch(rule):
        for state in rule.state.values():
            state["momentum_buffer"].zero_()

    return _touches_state(around, touch)


def state_reloaded(around):
    """To save, change and load it is right wherever the workers have it."""

    def touch(rule):
        saved = rule.state_dict()
        for state in saved["state"].values():
            state["momentum_buffer"] = state["momentum_buffer"] * 0.5
        rule.load_state_dict(saved)

    return _touches_state(around, touch)


def goes_on_after_close(around):
    model = net()
    rule = sgd(model)
    for name in ("first", "second"):
        servers = around.options.get("sync")
        if isinstance(servers, gradtide.Servers):
            wrapped = around.wrap(model, rule, sync=gradtide.Servers(servers.mode, servers.address, name=name))
        else:
            wrapped = around.wrap(model, rule)
        for x, y in around.shard(batches()):
            functional.cross_entropy(wrapped(x), y).backward()
            wrapped.step()
        wrapped.close()
    return results(model)


SCHEDULERS = {
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [1, 3], 0.5),
    "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda e: 0.9**e),
    "MultiplicativeLR": lambda o: torch.optim.lr_scheduler.MultiplicativeLR(o, lambda e: 0.9),
    "ConstantLR": lambda o: torch.optim.lr_scheduler.ConstantLR(o, 0.5, 2),
    "LinearLR": lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.3, 1.0, 3),
    "ExponentialLR": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.7),
    "PolynomialLR": lambda o: torch.optim.lr_scheduler.PolynomialLR(o, 5),
    "CosineAnnealingLR": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=12),
    "CyclicLR": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.2, 2),
    "ReduceLROnPlateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.5),
    "SequentialLR": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.ConstantLR(o, 0.1, 2), torch.optim.lr_scheduler.ExponentialLR(o, 0.5)],
        milestones=[2],
    ),
    "ChainedScheduler": lambda o: torch.optim.lr_scheduler.ChainedScheduler(
        [torch.optim.lr_scheduler.ConstantLR(o, 0.1, 2), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.05, 3),
}


def schedulers(around):
    """Each of torch's."""
    return scheduled(around, SCHEDULERS)


def some_schedulers(around):
    """One that changes by itself, one that is told of a loss, one that momentum follows, and one made of others."""
    return scheduled(around, ("ExponentialLR", "ReduceLROnPlateau", "OneCycleLR", "SequentialLR"))


def scheduled(around, names):
    """By torch's schedulers, once a step and once an epoch."""
    found = []
    for number, (name, make) in enumerate((name, SCHEDULERS[name]) for name in names):
        for often in (True, False):
            model = net()
            rule = sgd(model)
            if around.options.get("sync") is not None and not isinstance(around.options["sync"], str):
                servers = around.options["sync"]
                servers = gradtide.Servers(servers.mode, servers.address, name=f"{number} {often}")
                wrapped = around.wrap(model, rule, sync=servers)
            else:
                wrapped = around.wrap(model, rule)
            scheduler = make(rule)
            for _ in range(2):
                for x, y in around.shard(batches(5, 4)):
                    functional.cross_entropy(wrapped(x), y).backward()
                    wrapped.step()
                    if often:
                        scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
                if not often:
                    scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
            wrapped.close()
            found += results(model)
    return found


def a_rate_that_changes_when_a_layer_is_frozen_and_unfrozen(around):
    """Between two steps, both: whoever steps must know of the rate, also for what was frozen when it changed."""
    model = net()
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    first = next(iter(model.parameters()))
    for number, (x, y) in enumerate(around.shard(batches(8, 4))):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
        if number in (1, 4):
            rule.param_groups[0]["lr"] *= 0.5
            first.requires_grad_(number == 4)
    wrapped.close()
    return results(model)


# --- random numbers ---


class Drops(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.masks = nn.Linear(5, 3), []

    def forward(self, x):
        mask = functional.dropout(torch.ones(40), 0.5)
        self.masks.append(mask)
        return self.last(x) * mask[0]


def dropout_masks(around):
    """Inside forward each worker draws its own, outside all draw the same."""
    torch.manual_seed(3)
    model = Drops().double()
    wrapped = around.wrap(model, sgd(model))
    outside = []
    for x, y in around.shard(batches(3)):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
        outside.append(torch.rand(4))
    kept = wrapped.random_state
    wrapped(x)
    wrapped.random_state = kept
    wrapped(x)
    assert torch.equal(model.masks[-1], model.masks[-2])
    wrapped.close()
    return torch.stack(model.masks), torch.stack(outside)


class BatchNormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.norm(x))


def joined_batch_norm(around):
    """Worker 0 ends first: what the others' batch norm goes on to learn is kept."""
    torch.manual_seed(3)
    model = BatchNormed().double()
    wrapped = around.wrap(model, sgd(model))
    with wrapped.join():
        for x, y in batches(2 + 3 * around.rank):
            functional.cross_entropy(wrapped(x + 5 * around.rank), y).backward()
            wrapped.step()
    wrapped.close()
    return model.norm.num_batches_tracked, model.norm.running_mean


def other_model(around):
    model = nn.Linear(5, 3 + around.rank).double()
    wrapped = around.wrap(model, sgd(model))
    wrapped.close()
    return results(model)


def other_group(around):
    model = net()
    rule = sgd(model) if around.rank == 0 else torch.optim.Adam(model.parameters())
    around.wrap(model, rule).close()
    return results(model)


def error_in_one_backward(around):
    """One worker's backward fails when some gradients have left: it may not go on as if nothing had been."""
    model = net()
    wrapped = around.wrap(model, sgd(model), share_parameters=False)

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ArithmeticError("no gradient today")

    if around.rank:
        model[0].register_forward_pre_hook(lambda module, inputs: None)
        model[0].register_forward_hook(lambda module, inputs, output: Fails.apply(output))
    for x, y in around.shard(batches()):
        with contextlib.suppress(ArithmeticError):
            functional.cross_entropy(wrapped(x), y).backward()
            wrapped.step()
    return results(model)


def second_training(around):
    for _ in range(2):
        model = net()
        wrapped = around.wrap(model, sgd(model))
        for x, y in around.shard(batches()):
            functional.cross_entropy(wrapped(x), y).backward()
            wrapped.step()
        wrapped.close()
    return results(model)


def named_trainings(around):
    """Two trainings on the same servers, under different names."""
    found = []
    for name in ("first", "second"):
        model = net()
        servers = around.options["sync"] if around.job is not None else None
        more = {"sync": gradtide.Servers(servers.mode, servers.address, name=name)} if servers else {}
        wrapped = around.wrap(model, sgd(model), **more)
        for x, y in around.shard(batches()):
            functional.cross_entropy(wrapped(x), y).backward()
            wrapped.step()
        wrapped.close()
        found += results(model)
    return found


def own_edit(around):
    """A worker that changes its own copy in forward."""
    model = net()

    def grow(module, inputs):
        module.weight.data.mul_(1 + 0.1 * around.rank)

    model[0].register_forward_pre_hook(grow)
    wrapped = around.wrap(model, sgd(model))
    for x, y in around.shard(batches()):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    return results(model)


def two_shards(around):
    model = net()
    wrapped = around.wrap(model, sgd(model))
    for (x, y), (u, _) in zip(around.shard(batches()), around.shard(batches(size=5, seed=2)), strict=True):
        (functional.cross_entropy(wrapped(x), y) + wrapped(u).square().mean()).backward()
        wrapped.step()
    return results(model)


def join_around_shard(around):
    model = net()
    wrapped = around.wrap(model, sgd(model))
    with wrapped.join():
        for x, y in around.shard(batches()):
            functional.cross_entropy(wrapped(x), y).backward()
            wrapped.step()
    return results(model)


def one_skips_a_step(around):
    model = net()
    rule = sgd(model)
    wrapped = around.wrap(model, rule, share_parameters=False)
    for step, (x, y) in enumerate(around.shard(batches())):
        functional.cross_entropy(wrapped(x), y).backward()
        if step == 4 and around.rank:
            rule.zero_grad()
            continue
        wrapped.step()
    return results(model)


def loops_of_different_lengths(around):
    model = net()
    wrapped = around.wrap(model, sgd(model))
    for x, y in batches()[: 4 + around.rank]:
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    around.job.group.all_reduce(torch.ones(2))


def forgets_backward(around, **options):
    """All workers do, and then one alone, which may have nothing to learn."""
    model = net()
    wrapped = around.wrap(model, sgd(model), **options)
    for step, (x, y) in enumerate(batches()):
        loss = functional.cross_entropy(wrapped(x), y)
        if step != 5 and (step != 4 or around.rank):
            loss.backward()
        wrapped.step()


def forgets_backward_unshared(around):
    forgets_backward(around, share_parameters=False)


def edits_a_shared_gradient(around):
    model = net()
    wrapped = around.wrap(model, sgd(model), share_parameters=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for x, y in batches():
            functional.cross_entropy(wrapped(x), y).backward()
            model[0].weight.grad.mul_(0.5)
            wrapped.step()
    places = [one.filename for one in caught if "shared no more" in str(one.message)]
    assert places == ([] if around.rank else [__file__]), places
    raise gradtide.errors.ConfigError("warned once, of the program's own line")


def _leaves_early(around, steps, loop=contextlib.nullcontext):
    model = net()
    wrapped = around.wrap(model, sgd(model))
    with loop(wrapped):
        for step, (x, y) in enumerate(around.shard(batches())):
            if around.rank == 0 and step == steps:
                break
            functional.cross_entropy(wrapped(x), y).backward()
            wrapped.step()
    wrapped.close()
    return results(model)


def leaves_early(around):
    return _leaves_early(around, 2)


def leaves_before_the_last(around):
    return _leaves_early(around, STEPS - 1)


def leaves_early_in_join(around):
    return _leaves_early(around, 2, lambda wrapped: wrapped.join())


def catches_an_error(around, left_out=2):
    """A worker whose forward fails goes on with the next batch, and so takes one step fewer."""
    model = net()
    wrapped = around.wrap(model, sgd(model))
    for step, (x, y) in enumerate(around.shard(batches())):
        if around.rank and step == left_out:
            continue
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    wrapped.close()
    return results(model)


def catches_an_error_at_the_end(around):
    return catches_an_error(around, left_out=len(batches()) - 1)


def loads_optimizer(around):
    model = net()
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    rule.load_state_dict(sgd(net()).state_dict())
    wrapped.close()


def validates_alone(around):
    model = net()
    wrapped = around.wrap(model, sgd(model))
    for x, y in around.shard(batches()):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
        if around.rank == 0:
            for u, _ in around.shard(batches(2, 4, seed=5)):
                wrapped(u)


def loads_alone(around):
    model = net()
    wrapped = around.wrap(model, sgd(model))
    if around.rank == 0:
        wrapped.load_state_dict(model.state_dict())
    for x, y in around.shard(batches()):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()


def _open_files():
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            yield os.readlink(f"/proc/self/fd/{number}")


def dropped_models(around):
    """How much memory that workers share is open after each of some models that nobody closed."""
    found = []
    for _ in range(3):
        model = net()
        wrapped = around.wrap(model, sgd(model))
        for x, y in around.shard(batches(4)):
            functional.cross_entropy(wrapped(x), y).backward()
            wrapped.step()
        del model, wrapped
        gc.collect()
        found.append(sum("memfd" in target for target in _open_files()))
    return found


def explained_draws(around):
    found = []
    for layer in (nn.LSTM(5, 3, 2, dropout=0.5), nn.MultiheadAttention(4, 2, dropout=0.5), nn.RReLU(), nn.LSTM(5, 3)):
        model = nn.Sequential(nn.Linear(5, 4), layer)
        wrapped = around.wrap(model, sgd(model))
        found.append("dropout masks" in wrapped.explain())
        wrapped.close()
    return found


def max_norm(around):
    model = nn.Embedding(10, 4, max_norm=0.5)
    around.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))


def explained(around):
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.1))
    wrapped = around.wrap(model, sgd(model))
    text = wrapped.explain()
    wrapped.close()
    return text


SPECIAL = {
    program.__name__: program
    for program in (
        explained,
        explained_draws,
        dropped_models,
        validates_alone,
        loads_alone,
        own_edit,
        max_norm,
        two_shards,
        join_around_shard,
        one_skips_a_step,
        loops_of_different_lengths,
        forgets_backward,
        forgets_backward_unshared,
        edits_a_shared_gradient,
        leaves_early,
        leaves_before_the_last,
        leaves_early_in_join,
        catches_an_error,
        catches_an_error_at_the_end,
        loads_optimizer,
        dropout_masks,
        joined_batch_norm,
        other_model,
        other_group,
        error_in_one_backward,
        second_training,
        named_trainings,
    )
}
PROGRAMS = {
    program.__name__: program
    for program in (
        clip_norm,
        clip_norm_then_model_step,
        clip_value,
        replaced_gradient,
        gradient_data,
        late_edit,
        masked,
        noise,
        scaler,
        by_hand,
        closure,
        kept_gradients,
        reads_gradients,
        uneven_micro_batches,
        two_backwards,
        backwards_in_no_sync_only,
        two_forwards,
        gradient_penalty,
        checkpoint_reentrant,
        checkpoint_not_reentrant,
        compiled_wrapper,
        skipped_backward,
        validates_in_between,
        goes_on_with_state,
        token_means,
        token_means_accumulated,
        shrunk_parameters,
        clamped_parameters,
        shrunk_in_edit,
        clamped_in_edit,
        average_swapped_in,
        averaged_model,
        parent_reloads,
        frozen_unseeded,
        two_optimizers,
        in_no_optimizer,
        unfrozen_later,
        group_added_later,
        reassigned_buffer,
        converted_after_wrapping,
        step_hooks,
        tied,
        sparse_sgd,
        sparse_adam,
        options_differ,
        options_of_other_kinds,
        default_dtype,
        state_cleared,
        momentum_zeroed,
        state_reloaded,
        goes_on_after_close,
        some_schedulers,
        schedulers,
        a_rate_that_changes_when_a_layer_is_frozen_and_unfrozen,
    )
}


def run_many(rank, size, names, options):
    """Several programs, one after the other, by one group of the job that a launcher started."""
    with Group.from_environment(timeout_s=30) as group, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [(name, PROGRAMS[name](Around(Job.of(group), dict(options)))) for name in names]

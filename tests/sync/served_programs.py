"""Programs that train over servers, where something is at stake that only servers could get wrong.

As in `programs`, each returns the tensors that one process would have.
"""

import copy
import functools
from dataclasses import replace
from unittest import mock

import programs
import torch
from programs import batches, net, results
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

STEPS = 6
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, initial_accumulator_value=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.001, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.001),
}


def run(rank, size, name, program, options):
    programs.SPECIAL.update({**SERVED, **ENDING})
    return programs.run(rank, size, name, program, options)


def alone(program):
    programs.SPECIAL.update(SERVED)
    return programs.alone(program)


def adamw(model):
    return OPTIMIZERS["adamw"](model.parameters())


def step_by(wrapped, data, loss=functional.cross_entropy):
    for x, y in data:
        loss(wrapped(x), y).backward()
        wrapped.step()


def tensors_of(state):
    """Of an optimizer's state_dict, in order; a number for who has none."""
    found = [torch.tensor(float(len(state["state"])))]
    for index in sorted(state["state"]):
        own = state["state"][index]
        found += [torch.as_tensor(own[name]).double().clone() for name in sorted(own) if own[name] is not None]
    return found


# --- an optimizer's state ---


def _saves(kind):
    def program(around):
        """In mid-training, at the end, and after it; none of them is in the way of the next step."""
        model = net()
        rule, seen = OPTIMIZERS[kind](model.parameters()), []
        wrapped = around.wrap(model, rule)
        for x, y in around.shard(batches(STEPS)):
            functional.cross_entropy(wrapped(x), y).backward()
            wrapped.step()
            seen += tensors_of(rule.state_dict())
        wrapped.close()
        return [*seen, *tensors_of(rule.state_dict()), *results(model)]

    return program


class SometimesUsed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.never, self.late = nn.Linear(5, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.uses_late = False

    def forward(self, x):
        x = self.first(x)
        return self.late(x) if self.uses_late else x


def saves_of_parameters_without_gradients(around):
    model, seen = SometimesUsed().double(), []
    rule = adamw(model)
    wrapped = around.wrap(model, rule)
    for step, (x, y) in enumerate(around.shard(batches(STEPS))):
        model.uses_late = step >= 3
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
        seen += tensors_of(rule.state_dict())
    wrapped.close()
    return [*seen, *results(model)]


def saves_large_parameters(around):
    """Of several blocks each, on several servers."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 110_000), nn.Linear(110_000, 3)).double()
    rule = adamw(model)
    wrapped = around.wrap(model, rule)
    step_by(wrapped, around.shard(batches(3)))
    seen = tensors_of(rule.state_dict())
    wrapped.close()
    return [*seen, *results(model)]


def _second(around, model, rule):
    """Wraps for another training."""
    if around.job is None:
        return around.wrap(model, rule)
    servers = around.options["sync"]
    return around.wrap(model, rule, sync=replace(servers, name=f"{servers.name}, again"))


def _goes_on(at_end):
    def program(around):
        """A checkpoint is loaded into a new model and a new optimizer, which train on."""
        model, data = net(), batches(2 * STEPS)
        rule = adamw(model)
        wrapped = around.wrap(model, rule)
        step_by(wrapped, around.shard(data[:STEPS]))
        if at_end:
            wrapped.close()
        kept = copy.deepcopy((model.state_dict(), rule.state_dict()))
        if not at_end:
            step_by(wrapped, around.shard(data[STEPS : STEPS + 2]))
            wrapped.close()
        model = net()
        model.load_state_dict(kept[0])
        rule = adamw(model)
        rule.load_state_dict(kept[1])
        wrapped = _second(around, model, rule)
        step_by(wrapped, around.shard(data[STEPS:]))
        wrapped.close()
        return results(model)

    return program


def goes_on_with_the_same_optimizer(around):
    model, data = net(), batches(2 * STEPS)
    rule = adamw(model)
    wrapped = around.wrap(model, rule)
    step_by(wrapped, around.shard(data[:STEPS]))
    wrapped.close()
    wrapped = _second(around, model, rule)
    step_by(wrapped, around.shard(data[STEPS:]))
    wrapped.close()
    return results(model)


def goes_on_alone(around):
    """In plain PyTorch, with whole batches."""
    model, data = net(), batches(2 * STEPS)
    rule = adamw(model)
    wrapped = around.wrap(model, rule)
    step_by(wrapped, around.shard(data[:STEPS]))
    wrapped.close()
    step_by(programs.Plain(model, rule), data[STEPS:])
    return results(model)


def saved_between_backward_and_step(around):
    model, data = net(), batches(STEPS)
    rule, seen = adamw(model), []
    wrapped = around.wrap(model, rule)
    for step, (x, y) in enumerate(around.shard(data)):
        functional.cross_entropy(wrapped(x), y).backward()
        if step == STEPS - 1:
            seen = tensors_of(rule.state_dict())
        wrapped.step()
    wrapped.close()
    return seen


def changes_a_saved_state(around):
    """In one process its tensors are the optimizer's own."""
    model = net()
    rule = OPTIMIZERS["momentum"](model.parameters())
    wrapped = around.wrap(model, rule)
    for step, (x, y) in enumerate(around.shard(batches(STEPS))):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
        if step == 2:
            for state in rule.state_dict()["state"].values():
                state["momentum_buffer"].zero_()
    wrapped.close()
    return results(model)


def with_a_state_at_the_end(around):
    model = net()
    rule = adamw(model)
    wrapped = around.wrap(model, rule)
    step_by(wrapped, around.shard(batches(STEPS)))
    wrapped.close()
    return [*results(model), *tensors_of(rule.state_dict())]


def ends_without_a_word(around):
    model = net()
    wrapped = around.wrap(model, adamw(model))
    step_by(wrapped, around.shard(batches(STEPS)))
    return results(model)


# --- a step of the program's own ---


def _clips_inside(rule):
    step = rule.step

    def clipped(closure=None):
        nn.utils.clip_grad_norm_([p for group in rule.param_groups for p in group["params"]], 0.05)
        return step(closure)

    rule.step = clipped


def step_replaced(around):
    model = net()
    rule = adamw(model)
    _clips_inside(rule)
    wrapped = around.wrap(model, rule)
    step_by(wrapped, around.shard(batches(STEPS)))
    wrapped.close()
    return results(model)


def step_replaced_under_a_scheduler(around):
    model = net()
    rule = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    plain = type(rule).step

    def clipped(self, closure=None):
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.05)
        return plain(self, closure)

    rule.step = clipped.__get__(rule)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(rule, 0.8)
    wrapped = around.wrap(model, rule)
    for x, y in around.shard(batches(STEPS)):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
        scheduler.step()
    wrapped.close()
    return results(model)


def step_replaced_in_its_class(around):
    plain = torch.optim.SGD.step

    def clipped(self, closure=None):
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.05)
        return plain(self, closure)

    with mock.patch.object(torch.optim.SGD, "step", functools.wraps(plain)(clipped)):
        return programs.trained(around)


def step_replaced_in_mid_training(around):
    model = net()
    rule = adamw(model)
    wrapped = around.wrap(model, rule)
    for step, (x, y) in enumerate(around.shard(batches(STEPS))):
        if step == 3:
            _clips_inside(rule)
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    wrapped.close()
    return results(model)


# --- memory that parameters share ---


def _in_one(change):
    def program(around):
        model = net()
        change(model)
        rule = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        wrapped = around.wrap(model, rule)
        step_by(wrapped, around.shard(batches(STEPS)))
        wrapped.close()
        return results(model)

    return program


def _tie_by_data(model):
    model[2].bias.data = model[0].bias.data


def _overlap(model):
    flat = torch.linspace(-0.3, 0.3, 70, dtype=torch.float64)
    model[0].weight.data = flat[:40].view(8, 5)
    model[2].bias.data = flat[36:44]


def _interleave(model):
    flat = torch.linspace(-0.3, 0.3, 16, dtype=torch.float64)
    model[0].bias.data, model[2].bias.data = flat[::2], flat[1::2]


def _in_one_tensor(model):
    flat, at = torch.cat([p.detach().reshape(-1) for p in model.parameters()]), 0
    for p in model.parameters():
        p.data = flat[at : at + p.numel()].view(p.shape)
        at += p.numel()


def _seen_as_a_buffer(model):
    model.register_buffer("seen", model[0].weight.data)


def _moved_in_mid_training(change):
    def program(around):
        model = net()
        rule = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        wrapped = around.wrap(model, rule)
        for step, (x, y) in enumerate(around.shard(batches(STEPS))):
            if step == 4:
                change(model)
            functional.cross_entropy(wrapped(x), y).backward()
            wrapped.step()
        wrapped.close()
        return results(model)

    return program


def _copy_elsewhere(model):
    for p in model.parameters():
        p.data = p.data.clone()


# --- others ---


class ComplexNet(nn.Module):
    def __init__(self, buffer=False, frozen=False):
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(5, 4).double()
        self.turn = nn.Parameter(torch.randn(4, 3, dtype=torch.complex128))
        self.offset = nn.Parameter(torch.randn((), dtype=torch.complex128))
        if frozen:
            self.fixed = nn.Parameter(torch.randn(3, dtype=torch.complex128), requires_grad=False)
        if buffer:
            self.register_buffer("mean", torch.zeros(3, dtype=torch.complex128))
        self.has = buffer, frozen

    def forward(self, x):
        y = self.first(x).to(torch.complex128) @ self.turn + self.offset
        if self.has[1]:
            y = y * self.fixed
        return y.abs() + y.real


def _complex(optimizer, **has):
    def program(around):
        model = ComplexNet(**has)
        rule, seen = OPTIMIZERS[optimizer](model.parameters()), []
        wrapped = around.wrap(model, rule)
        step_by(wrapped, around.shard(batches(STEPS)))
        seen = [t.clone() for t in tensors_of(rule.state_dict())[:1]]
        wrapped.close()
        return [*seen, *(torch.view_as_real(t) if t.is_complex() else t for t in results(model))]

    return program


def _pruned(change, optimizer="momentum"):
    def program(around):
        model = net()
        rule = OPTIMIZERS[optimizer](model.parameters())
        wrapped = around.wrap(model, rule)
        for step, (x, y) in enumerate(around.shard(batches(2 * STEPS))):
            change(model, step)
            functional.cross_entropy(wrapped(x), y).backward()
            wrapped.step()
        wrapped.close()
        return [*results(model), *(b.clone() for b in model.buffers())]

    return program


def _prune_once(model, step):
    if step == 4:
        prune.l1_unstructured(model[2], "weight", amount=0.3)


def _prune_and_more(model, step):
    if step in (3, 5):
        prune.l1_unstructured(model[2], "weight", amount=0.2)


def _prune_and_remove(model, step):
    if step == 3:
        prune.l1_unstructured(model[2], "weight", amount=0.2)
    if step == 7:
        prune.remove(model[2], "weight")


def _new_buffer(model, step):
    if step == 4:
        model.register_buffer("seen", torch.ones(3, dtype=torch.float64))
    if step >= 4:
        model.seen += step


def _larger_buffer(model, step):
    if step == 0:
        model.register_buffer("seen", torch.ones(2, dtype=torch.float64))
    if step == 4:
        model.seen = torch.ones(5, dtype=torch.float64)


def sharpness_aware(around):
    """A first step up, along the whole gradient, then one down from there."""
    model = net()
    rule = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    wrapped = around.wrap(model, rule)
    for x, y in around.shard(batches(STEPS)):
        functional.cross_entropy(wrapped(x), y).backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        ups = [0.05 * p.grad / norm for p in model.parameters()]
        with torch.no_grad():
            for p, up in zip(model.parameters(), ups, strict=True):
                p.add_(up)
        rule.zero_grad()
        functional.cross_entropy(wrapped(x), y).backward()
        with torch.no_grad():
            for p, up in zip(model.parameters(), ups, strict=True):
                p.sub_(up)
        rule.step()
        rule.zero_grad()
    wrapped.close()
    return results(model)


def scaled_gradients(around):
    model = net()
    rule = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    wrapped, scaler = around.wrap(model, rule), torch.amp.GradScaler("cpu", init_scale=64.0)
    for x, y in around.shard(batches(STEPS)):
        scaler.scale(functional.cross_entropy(wrapped(x), y)).backward()
        scaler.step(rule)
        scaler.update()
        rule.zero_grad()
    wrapped.close()
    return results(model)


def with_buffers(around):
    """A mean of what went by that does not depend on how a batch is cut, but on worker 0 being at the last step."""

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()
            self.register_buffer("calls", torch.zeros((), dtype=torch.float64))

        def forward(self, x):
            self.calls += 1
            return self.net(x)

    model = Counting()
    rule = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    wrapped = around.wrap(model, rule)
    step_by(wrapped, around.shard(batches(STEPS)))
    wrapped.close()
    return [*results(model), model.calls.clone()]


SAVED = {f"saves_{kind}": _saves(kind) for kind in OPTIMIZERS}
SAVED |= {
    "saves_of_parameters_without_gradients": saves_of_parameters_without_gradients,
    "saves_large_parameters": saves_large_parameters,
    "goes_on_from_mid_training": _goes_on(at_end=False),
    "goes_on_from_the_end": _goes_on(at_end=True),
    "goes_on_with_the_same_optimizer": goes_on_with_the_same_optimizer,
    "goes_on_alone": goes_on_alone,
}
STEPPED = {
    "step_replaced": step_replaced,
    "step_replaced_under_a_scheduler": step_replaced_under_a_scheduler,
    "step_replaced_in_its_class": step_replaced_in_its_class,
}
IN_ONE_MEMORY = {
    "tied_by_data": _in_one(_tie_by_data),
    "overlapping": _in_one(_overlap),
    "interleaved": _in_one(_interleave),
    "in_one_tensor": _in_one(_in_one_tensor),
    "seen_as_a_buffer": _in_one(_seen_as_a_buffer),
}
COMPLEX = {
    "complex_sgd": _complex("sgd"),
    "complex_adamw": _complex("adamw"),
    "complex_buffer": _complex("momentum", buffer=True),
    "complex_frozen": _complex("adam", frozen=True),
}
BUFFERS = {
    "pruned": _pruned(_prune_once),
    "pruned_with_adam": _pruned(_prune_once, "adamw"),
    "pruned_twice": _pruned(_prune_and_more),
    "pruned_for_a_while": _pruned(_prune_and_remove),
    "new_buffer": _pruned(_new_buffer),
    "larger_buffer": _pruned(_larger_buffer),
}
WHOLE_GRADIENTS = {"sharpness_aware": sharpness_aware, "scaled_gradients": scaled_gradients}
ENDING = {"ends_without_a_word": ends_without_a_word}
SERVED = {
    **SAVED,
    **STEPPED,
    **IN_ONE_MEMORY,
    **COMPLEX,
    **BUFFERS,
    **WHOLE_GRADIENTS,
    "saved_between_backward_and_step": saved_between_backward_and_step,
    "step_replaced_in_mid_training": step_replaced_in_mid_training,
    "tied_in_mid_training": _moved_in_mid_training(_tie_by_data),
    "copied_elsewhere": _moved_in_mid_training(_copy_elsewhere),
    "with_buffers": with_buffers,
    "changes_a_saved_state": changes_a_saved_state,
    "with_a_state_at_the_end": with_a_state_at_the_end,
}

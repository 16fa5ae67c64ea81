"""Programs for local steps, which workers and what plays them must end alike. See `played`."""

import contextlib
import copy

import torch
from programs import batches, net, sgd
from torch import nn
from torch.nn import functional

STEPS = 9


def results(model, seen=()):
    values = [p.detach().clone() for p in model.parameters()]
    return [*values, *(buffer.double().clone() for buffer in model.buffers()), *seen]


def trained(around, make=net, rule=sgd, data=None, **hooks):
    """The loop that most have. `forward`, `backward` and `step` come before a forward, a step, and after it."""
    options = {name: value for name, value in hooks.items() if not callable(value)}
    nothing = lambda *_: None  # noqa: E731
    forward, backward, step = (hooks.get(name, nothing) for name in ("forward", "backward", "step"))
    model, seen = make(), []
    optimizer = rule(model)
    wrapped = around.wrap(model, optimizer, **options)
    for number, (x, y) in enumerate(around.shard(batches(STEPS) if data is None else data)):
        forward(wrapped, model, optimizer, number)
        functional.cross_entropy(wrapped(x), y).backward()
        backward(wrapped, model, optimizer, number)
        wrapped.step()
        found = step(wrapped, model, optimizer, number)
        seen += [] if found is None else [found.detach().clone()]
    wrapped.close()
    return results(model, seen)


def normed():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()


def with_adamw(around):
    return trained(around, rule=lambda model: torch.optim.AdamW(model.parameters(), lr=0.01))


def with_groups(around):
    def rule(model):
        groups = [{"params": model[0].parameters(), "lr": 0.3}, {"params": model[2:].parameters(), "weight_decay": 0.1}]
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    return trained(around, rule=rule)


def with_few_samples(around):
    """Now and then a worker has none."""
    return trained(around, data=[b for size in (7, 2, 1, 5, 1, 3, 7, 2) for b in batches(1, size, seed=size)])


def with_running_statistics(around):
    def step(wrapped, model, rule, number):
        wrapped.eval()
        with torch.no_grad():
            found = wrapped(batches(1, 4, seed=9)[0][0])
        wrapped.train()
        return found

    data = [b for size in (7, 6, 8, 6, 9) for b in batches(1, size, seed=size)]
    return trained(around, make=normed, data=data, step=step)


def with_buffers_left_alone(around):
    return trained(around, make=normed, broadcast_buffers=False)


def with_a_scheduler(around):
    schedulers = []

    def step(wrapped, model, rule, number):
        if not schedulers:
            schedulers.append(torch.optim.lr_scheduler.StepLR(rule, 2, 0.5))
        schedulers[0].step()

    return trained(around, step=step)


def with_a_scaler(around):
    model = net()
    rule, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    wrapped = around.wrap(model, rule)
    for number, (x, y) in enumerate(around.shard(batches(STEPS))):
        rule.zero_grad()
        loss = functional.cross_entropy(wrapped(x), y) * (torch.inf if number == 4 else 1.0)  # on all workers
        scaler.scale(loss).backward()
        scaler.unscale_(rule)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(rule)
        scaler.update()
    wrapped.close()
    return results(model)


def clipped(around):
    return trained(around, clip_norm=0.1)


def weighed(around):
    model = net()
    wrapped = around.wrap(model, sgd(model))
    for x, y in around.shard(batches(STEPS, 12)):
        y = torch.where(x[:, 0] > -0.5, y, -100)
        wrapped.weigh(int((y != -100).sum()))
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    wrapped.close()
    return results(model)


def weighed_nothing(around):
    """Workers in turns have terms of nothing, and take no step."""
    model = net()
    wrapped = around.wrap(model, sgd(model))
    for number, (x, y) in enumerate(around.shard(batches(STEPS))):
        wrapped.weigh(0 if around.rank == number % 2 else len(x))
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    wrapped.close()
    return results(model)


def accumulated(around):
    model = net()
    wrapped = around.wrap(model, sgd(model))
    data = [b for size in (7, 3, 8, 4) for b in batches(1, size, seed=size)] * 3
    for number, (x, y) in enumerate(around.shard(data[:-1])):  # the last gradient is stepped by nobody
        with contextlib.nullcontext() if number % 2 else wrapped.no_sync():
            (functional.cross_entropy(wrapped(x), y) / 2).backward()
        if number % 2:
            wrapped.step()
    wrapped.close()
    return results(model)


def accumulated_clipped_and_scheduled(around):
    model = normed()
    rule = torch.optim.AdamW(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(rule, max_lr=0.1, total_steps=8)
    wrapped = around.wrap(model, rule)
    for number, (x, y) in enumerate(around.shard(batches(12, 8))):
        with contextlib.nullcontext() if number % 3 == 2 else wrapped.no_sync():
            (functional.cross_entropy(wrapped(x), y) / 3).backward()
        if number % 3 == 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            wrapped.step()
            schedule.step()
    wrapped.close()
    return results(model)


def over_epochs(around):
    """A window goes on from one epoch to the next, unless all meet to evaluate."""
    model, seen = normed(), []
    rule = torch.optim.AdamW(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.StepLR(rule, 1, 0.5)
    wrapped = around.wrap(model, rule)
    for epoch in range(3):
        for x, y in around.shard(batches(5, 8, seed=epoch)):
            functional.cross_entropy(wrapped(x), y).backward()
            wrapped.step()
        schedule.step()
        if epoch:
            wrapped.meet()
        wrapped.eval()
        with torch.no_grad():
            seen.append(wrapped(batches(1, 4, seed=9)[0][0]).clone())
        wrapped.train()
    wrapped.close()
    return results(model, seen)


def met_now_and_then(around):
    def step(wrapped, model, rule, number):
        if number in (1, 2, 6):
            wrapped.meet()
        return model[0].weight

    return trained(around, step=step)


def loaded(around):
    """In the middle of windows: what each worker had then, of which worker 0's counts."""
    kept = {}

    def step(wrapped, model, rule, number):
        if number == 2:
            kept["model"] = {name: value.clone() for name, value in wrapped.state_dict().items()}
            kept["rule"] = copy.deepcopy(rule.state_dict())
        if number == 5:
            wrapped.load_state_dict(kept["model"])
            rule.load_state_dict(kept["rule"])

    return trained(around, make=normed, step=step)


def loaded_past_the_wrapper(around):
    kept = {}

    def step(wrapped, model, rule, number):
        if number == 2:
            kept.update({name: value.clone() for name, value in model.state_dict().items()})
        if number == 5:
            model.load_state_dict(kept)

    return trained(around, step=step)


def edited(around):
    def step(wrapped, model, rule, number):
        if number in (2, 5):
            with wrapped.edit(), torch.no_grad():
                for p in model.parameters():
                    p.mul_(0.9 + 0.01 * around.rank)

    return trained(around, step=step)


def average_swapped_in(around):
    """For an evaluation in the middle of a window."""
    average = []

    @torch.no_grad()
    def step(wrapped, model, rule, number):
        if not average:
            average.append(copy.deepcopy(model))
        kept = [p.clone() for p in model.parameters()]
        for mean, p in zip(average[0].parameters(), model.parameters(), strict=True):
            p.copy_(mean.lerp_(p, 0.1))
        found = wrapped(batches(1, 4, seed=9)[0][0])
        for value, p in zip(kept, model.parameters(), strict=True):
            p.copy_(value)
        return found

    return trained(around, step=step)


def frozen_and_thawed(around):
    def forward(wrapped, model, rule, number):
        if number in (0, 3, 6):
            model[2].requires_grad_(number == 3)

    return trained(around, forward=forward)


def group_added(around):
    """The last layer's gradients add up until an optimizer has it."""

    def forward(wrapped, model, rule, number):
        if number == 4:
            rule.add_param_group({"params": list(model[4].parameters()), "lr": 0.05})

    return trained(
        around, rule=lambda model: torch.optim.SGD(model[:4].parameters(), lr=0.1, momentum=0.9), forward=forward
    )


def skipped_on_all(around):
    """A batch, and later a gradient that is thrown away."""
    model = net()
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    for number, (x, y) in enumerate(around.shard(batches(STEPS))):
        if number == 2:
            continue
        functional.cross_entropy(wrapped(x), y).backward()
        if number == 5:
            rule.zero_grad()
        else:
            wrapped.step()
    wrapped.close()
    return results(model)


def stepped_by_a_closure(around):
    model = net()
    rule = sgd(model)
    wrapped = around.wrap(model, rule)
    for x, y in around.shard(batches(STEPS)):

        def closure(x=x, y=y):
            rule.zero_grad()
            loss = functional.cross_entropy(wrapped(x), y)
            loss.backward()
            return loss

        rule.step(closure)
    wrapped.close()
    return results(model)


def stepped_twice(around):
    """Each gradient is stepped twice: it counts by the same samples."""
    model = net()
    rule = torch.optim.SGD(model.parameters(), lr=0.05)
    wrapped = around.wrap(model, rule)
    for x, y in around.shard(batches(STEPS)):
        functional.cross_entropy(wrapped(x), y).backward()
        rule.step()
        rule.step()
        rule.zero_grad()
    wrapped.close()
    return results(model)


class SharpnessAware(torch.optim.Optimizer):
    """As it is commonly written: up the worker's own gradient, a second gradient there, and a step with it from where
    it was."""

    def __init__(self, parameters, make, **options):
        super().__init__(parameters, options)
        self.base = make(self.param_groups, **options)

    @torch.no_grad()
    def first_step(self):
        parameters = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        for p in parameters:
            self.state[p]["before"] = p.clone()
            p.add_(p.grad * (0.3 / norm))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for p in [p for group in self.param_groups for p in group["params"]]:
            p.data = self.state[p]["before"]
        self.base.step()

    def step(self, closure=None):
        self.first_step()
        with torch.enable_grad():
            closure()
        self.second_step()


def _sharpness_aware(around, by_closure):
    model = net()
    rule = SharpnessAware(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    wrapped = around.wrap(model, rule.base if getattr(around, "played", False) else rule)
    for x, y in around.shard(batches(STEPS)):

        def closure(x=x, y=y):
            functional.cross_entropy(wrapped(x), y).backward()

        closure()
        if by_closure:
            rule.step(closure)
        else:
            rule.first_step()
            closure()
            rule.second_step()
        rule.zero_grad()
    wrapped.close()
    return results(model)


def sharpness_aware(around):
    return _sharpness_aware(around, by_closure=False)


def sharpness_aware_by_a_closure(around):
    return _sharpness_aware(around, by_closure=True)


# --- several optimizers ---


def by_two(around):
    model = net()
    rules = [sgd(model[:2]), sgd(model[2:], 0.05)]
    wrapped = around.wrap(model, rules)
    for x, y in around.shard(batches(STEPS)):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    wrapped.close()
    return results(model)


def by_two_in_turns(around):
    """The last step is that of the first one."""
    model = net()
    rules = [sgd(model[:2]), sgd(model[2:], 0.05)]
    wrapped = around.wrap(model, rules)
    for number, (x, y) in enumerate(around.shard(batches(STEPS))):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step(rules[number % 2])
        wrapped.zero_grad()
    wrapped.close()
    return results(model)


def _between_two(around, between):
    model, seen = net(), []
    rules = [sgd(model[:2]), sgd(model[2:], 0.05)]
    wrapped = around.wrap(model, rules)
    for x, y in around.shard(batches(STEPS)):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step(rules[0])
        between(wrapped, model)
        seen.append(model[0].weight.detach().clone())
        wrapped.step(rules[1])
    wrapped.close()
    return results(model, seen)


def met_between_two(around):
    return _between_two(around, lambda wrapped, model: wrapped.meet())


def edited_between_two(around):
    def edit(wrapped, model):
        with wrapped.edit(), torch.no_grad():
            model[0].weight.clamp_(-0.3, 0.3)

    return _between_two(around, edit)


class Adversaries(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.makes = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 5))
        self.judges = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x, made):
        return self.judges(self.makes(x) if made else x)


def _adversaries(around, freezing=False, turned=False):
    model = Adversaries().double()
    judge, maker = sgd(model.judges, 0.05), sgd(model.makes, 0.03)
    wrapped = around.wrap(model, [maker, judge] if turned else [judge, maker])
    for x, _ in around.shard(batches(STEPS)):
        for rule, losses in ((judge, ((False, -1), (True, 1))), (maker, ((True, -1),))):
            if freezing:
                model.judges.requires_grad_(rule is judge)
                model.makes.requires_grad_(rule is maker)
            sum(functional.softplus(sign * wrapped(x, made)).mean() for made, sign in losses).backward()
            wrapped.step(rule)
            wrapped.zero_grad()
    wrapped.close()
    return results(model)


def adversaries(around):
    return _adversaries(around)


def adversaries_that_freeze_each_other(around):
    return _adversaries(around, freezing=True)


def adversaries_in_the_other_order(around):
    return _adversaries(around, freezing=True, turned=True)


BY_ONE = (
    with_adamw,
    with_groups,
    with_few_samples,
    with_running_statistics,
    with_buffers_left_alone,
    with_a_scheduler,
    with_a_scaler,
    clipped,
    weighed,
    weighed_nothing,
    accumulated,
    accumulated_clipped_and_scheduled,
    over_epochs,
    met_now_and_then,
    loaded,
    loaded_past_the_wrapper,
    edited,
    average_swapped_in,
    frozen_and_thawed,
    group_added,
    skipped_on_all,
    stepped_by_a_closure,
    stepped_twice,
    sharpness_aware,
    sharpness_aware_by_a_closure,
)
BY_SEVERAL = (
    by_two,
    by_two_in_turns,
    met_between_two,
    edited_between_two,
    adversaries,
    adversaries_that_freeze_each_other,
    adversaries_in_the_other_order,
)

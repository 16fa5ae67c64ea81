"""What the workers' processes do that compress their gradients."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import gradtide
import gradtide.errors
from gradtide.collective import Group
from gradtide.sync import Job

SHAPES = (24, 40), (40,), (7, 5, 3), (1,), (5000,)


class Given(nn.Module):
    """Its gradients are what is given."""

    def __init__(self, dtype):
        super().__init__()
        self.values = nn.ParameterList([nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in SHAPES])

    def forward(self, gradients):
        pairs = zip(self.values, gradients, strict=True)
        return sum((value.double() * g.double()).sum() for value, g in pairs if g is not None)


def whole_numbers(rank, step, missing=()):
    dice = torch.Generator().manual_seed(1000 * rank + step)
    drawn = [torch.randint(-64, 65, shape, generator=dice).float() for shape in SHAPES]
    return [None if index in missing else g for index, g in enumerate(drawn)]


def residuals(model):
    """What this worker has left out, a parameter each."""
    trained, state = model._synchroniser._trained, model._synchroniser._wishes.compression
    found = []
    for name, parameter in zip(trained.names, trained.parameters, strict=True):
        wide = torch.float64 if parameter.dtype == torch.float64 else torch.float32
        like = torch.zeros(parameter.numel(), dtype=wide).numpy()
        found.append(state.residuals.value(name, like).astype(np.float64).copy())
    return found


def conserve(rank, size, name, compress, dtype, steps):
    """What was given here, what came back each step, what is left here."""
    torch.set_num_threads(1)
    with Group.join(name, rank, size, timeout_s=60) as group:
        net = Given(dtype)
        rule = torch.optim.SGD(net.parameters(), lr=0.0 if dtype is None else 0.5)
        model = gradtide.DataParallel(net, rule, job=Job.of(group), compress=compress)
        given, came = [np.zeros(int(np.prod(s))) for s in SHAPES], []
        for step in range(steps):
            missing = {step % 5} if step % 3 == rank % 3 else set()  # now and then there is no gradient
            gradients = whole_numbers(rank, step, missing | ({3} if step % 4 else set()))
            model(gradients).backward()
            for total, gradient in zip(given, gradients, strict=True):
                total += 0 if gradient is None else gradient.double().numpy().ravel() / size
            came.append([None if p.grad is None else p.grad.double().numpy().ravel().copy() for p in net.values])
            model.step()
        left = residuals(model)
        model.close()
        return given, came, left


def not_finite(rank, size, name, compress):
    """The second gradient of worker 1 has a NaN in one parameter."""
    with Group.join(name, rank, size, timeout_s=60) as group:
        net = Given(torch.float32)
        model = gradtide.DataParallel(
            net, torch.optim.SGD(net.parameters(), lr=0.5), job=Job.of(group), compress=compress
        )
        model(whole_numbers(rank, 0)).backward()
        model.step()
        before = residuals(model)
        gradients = whole_numbers(rank, 1)
        if rank == 1:
            gradients[0][3, 4] = float("nan")
        model(gradients).backward()
        after = residuals(model)
        came = [p.grad.clone() for p in net.values]
        model.close()
        return before, after, came


def changing_rates(rank, size, name, compress, rates):
    """What SGD should have moved, what it moved, what is still to be moved: by step."""
    with Group.join(name, rank, size, timeout_s=60) as group:
        net = Given(torch.float64)
        rule = torch.optim.SGD(net.parameters(), lr=rates[0])
        model = gradtide.DataParallel(net, rule, job=Job.of(group), compress=compress)
        wanted = [np.zeros(int(np.prod(s))) for s in SHAPES]
        for step, rate in enumerate(rates):
            rule.param_groups[0]["lr"] = rate
            gradients = whole_numbers(rank, step)
            model(gradients).backward()
            model.step()
            for total, gradient in zip(wanted, gradients, strict=True):
                total -= rate * gradient.double().numpy().ravel() / size
        moved = [p.detach().numpy().ravel().copy() for p in net.values]
        left = residuals(model)
        model.close()
        return wanted, moved, left


def learn(rank, size, name, compress, optimizer, steps, dtype=torch.float32, options=None):
    """The digits; the loss of the last steps, and the parameters."""
    import training

    torch.set_num_threads(1)
    events = []
    joined = Group.from_environment(timeout_s=60) if name is None else Group.join(name, rank, size, timeout_s=60)
    with joined as group:
        job, net = Job.of(group), training.build("mlp", dtype)
        rule = training.OPTIMIZERS[optimizer](net.parameters(), 0.1)
        model = gradtide.DataParallel(net, rule, job=job, compress=compress, emit=events.append, **(options or {}))
        losses = []
        for x, y in gradtide.shard(training.batches(dtype, steps, 40), job=job):
            loss = functional.cross_entropy(model(x).float(), y)
            loss.backward()
            model.step()
            losses.append(loss.item())
        model.close()
        sent = [e.wire_bytes for e in events if type(e).__name__ == "GradientsSynchronised"]
        return losses, [p.detach().clone() for p in net.parameters()], model.explain(), sent


def refused(rank, size, name, options, optimizer):
    import training

    with Group.join(name, rank, size, timeout_s=60) as group:
        net = training.small_mlp()
        rule = training.OPTIMIZERS[optimizer](net.parameters(), 0.1)
        options = dict(options)
        if options.get("compress") == "rank":
            options["compress"] = ["int8", "topk"][rank % 2]
        try:
            gradtide.DataParallel(net, rule, job=Job.of(group), **options)
        except gradtide.errors.GradtideError as error:
            return str(error)
        return "nothing was said"


def critic(rank, size, name, compress, to_none):
    """A parameter whose gradient is thrown away in every other backward, as a GAN's critic's is: what it should have
    moved, what it moved, what is left."""
    with Group.join(name, rank, size, timeout_s=60) as group:
        net = Given(torch.float64)
        *others, last = net.values
        rules = [torch.optim.SGD([last], lr=1.0), torch.optim.SGD(others, lr=1.0)]
        model = gradtide.DataParallel(net, rules, job=Job.of(group), compress=compress)
        wanted = np.zeros(last.numel())
        for step in range(16):
            gradients = whole_numbers(rank, step)
            model([*gradients[:-1], 1024 * gradients[-1]]).backward()
            rules[1].step()  # or it is skipped, as by GradScaler
            model.zero_grad(set_to_none=to_none)
            model(gradients).backward()
            rules[0].step()
            model.zero_grad(set_to_none=to_none)
            wanted -= gradients[-1].double().numpy() / size
        left, moved = residuals(model)[-1], last.detach().numpy().copy()
        model.close()
        return wanted, moved, left


def restarts(rank, size, name, compress):
    """SGD with momentum, and a learning rate that falls to a thousandth and begins anew: the largest value it had."""
    with Group.join(name, rank, size, timeout_s=60) as group:
        net = Given(torch.float32)
        rule = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9)
        model = gradtide.DataParallel(net, rule, job=Job.of(group), compress=compress)
        for step in range(24):
            rule.param_groups[0]["lr"] = 0.25 ** (step % 6)
            model(whole_numbers(rank, step)).backward()
            model.step()
        largest = max(float(p.detach().abs().max()) for p in net.values)
        model.close()
        return largest


def of_another_size(rank, size, name, compress, dtype, by, sync, store):
    """One step with gradients that are `by` times whole numbers: what the parameters should have moved, and did."""
    with Group.join(name, rank, size, timeout_s=60) as group:
        net = Given(dtype)
        rule = torch.optim.SGD(net.parameters(), lr=1.0)
        model = gradtide.DataParallel(net, rule, sync, job=Job.of(group, store), compress=compress)
        model([g * by for g in whole_numbers(rank, 0)]).backward()
        model.step()
        model.close()
        drawn = zip(*(whole_numbers(other, 0) for other in range(size)), strict=True)
        wanted = [-sum(g.double() for g in of_all) * by / size for of_all in drawn]
        return wanted, [p.detach().double().clone() for p in net.values]

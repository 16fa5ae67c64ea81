"""What the workers' processes of these tests do."""

import copy
import uuid
from functools import cache

import torch
from torch import nn
from torch.nn import functional

import gradtide
import gradtide.errors
from gradtide.collective import Group
from gradtide.collective.executors.choose import nominal_topology
from gradtide.sync import Job
from gradtide.train.digits import load_digits
from gradtide.train.models import lenet

OPTIMIZERS = {
    "sgd": lambda p, lr: torch.optim.SGD(p, lr=lr),
    "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, dampening=0.1, weight_decay=1e-3),
    "adam": lambda p, lr: torch.optim.Adam(p, lr=lr / 10),
    "adamw": lambda p, lr: torch.optim.AdamW(p, lr=lr / 10, amsgrad=True),
    "adagrad": lambda p, lr: torch.optim.Adagrad(p, lr=lr / 10, initial_accumulator_value=0.1),
    "rmsprop": lambda p, lr: torch.optim.RMSprop(p, lr=lr / 100, centered=True),
}


def small_mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))


MODELS = {"lenet": lenet, "mlp": small_mlp}


def build(name, dtype):
    torch.manual_seed(0)
    return MODELS[name]().to(dtype)


digits = cache(load_digits)


def batches(dtype, steps, size=29):
    (images, labels), _ = digits()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    for step in range(steps):
        chosen = order[torch.arange(step * size, (step + 1) * size) % len(order)]
        yield images[chosen].to(dtype), labels[chosen]


def alone(model, optimizer, dtype, steps, lr=0.05):
    """Plain PyTorch, in one process."""
    net = build(model, dtype)
    rule = OPTIMIZERS[optimizer](net.parameters(), lr)
    losses = []
    for x, y in batches(dtype, steps):
        rule.zero_grad()
        loss = functional.cross_entropy(net(x), y)
        loss.backward()
        rule.step()
        losses.append(loss.item())
    return [p.detach().clone() for p in net.parameters()], losses


def new_name():
    return f"sync-{uuid.uuid4().hex}"


def together(rank, size, name, model, optimizer, dtype, steps, options, lr=0.05):
    """The same with gradtide, as one of `size` workers."""
    net = build(model, dtype)
    if rank:
        for parameter in net.parameters():  # only worker 0's parameters count
            nn.init.constant_(parameter, 0.5)
    rule = OPTIMIZERS[optimizer](net.parameters(), lr)
    store = options.pop("store", None)
    group = Group.join(name, rank, size, timeout_s=30) if size > 1 else None
    if options.get("sync") == "hierarchical":
        group.topology = nominal_topology([r % 2 for r in range(size)])
    job = Job.of(group, store) if group else Job(store=store)
    wrapped = gradtide.DataParallel(net, rule, job=job, **options)
    for x, y in gradtide.shard(batches(dtype, steps), job=job):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
    wrapped.close()
    if group:
        group.close()
    return [p.detach().clone() for p in net.parameters()], wrapped.explain(), rule.state_dict()["state"]


# --- what users do ---


class Odd(nn.Module):
    """A frozen parameter, one that is used twice, one that is used now and then, and a buffer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(784, 32)
        self.twice = nn.Linear(32, 32)
        self.frozen = nn.Linear(32, 32)
        self.frozen.requires_grad_(False)
        self.sometimes = nn.Linear(32, 10)
        self.never = nn.Linear(3, 3)
        self.last = nn.Linear(32, 10)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x, sometimes=False):
        self.calls += 1
        hidden = torch.relu(self.twice(torch.relu(self.twice(self.first(x.flatten(1))))))
        hidden = self.frozen(hidden)
        return self.last(hidden) + (self.sometimes(hidden) if sometimes else 0)


def odd_model():
    torch.manual_seed(3)
    return Odd().double()


def loop(job, options, make_optimizer, body, steps=8, model=odd_model):
    """body(model, optimizer, step, x, y, finish): one step, in plain PyTorch (job is None) or together."""
    net = model()
    rule = make_optimizer(net)
    if job is None:
        wrapped, data = net, batches(torch.float64, steps)

        def finish():
            rule.step()
            rule.zero_grad()
    else:
        wrapped = gradtide.DataParallel(net, rule, job=job, **options)
        data, finish = gradtide.shard(batches(torch.float64, steps), job=job), wrapped.step
    for step, (x, y) in enumerate(data):
        body(wrapped, rule, step, x, y, finish)
    if job is not None:
        wrapped.close()
    return [p.detach().clone() for p in net.parameters()]


def adam(net):
    return torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.01, weight_decay=0.1)


def two_groups(net):
    biases = [p for n, p in net.named_parameters() if p.requires_grad and "bias" in n]
    weights = [p for n, p in net.named_parameters() if p.requires_grad and "bias" not in n]
    return torch.optim.SGD([{"params": weights, "weight_decay": 0.1}, {"params": biases, "lr": 0.3}], lr=0.1)


def unused(job, options):
    """A parameter without a gradient is left alone: no decay, no count of its steps."""

    def body(model, rule, step, x, y, finish):
        functional.cross_entropy(model(x, sometimes=step % 3 == 1), y).backward()
        finish()

    return loop(job, options, adam, body)


def groups(job, options):
    def body(model, rule, step, x, y, finish):
        functional.cross_entropy(model(x, sometimes=True), y).backward()
        finish()

    return loop(job, options, two_groups, body)


def schedule(job, options):
    """Learning rates and other options may change at any time."""
    schedulers = []

    def body(model, rule, step, x, y, finish):
        if not schedulers:
            schedulers.append(torch.optim.lr_scheduler.ExponentialLR(rule, 0.7))
        functional.cross_entropy(model(x, sometimes=True), y).backward()
        finish()
        schedulers[0].step()
        if step == 4:
            for group in rule.param_groups:
                group["momentum"] = 0.9

    return loop(job, options, two_groups, body)


def accumulate(job, options):
    """Several backwards a step."""

    def body(model, rule, step, x, y, finish):
        loss = functional.cross_entropy(model(x), y) / 2
        if step % 2 == 0:
            with model.no_sync() if job is not None else torch.enable_grad():
                loss.backward()
        else:
            loss.backward()
            finish()

    return loop(job, options, adam, body)


def extra_loss(job, options):
    """A term of the loss that does not go through the model's output counts once."""

    def body(model, rule, step, x, y, finish):
        penalty = sum((p**2).sum() for p in model.parameters() if p.requires_grad)
        (functional.cross_entropy(model(x), y) + 0.01 * penalty).backward()
        finish()

    return loop(job, options, adam, body)


def clipping(job, options):
    def body(model, rule, step, x, y, finish):
        functional.cross_entropy(model(x), y).backward()
        if job is None:
            nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 0.05)
        finish()

    return loop(job, {**options, "clip_norm": 0.05}, adam, body)


def saving(job, options):
    """State saved in the middle and loaded into a new model and optimizer goes on as if nothing had been."""

    def body(model, rule, step, x, y, finish):
        functional.cross_entropy(model(x, sometimes=step > 1), y).backward()
        finish()
        if step == 3:
            kept = {k: v.clone() for k, v in model.state_dict().items()}, copy.deepcopy(rule.state_dict())
            functional.cross_entropy(model(x), y).backward()
            finish()  # a step that is taken back
            model.load_state_dict(kept[0])
            rule.load_state_dict(kept[1])

    return loop(job, options, adam, body)


def small_last_batch(job, options):
    """A batch with fewer samples than workers."""
    net = odd_model()
    rule = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    (x, y), *_ = batches(torch.float64, 1)
    data = [(x[:7], y[:7]), (x[7:8], y[7:8])]
    wrapped = net if job is None else gradtide.DataParallel(net, rule, job=job, **options)
    for part, labels in data if job is None else gradtide.shard(data, job=job):
        functional.cross_entropy(wrapped(part), labels).backward()
        if job is None:
            rule.step()
            rule.zero_grad()
        else:
            wrapped.step()
    return [p.detach().clone() for p in net.parameters()]


def compiled(job, options):
    def body(model, rule, step, x, y, finish):
        functional.cross_entropy(model(x), y).backward()
        finish()

    return loop(job, options, adam, body, model=lambda: torch.compile(simple_model(), backend="eager"))


def simple_model():
    torch.manual_seed(3)
    return small_mlp().double()


CASES = {
    case.__name__: case
    for case in (unused, groups, schedule, accumulate, extra_loss, clipping, saving, small_last_batch, compiled)
}


def run_case(rank, size, name, case, options):
    with Group.join(name, rank, size, timeout_s=30) as group:
        return CASES[case](Job.of(group), dict(options))


# --- bfloat16 ---


def autocast_loss(model, x, y):
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(x)
        assert outputs.dtype == torch.bfloat16
        return functional.cross_entropy(outputs.float(), y)


def autocast(rank, size, name, options, steps):
    net = build("mlp", torch.float32)
    with Group.join(name, rank, size, timeout_s=30) as group:
        job = Job.of(group)
        model = gradtide.DataParallel(net, torch.optim.SGD(net.parameters(), lr=0.05), job=job, **options)
        for x, y in gradtide.shard(batches(torch.float32, steps, size=28), job=job):
            autocast_loss(model, x, y).backward()
            model.step()
        model.close()
    return [p.detach().clone() for p in net.parameters()]


def autocast_alone(size, steps):
    """Plain PyTorch on the same parts: what bfloat16 rounds depends on how a batch is cut."""
    net = build("mlp", torch.float32)
    rule = torch.optim.SGD(net.parameters(), lr=0.05)
    losses = []
    for x, y in batches(torch.float32, steps, size=28):
        sums = [torch.zeros_like(p) for p in net.parameters()]
        losses.append(0.0)
        for part, labels in zip(x.tensor_split(size), y.tensor_split(size), strict=True):
            loss, share = autocast_loss(net, part, labels), len(part) / len(x)
            for total, gradient in zip(sums, torch.autograd.grad(loss, list(net.parameters())), strict=True):
                total += share * gradient
            losses[-1] += share * loss.item()
        for parameter, total in zip(net.parameters(), sums, strict=True):
            parameter.grad = total
        rule.step()
    return [p.detach().clone() for p in net.parameters()], losses


# --- mistakes ---


def _first_step(job, options, between):
    def body(model, rule, step, x, y, finish):
        functional.cross_entropy(model(x), y).backward()
        between(model, rule, x, y)
        finish()

    loop(job, options, adam, body, steps=1)


MISTAKES = {
    "sharing what can't be shared": (
        lambda job: _first_step(job, {"share_parameters": True, "clip_norm": 1.0}, None),
        "norm clipping needs the whole gradient",
    ),
    "a strategy that is none": (
        lambda job: _first_step(job, {"sync": "rnig"}, lambda *_: None),
        "no strategy is called 'rnig'",
    ),
    "no servers": (
        lambda job: _first_step(job, {"sync": gradtide.Servers("bsp")}, None),
        "this job has no servers",
    ),
    "a mode that is none": (
        lambda job: _first_step(job, {"sync": gradtide.Servers("bps", "unix:/nowhere")}, None),
        "Servers('bps') makes no sense",
    ),
}


def make_mistake(rank, size, name, mistake):
    with Group.join(name, rank, size, timeout_s=30) as group:
        try:
            MISTAKES[mistake][0](Job.of(group))
        except gradtide.errors.GradtideError as error:
            return str(error)
        return "nothing was said"


# --- workers with more and with fewer batches ---


def _own_batches(rank):
    return [b for _, b in zip(range(2 + rank), batches(torch.float64, 5), strict=False)]


def uneven(rank, size, name, options):
    with Group.join(name, rank, size, timeout_s=30) as group:
        net = odd_model()
        rule = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
        model = gradtide.DataParallel(net, rule, job=Job.of(group), **options)
        with model.join():
            for x, y in _own_batches(rank):
                functional.cross_entropy(model(x + rank), y).backward()
                model.step()
        model.close()
        return [p.detach().clone() for p in net.parameters()]


def uneven_alone(size):
    """The mean over those that go on, in each step."""
    net = odd_model()
    rule = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    for step in range(1 + size):
        going = [rank for rank in range(size) if step < 2 + rank]
        rule.zero_grad()
        for rank in going:
            x, y = _own_batches(rank)[step]
            (functional.cross_entropy(net(x + rank), y) / len(going)).backward()
        rule.step()
    return [p.detach().clone() for p in net.parameters()]


def locally(rank, size, name, model, optimizer, dtype, steps, local, lr=0.05, batch=29):
    """Local steps, as one of `size` workers: parameters when all have met, the model's words, and their sum at each
    step."""
    torch.set_num_threads(1)
    net = build(model, dtype)
    if rank:
        for parameter in net.parameters():
            nn.init.constant_(parameter, 0.5)
    group = Group.join(name, rank, size, timeout_s=30) if size > 1 else None
    job = Job.of(group) if group else Job()
    wrapped = gradtide.DataParallel(net, OPTIMIZERS[optimizer](net.parameters(), lr), local, job=job)
    sums = []
    for x, y in gradtide.shard(batches(dtype, steps, batch), job=job):
        functional.cross_entropy(wrapped(x), y).backward()
        wrapped.step()
        sums.append(sum(p.detach().sum().item() for p in net.parameters()))
    wrapped.close()
    if group:
        group.close()
    return [p.detach().clone() for p in net.parameters()], wrapped.explain(), sums


def normed_locally(rank, size, name):
    """Two steps apart with batch normalisation; what the buffers are then, and what they were here before."""
    group = Group.join(name, rank, size, timeout_s=30)
    job = Job.of(group)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    wrapped = gradtide.DataParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), gradtide.Local(3), job=job)
    samples = 0
    for x in gradtide.shard([torch.randn(7, 3), torch.randn(5, 3)], job=job):
        wrapped(x).square().mean().backward()
        wrapped.step()
        samples += len(x)
    own = net[1].running_mean.clone()
    wrapped.close()
    group.close()
    return net[1].running_mean.clone(), int(net[1].num_batches_tracked), own, samples


def two_rules(parameters):
    return [torch.optim.SGD(parameters[:2], lr=0.05, momentum=0.9), torch.optim.AdamW(parameters[2:], lr=0.005)]


def locally_by_two(rank, size, name, local, by_hand):
    """Local steps of two optimizers, by model.step() or each by hand."""
    torch.set_num_threads(1)
    net = build("mlp", torch.float64)
    rules = two_rules(list(net.parameters()))
    with Group.join(name, rank, size, timeout_s=30) as group:
        job = Job.of(group)
        model = gradtide.DataParallel(net, rules, local, job=job)
        for x, y in gradtide.shard(batches(torch.float64, 7), job=job):
            functional.cross_entropy(model(x), y).backward()
            if not by_hand:
                model.step()
                continue
            for rule in rules:
                rule.step()
            for rule in rules:
                rule.zero_grad()
        model.close()
    return [p.detach().clone() for p in net.parameters()]

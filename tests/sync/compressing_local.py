"""What the workers' processes do that step by themselves, and compress what they have changed where they meet."""

import contextlib

import numpy as np
import torch
import training
from compressing import SHAPES, Given, residuals, whole_numbers
from torch.nn import functional

import gradtide
from gradtide.collective import Group
from gradtide.sync import Job


def locally(rank, size, name, optimizer, local, compress, steps, batch=29):
    """As training.locally does it, over servers where `name` is their address: the parameters in the end, what is said
    of the way, and the bytes of meetings."""
    torch.set_num_threads(1)
    events = []
    over = local.over is not None
    joined = contextlib.nullcontext() if over else Group.join(name, rank, size, timeout_s=60)
    with joined as group:
        job, net = Job(rank, size, name) if over else Job.of(group), training.build("mlp", torch.float64)
        rule = training.OPTIMIZERS[optimizer](net.parameters(), 0.05)
        model = gradtide.DataParallel(net, rule, local, job=job, compress=compress, emit=events.append)
        for x, y in gradtide.shard(training.batches(torch.float64, steps, batch), job=job):
            functional.cross_entropy(model(x), y).backward()
            model.step()
        said = model.explain()
        model.close()
        sent = [e.wire_bytes for e in events if type(e).__name__ == "GradientsSynchronised" and e.wire_bytes]
        return [p.detach().clone() for p in net.parameters()], said, sent


def joined_as(name, rank, size, places):
    """A group whose ranks are taken to be on these hosts, if that is said."""
    group = Group.join(name, rank, size, timeout_s=60)
    group.host_of = tuple(places) or group.host_of
    return group


def conserve(rank, size, name, compress, dtype, every, steps, places=()):
    """What this worker's steps were in the mean, where the parameters are, what is left out here, and what was sent."""
    torch.set_num_threads(1)
    with joined_as(name, rank, size, places) as group:
        net, sent = Given(dtype), []
        rule = torch.optim.SGD(net.parameters(), lr=1.0)
        local = gradtide.Local(every, within="host" if places else None)
        model = gradtide.DataParallel(net, rule, local, job=Job.of(group), compress=compress, emit=sent.append)
        given = [np.zeros(int(np.prod(s))) for s in SHAPES]
        for step in range(steps):
            gradients = whole_numbers(rank, step)
            model(gradients).backward()
            model.step()
            for total, gradient in zip(given, gradients, strict=True):
                total += gradient.double().numpy().ravel() / size
        model.meet()
        left, said = residuals(model), model.explain()
        model.close()
        bytes_sent = [e.wire_bytes for e in sent if type(e).__name__ == "GradientsSynchronised"]
        moved = [p.detach().double().numpy().ravel().copy() for p in net.values]
        return given, moved, left, (bytes_sent[-1], said)


def over_servers(rank, size, address, compress, local, steps):
    """Integer steps over servers: what was stepped in the mean, where the parameters are, what this client and the
    servers have left out, and what is said."""
    torch.set_num_threads(1)
    net = Given(torch.float64)
    rule = torch.optim.SGD(net.parameters(), lr=1.0)
    model = gradtide.DataParallel(net, rule, local, job=Job(rank, size, address), compress=compress)
    given = [np.zeros(int(np.prod(s))) for s in SHAPES]
    for step in range(steps):
        gradients = whole_numbers(rank, step)
        model(gradients).backward()
        model.step()
        for total, gradient in zip(given, gradients, strict=True):
            total += gradient.double().numpy().ravel() / size
    store, key = model._synchroniser.way.store, model._synchroniser.way._lodging.key
    names, left = [f"values.{index}" for index in range(len(SHAPES))], store.residuals()
    mine = [
        left[key(n)].numpy().ravel().copy() if key(n) in left else np.zeros(t.size)
        for n, t in zip(names, given, strict=True)
    ]
    with gradtide.connect(address) as visitor:  # which sees what the servers have, not what they have told
        exact = [visitor.pull(key(name)).numpy().ravel().copy() for name in names]
    model.meet()
    moved = [p.detach().numpy().ravel().copy() for p in net.values]
    said = model.explain()
    model.close()
    return given, moved, mine, exact, said


def go_on_by_hand(rank, size, name, compress, sync):
    """The parameters after six steps, and after three, saved, and three more of another model."""
    torch.set_num_threads(1)
    with Group.join(name, rank, size, timeout_s=60) as group:
        job, results = Job.of(group), []
        for stops in ([6], [3, 6]):
            kept, first = None, 0
            for stop in stops:
                torch.manual_seed(5)
                net = torch.nn.Sequential(torch.nn.Linear(64, 40), torch.nn.Tanh(), torch.nn.Linear(40, 10))
                rule = torch.optim.SGD(net.parameters(), lr=0.1)
                if kept is not None:
                    net.load_state_dict(kept[0])
                model = gradtide.DataParallel(net, rule, sync, job=job, compress=compress)
                if kept is not None:
                    model.load_sync_state(kept[1])
                for step in range(first, stop):
                    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(10 * step + rank))
                    model(x).square().mean().backward()
                    model.step()
                kept, first = (model.state_dict(), model.sync_state()), stop
                kept = ({key: value.clone() for key, value in kept[0].items()}, kept[1])
                model.close()
            results.append([p.detach().clone() for p in net.parameters()])
        return results


def go_on_as_another(rank, size, name, compress, places):
    """Each worker loads what the next one had left out: what they had, and what they have, and have after a meeting."""
    torch.set_num_threads(1)
    with joined_as(name, rank, size, places) as group:
        job, kept, answers = Job.of(group), {}, []
        for _ in range(2):
            net = Given(torch.float64)
            rule = torch.optim.SGD(net.parameters(), lr=1.0)
            model = gradtide.DataParallel(net, rule, gradtide.Local(2, within="host"), job=job, compress=compress)
            if kept:
                model.load_sync_state(kept)
                answers.append(residuals(model))
            for step in range(2):
                model([g * (not kept) for g in whole_numbers(rank, step)]).backward()
                model.step()
            answers.append(residuals(model))
            if not kept:
                kept = {**model.sync_state(), "compression": shifted(group, model.sync_state()["compression"])}
            moved = [p.detach().numpy().ravel().copy() for p in net.values]
            model.close()
        return [*answers, moved]


def shifted(group, state):
    """What the next rank has."""
    every = {}
    for name, value in shapes_of(state).items():
        here = state[name].double() if name in state else torch.zeros(value, dtype=torch.float64)
        every[name] = group.all_gather(here)[(group.rank + 1) % group.size]
    every["counts"] = state["counts"]
    return every


def shapes_of(state):
    """Of all that any worker may have left out."""
    sizes = {f"values.{index}": int(np.prod(shape)) for index, shape in enumerate(SHAPES)}
    return {f"left {name}": size for name, size in sizes.items()} | {f"rate {name}": 1 for name in sizes}

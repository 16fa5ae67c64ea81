"""What the workers' processes do whose gradients, steps or windows are not all alike, while they compress."""

import numpy as np
import torch
from compressing import SHAPES, Given, whole_numbers
from compressing_pairs import flat, on_servers

import gradtide
from gradtide.collective import Group
from gradtide.compress import Residuals
from gradtide.sync import Job
from gradtide.sync.compressed.state import hand_over
from gradtide.sync.trained import find_trained


def _begin(group, options, store=None, values=None):
    net = Given(torch.float64)
    if values is not None:
        net.load_state_dict(values)
    rules = [torch.optim.SGD(list(net.values)[part], lr=1.0) for part in (slice(2), slice(2, None))]
    rules = rules if store is None else [torch.optim.SGD(net.parameters(), lr=1.0)]
    return net, rules, gradtide.DataParallel(net, rules, job=Job.of(group, store), **options)


def _note(given, gradients, share, part=slice(None)):
    for total, gradient in list(zip(given, gradients, strict=True))[part]:
        total += share * gradient.double().numpy().ravel()


def _left_in(state):
    named = [f"left values.{index}" for index in range(len(SHAPES))]
    both = zip(named, SHAPES, strict=True)
    return [state[n].double().numpy() if n in state else np.zeros(int(np.prod(s))) for n, s in both]


def take_turns(rank, size, name, options, again):
    """The first optimizer steps at each fourth gradient, and the others of it are thrown away; after step `again` all
    begin anew, from what was kept. What was given, where the parameters are, what would be kept of what is left."""
    torch.set_num_threads(1)
    with Group.join(name, rank, size, timeout_s=60) as group:
        net, (rare, often), model = _begin(group, options)
        given = [np.zeros(int(np.prod(s))) for s in SHAPES]
        for step in range(12):
            gradients = whole_numbers(rank, step)
            model(gradients).backward()
            if step % 4 == 0:
                rare.step()
                _note(given, gradients, 1 / size, slice(2))
            often.step()
            _note(given, gradients, 1 / size, slice(2, None))
            rare.zero_grad()
            often.zero_grad()
            if step == again:
                state, values = model.sync_state(), {n: value.clone() for n, value in net.state_dict().items()}
                model.close()
                net, (rare, often), model = _begin(group, options, values=values)
                model.load_sync_state(state)
        found = given, flat(-p for p in net.values), _left_in(model.sync_state()["compression"])
        model.close()
        return found


def meet_at_odd_times(rank, size, name, options, store):
    """Windows of one, two and three steps."""
    torch.set_num_threads(1)
    with Group.join(name, rank, size, timeout_s=60) as group:
        _, _, model = _begin(group, options, store)
        given = [np.zeros(int(np.prod(s))) for s in SHAPES]
        for step in range(12):
            gradients = whole_numbers(rank, step)
            _note(given, gradients, 1 / size)
            model(gradients).backward()
            model.step()
            if step in (0, 3, 5, 10):
                model.meet()
        model.meet()
        moved, left = on_servers(model, store)
        group.barrier()
        model.close()
        return given, moved, [one / size for one in left]  # the last window is of one step


def weigh_by_samples(rank, size, name, options, store):
    """Parts of batches that differ in size are weighed by their samples."""
    torch.set_num_threads(1)
    with Group.join(name, rank, size, timeout_s=60) as group:
        _, _, model = _begin(group, options, store)
        given = [np.zeros(int(np.prod(s))) for s in SHAPES]
        batches = [torch.full((32 if step % 3 else 8,), step) for step in range(12)]
        for part in gradtide.shard(batches, job=model._job):
            gradients = whole_numbers(rank, int(part[0]))
            _note(given, gradients, len(part) / model._job.share.of)
            model.weigh(len(part))
            model(gradients).backward()
            model.step()
        moved, left = on_servers(model, store)
        group.barrier()
        model.close()
        return given, moved, left


def leave_frozen_ones(rank, size, name):
    """Worker 1 goes; the first parameter is frozen now, and the last was never sent."""
    with Group.join(name, rank, size, timeout_s=60) as group:
        net, kept = Given(torch.float64), Residuals()
        rule = torch.optim.SGD(net.parameters(), lr=1.0)
        net.values[0].requires_grad_(False)
        for index in (0, 1):
            kept.put_back(f"values.{index}", np.full(int(np.prod(SHAPES[index])), 1.0 + rank), None)
        hand_over(kept, find_trained(net, [rule]), group, rank, [1])
        return {name: left[0] for name, (left, _) in kept.state().items()}

"""Workers of several hosts, who take every step together inside of each, and the process that plays them."""

import torch
import training
from torch.nn import functional

import gradtide
from gradtide.collective import Group
from gradtide.sync import Job
from gradtide.testing.local_oracle import LocalPlan, play_local

NESTEROV = gradtide.update("sgd", lr=0.7, momentum=0.9, nesterov=True)


def train(rank, size, name, places, optimizer, local, batch=29, compress=None):
    """`places`: each rank's host, said of ranks that are on one; empty: they are where they are."""
    torch.set_num_threads(1)
    net = training.build("mlp", torch.float64)
    with Group.join(name, rank, size, timeout_s=30) if places else Group.from_environment(timeout_s=60) as group:
        if places:
            group.host_of = tuple(places)
        job = Job.of(group)
        rule = training.OPTIMIZERS[optimizer](net.parameters(), 0.05)
        model = gradtide.DataParallel(net, rule, local, job=job, compress=compress)
        sums = []
        for x, y in gradtide.shard(training.batches(torch.float64, 9, batch), job=job):
            functional.cross_entropy(model(x), y).backward()
            model.step()
            sums.append(sum(p.detach().sum().item() for p in net.parameters()))
        model.close()
        said = model.explain()
    return [p.detach().clone() for p in net.parameters()], sums, said


def played(optimizer, size, local, on_hosts, batch=29):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        made = play_local(
            training.build("mlp", torch.float64),
            lambda parameters: training.OPTIMIZERS[optimizer](parameters, 0.05),
            functional.cross_entropy,
            training.batches(torch.float64, 9, batch),
            size,
            LocalPlan(local.every, local.rule, local.after, hosts=on_hosts),
        )
    finally:
        torch.set_num_threads(threads)
    return [parameter.detach() for parameter in made.parameters()]

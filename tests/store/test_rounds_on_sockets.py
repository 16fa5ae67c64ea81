"""Rounds over real sockets and processes give what one process gives."""

import threading

import pytest
import torch

import gradtide

pytestmark = pytest.mark.quick

RULES = {
    "sgd": {"lr": 0.1},
    "momentum": {"lr": 0.05, "momentum": 0.9, "nesterov": True},
    "adam": {"lr": 0.01},
    "adamw": {"lr": 0.01, "weight_decay": 0.1},
    "adagrad": {"lr": 0.1},
    "rmsprop": {"lr": 0.01, "momentum": 0.5},
}
CLASSES = {
    "momentum": "SGD",
    "sgd": "SGD",
    "adam": "Adam",
    "adamw": "AdamW",
    "adagrad": "Adagrad",
    "rmsprop": "RMSprop",
}
STEPS = 50
BIG = 600_000  # float64: two blocks, on two servers where there are two


def gradients(worker, step, dtype):
    generator = torch.Generator().manual_seed(1000 * step + worker)
    grads = {name: torch.randn(37, generator=generator, dtype=dtype) for name in RULES}
    if step % 10 == 0:
        grads["big"] = torch.randn(BIG, generator=generator, dtype=dtype)
    return grads


def in_one_process(workers, dtype):
    parameters = {name: torch.nn.Parameter(torch.ones(37, dtype=dtype)) for name in RULES}
    parameters["big"] = torch.nn.Parameter(torch.ones(BIG, dtype=dtype))
    optimizers = {
        name: getattr(torch.optim, CLASSES.get(name, "Adam"))([parameter], **RULES.get(name, RULES["adam"]))
        for name, parameter in parameters.items()
    }
    for step in range(1, STEPS + 1):
        grads = [gradients(worker, step, dtype) for worker in range(workers)]
        for name in grads[0]:
            weights = [1.0 + worker for worker in range(workers)]
            total = sum(weight * grad[name] for weight, grad in zip(weights, grads, strict=True))
            parameters[name].grad = total / sum(weights)
            optimizers[name].step()
    return {name: parameter.detach() for name, parameter in parameters.items()}


def on_sockets(forks, workers, servers, dtype):
    results, failed = [None] * workers, []

    def work(worker, address):
        try:
            with gradtide.connect(address, worker=worker, workers=workers, consistency="bsp") as store:
                for name, arguments in RULES.items():
                    rule = gradtide.update(CLASSES[name].lower(), **arguments)
                    store.init(name, torch.ones(37, dtype=dtype), update=rule)
                store.init("big", torch.ones(BIG, dtype=dtype), update=gradtide.update("adam", **RULES["adam"]))
                for step in range(1, STEPS + 1):
                    store.push(gradients(worker, step, dtype), weight=1.0 + worker).wait()
                results[worker] = {name: store.pull(name) for name in (*RULES, "big")}
        except BaseException as error:
            failed.append(error)

    with gradtide.local_servers(servers, forks=forks) as started:
        threads = [threading.Thread(target=work, args=(worker, started.address)) for worker in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]
    return results


@pytest.mark.parametrize(
    ("workers", "servers", "dtype"), [(1, 1, torch.float64), (2, 3, torch.float32), (4, 2, torch.float64)]
)
def test_fifty_rounds_equal_torch_in_one_process(forks, workers, servers, dtype):
    expected = in_one_process(workers, dtype)
    for result in on_sockets(forks, workers, servers, dtype):
        for name, value in expected.items():
            bound = 1e-10 if dtype is torch.float64 else 1e-6
            assert torch.allclose(result[name], value, rtol=bound, atol=bound), name


def test_two_runs_give_the_same_bits_whoever_comes_first(forks):
    first, second = (on_sockets(forks, 3, 2, torch.float32) for _ in range(2))
    for name in (*RULES, "big"):
        assert torch.equal(first[0][name], second[2][name])


def test_a_worker_that_leaves_no_longer_holds_up_the_others(forks):
    with (
        gradtide.local_servers(2, forks=forks, lease_s=0.5) as servers,
        gradtide.connect(servers.address, worker=0, consistency="bsp") as stays,
    ):
        stays.init("w", torch.zeros(3), update=gradtide.update("mean"))
        goes = gradtide.connect(servers.address, worker=1, consistency="bsp")
        handles = []
        while goes.step > stays.step:  # the newcomer is in from a round that nobody has begun
            handles.append(stays.push("w", torch.ones(3)))
            stays.pull("w", wait=False)
        goes.close()
        stays.push("w", torch.full((3,), 5.0)).wait(20)
        assert torch.equal(stays.pull("w"), torch.full((3,), 5.0))

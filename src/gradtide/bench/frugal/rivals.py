"""Local steps as other libraries have them, for two workers on two hosts."""

import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gradtide.bench.peers.training import LR, Batch, Step
from gradtide.environment import read_environment
from gradtide.testing.hosts import ADDRESSES

__all__ = ["accelerate_steps", "torchft_steps"]

_WAIT = timedelta(seconds=60)
_KEPT: list[Any] = []  # what lives as long as this process


def torchft_steps(model: nn.Module, batch: Batch, every: int, outer: Mapping[str, Any] | None) -> tuple[Step, Step]:
    """LocalSGD; with `outer`, DiLoCo in one fragment, which is what ours does."""
    from torchft.local_sgd import DiLoCo, LocalSGD

    manager, optimizer = _manager(model), torch.optim.SGD(model.parameters(), lr=LR)
    if outer is None:
        entered: Any = LocalSGD(manager, model, optimizer, every)
    else:
        stepped = torch.optim.SGD(model.parameters(), **outer)
        entered = DiLoCo(manager, [model], optimizer, stepped, every, pin_memory=False)
    entered.__enter__()
    return _step(model, batch, optimizer), lambda: None


def _manager(model: nn.Module) -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torchft import Manager, ProcessGroupGloo
    from torchft.coordination import LighthouseServer

    launch = read_environment().launch
    assert launch is not None
    rank, port, own = launch.rank, launch.master_port, ADDRESSES[launch.rank]
    socket.gethostname = lambda: own  # by which the other finds its store; these hosts share one name, of neither
    if rank == 0:
        _KEPT.append(LighthouseServer(bind=f"0.0.0.0:{port}", min_replicas=2, join_timeout_ms=60_000))
    store = TCPStore(own, 0, is_master=True, wait_for_workers=False)
    _KEPT.append(store)
    return Manager(
        pg=ProcessGroupGloo(timeout=_WAIT),
        load_state_dict=lambda state: model.load_state_dict(state),
        state_dict=model.state_dict,
        min_replica_size=2,
        use_async_quorum=False,
        timeout=_WAIT,
        quorum_timeout=_WAIT,
        connect_timeout=_WAIT,
        rank=0,
        world_size=1,
        store_addr=own,
        store_port=store.port,
        lighthouse_addr=f"http://{ADDRESSES[0]}:{port}",
        replica_id=f"replica{rank}",
        hostname=own,
    )


def accelerate_steps(model: nn.Module, batch: Batch, every: int) -> tuple[Step, Step]:
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD

    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(1)  # it has set others
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    wrapped, prepared = accelerator.prepare(model, optimizer)
    local = LocalSGD(accelerator=accelerator, model=wrapped, local_sgd_steps=every, enabled=True)
    local.__enter__()
    plain = _step(wrapped, batch, prepared)

    def step() -> None:
        plain()
        local.step()

    return step, accelerator.wait_for_everyone


def _step(model: nn.Module, batch: Batch, optimizer: Any) -> Step:
    inputs, targets = batch

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step

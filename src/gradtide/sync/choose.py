"""Which way a model goes, and why."""

from dataclasses import dataclass

from gradtide.collective.choose import Strategy
from gradtide.errors import ConfigError
from gradtide.events import Emit
from gradtide.store.updates import ELEMENTWISE
from gradtide.sync.alone import Alone
from gradtide.sync.combine import ELEMENTS
from gradtide.sync.job import Job
from gradtide.sync.reduce import Reduce
from gradtide.sync.servers import Servers, ServersWay
from gradtide.sync.shared import SharedParameters
from gradtide.sync.state import share_state
from gradtide.sync.ways import Trained, Way

__all__ = ["Wishes", "choose_way"]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user asked for."""

    sync: Strategy | Servers = "auto"
    share_parameters: bool | None = None  # None: where it can be
    overlap: bool = True


def choose_way(trained: Trained, job: Job, wishes: Wishes, emit: Emit) -> Way:
    if isinstance(wishes.sync, Servers):
        return ServersWay(trained, job, wishes.sync, emit, overlap=wishes.overlap)
    if job.group is None:
        return Alone(trained, emit)
    share_state(trained, job, job.group)
    hindrance = _why_not_shared(trained, job)
    if wishes.share_parameters and (hindrance or wishes.sync != "auto"):
        raise ConfigError(f"parameters can't be shared: {hindrance or 'that goes with sync=auto alone'}")
    if wishes.sync == "auto" and not hindrance and wishes.share_parameters is not False:
        return SharedParameters(
            trained,
            job.group,
            f"parameters are shared: all {job.size} workers are on one host and {_name(trained)} is elementwise, so "
            "each reduces and updates its own part in one pass over memory",
            emit,
        )
    if wishes.sync != "auto":
        reason = f"strategy {wishes.sync}, as asked for"
        return Reduce(trained, job.group, wishes.sync, reason, emit, overlap=wishes.overlap)
    why = hindrance or "share_parameters=False"
    if job.group.on_one_host:
        reason = f"all-reduce in shared memory, then a step on each worker; parameters are not shared: {why}"
        return Reduce(trained, job.group, None, reason, emit, overlap=wishes.overlap)
    job.group.probe()
    reason = f"the fastest schedule for each bucket on the links as measured; parameters are not shared: {why}"
    return Reduce(trained, job.group, "auto", reason, emit, overlap=wishes.overlap)


def _why_not_shared(trained: Trained, job: Job) -> str:
    """What keeps parameters from being shared; nothing if they can be."""
    assert job.group is not None
    if not job.group.on_one_host:
        return "the workers are on several hosts"
    if trained.clip_norm is not None:
        return "norm clipping needs the whole gradient"
    kind = type(trained.optimizer)
    if kind.__name__ not in ELEMENTWISE or not kind.__module__.startswith("torch.optim"):
        return f"{_name(trained)} is not one of torch's elementwise optimizers"
    if any(group.get("differentiable") or group.get("capturable") for group in trained.optimizer.param_groups):
        return "the optimizer is differentiable or capturable"
    dtypes = {parameter.dtype for parameter in trained.parameters}
    if len(dtypes) > 1 or not dtypes <= set(ELEMENTS):
        return f"parameters are {', '.join(sorted(str(d) for d in dtypes))}; all must be float32, or all float64"
    if any(parameter.device.type != "cpu" for parameter in trained.parameters):
        return "parameters are on an accelerator"
    if any(not parameter.is_contiguous() for parameter in trained.parameters):
        return "a parameter is not contiguous"
    return ""


def _name(trained: Trained) -> str:
    return type(trained.optimizer).__name__

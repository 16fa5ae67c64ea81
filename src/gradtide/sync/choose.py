"""Which way a model goes, and why."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from gradtide.collective import Group
from gradtide.collective.executors.choose import Strategy, check_name
from gradtide.collective.groups.device_group import DeviceGroup
from gradtide.compress import AUTO
from gradtide.errors import ConfigError
from gradtide.events import Emit
from gradtide.schedule.model import Schedule
from gradtide.store.rules.updates import is_elementwise
from gradtide.sync.alone import Alone
from gradtide.sync.compressed import CompressedReduce, Compression, LeftToOne
from gradtide.sync.compressed.predict import decide, describe
from gradtide.sync.compressed.refuse import check_compression
from gradtide.sync.job import Job
from gradtide.sync.local import Local, LocalOverServers, LocalSteps, OuterState, TogetherFirst
from gradtide.sync.local.inside import InsideHost, join_inside
from gradtide.sync.local.progress import WindowProgress, gather_progress
from gradtide.sync.local.smaller import SmallerChanges, decide_for_meetings
from gradtide.sync.reduce import Reduce
from gradtide.sync.servers import Servers, ServersWay
from gradtide.sync.shared.storages import find_storages, why_not_moved
from gradtide.sync.shared.way import ELEMENTS, SharedParameters
from gradtide.sync.state import alike, compare_models, share_buffers, share_state
from gradtide.sync.trained import Trained, needs_closure
from gradtide.sync.ways import Way

__all__ = [
    "ON_TRIAL",
    "TORCH",
    "TRIAL_STEPS",
    "WRAPPING",
    "Wishes",
    "can_be_shared",
    "check_one_optimizer",
    "choose_way",
    "open_group",
]

TORCH = "torch.distributed"  # sync=: gradients go through torch's own group for the device
_ALL_INSIDE = (
    "all workers are on one host, inside of which every step is taken together: all-reduce in shared memory, then a "
    "step on each worker; Local(within='host') makes a difference between hosts"
)
_NOTHING_BETWEEN = "nothing is compressed, since nothing goes between hosts"
WRAPPING = "in DataParallel(...), or where it begins anew, which all workers do together"
TRIAL_STEPS = 3  # that a program takes with model.step(), editing nothing, before parameters are shared
ON_TRIAL = f"that comes after {TRIAL_STEPS} steps with model.step() in which no gradient or parameter is edited"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user asked for."""

    sync: Strategy | Servers | Local = "auto"
    share_parameters: bool | None = None  # None: where it can be
    overlap: bool = True
    compression: Compression | None = None
    outer: OuterState = field(default_factory=OuterState)  # of local steps
    trial: bool = False  # whether sharing must first be seen to suit the program: it may edit gradients or parameters

    def __post_init__(self) -> None:
        """A mistyped name is refused in one process, too, not only once there are several."""
        sync = self.sync
        if isinstance(sync, str) and (sync in ("bsp", "async", "servers") or sync.startswith("bounded")):
            mode = "bsp" if sync in ("servers", "bounded") else sync
            raise ConfigError(f"sync={sync!r} goes through servers; say sync=gradtide.Servers({mode!r})")
        if isinstance(sync, str) and sync.lower() == "local":
            raise ConfigError(f"sync={sync!r}: say after how many steps workers meet: sync=gradtide.Local(50)")
        if isinstance(sync, str) and sync != TORCH:
            check_name(sync)
        elif not isinstance(sync, str | Path | Schedule | Servers | Local):
            raise ConfigError(
                f"sync={getattr(sync, '__name__', repr(sync))} makes no sense; say a strategy's name ('ring'), a "
                "schedule's file, gradtide.Servers('bsp') or gradtide.Local(50)"
            )


def choose_way(trained: Trained, job: Job, wishes: Wishes, emit: Emit, *, unproven: str = "") -> Way:
    """`unproven`: why parameters may not be shared, though they could be: the program must be seen to leave them and
    their gradients alone between steps."""
    compression = wishes.compression
    if compression is not None:
        check_compression(compression.settings, trained, _kind_of(wishes), shared=wishes.share_parameters)
    if isinstance(wishes.sync, Servers):
        if job.size > 1:
            _check_modules(trained)
        each = wishes.share_parameters is False
        settings = None if compression is None else compression.settings
        return ServersWay(trained, job, wishes.sync, emit, overlap=wishes.overlap, workers_step=each, compress=settings)
    if isinstance(wishes.sync, Local):
        _check_local(trained, wishes)
        job.in_windows, job.window = True, 0 if wishes.sync.within else wishes.sync.every
        if wishes.sync.over is not None:
            return _choose_over_servers(trained, job, wishes.sync, wishes, emit)
    if job.group is None:
        local = wishes.sync if isinstance(wishes.sync, Local) and not wishes.sync.within else None
        if local is not None:
            return _smaller(LocalSteps(trained, job, None, local, wishes.outer, None, emit), trained, job, compression)
        return Alone(emit) if compression is None else LeftToOne(trained, job, compression, emit)
    _check_modules(trained)
    spread = open_group(trained, job, wishes)
    assert spread is not None
    if isinstance(wishes.sync, Local) and not (wishes.sync.within and len(set(job.group.host_of)) == 1):
        return _choose_local(trained, job, wishes, spread, emit)
    beside = spread if isinstance(spread, DeviceGroup) else None
    _begin_alike(trained, spread)
    share_state(trained, job, job.group, spread)
    if isinstance(wishes.sync, Local):
        unused = "" if compression is None else f"; {_NOTHING_BETWEEN}"
        if compression is not None:
            compression.decided = _NOTHING_BETWEEN
        return Reduce(trained, job, spread, None, _ALL_INSIDE + unused, emit, overlap=wishes.overlap)
    note = ""
    if compression is not None:
        settings, note = decide(compression.settings, trained, job.group)
        compression.decided = note or f"compress='auto': {settings}"
        if settings is not None:
            reason = f"{describe(settings, trained, job.group)}; then a step on each worker"
            return CompressedReduce(trained, job, settings, compression, reason, emit, overlap=wishes.overlap)
    way = _choose_whole(trained, job, wishes, emit, beside, unproven)
    way.reason += f"; {note}" if note else ""
    return way


def _choose_whole(
    trained: Trained, job: Job, wishes: Wishes, emit: Emit, beside: DeviceGroup | None, unproven: str
) -> Way:
    """Of whole gradients, at every step."""
    assert job.group is not None
    assert not isinstance(wishes.sync, Servers | Local)
    hindrance = _why_not_shared(trained, job) or unproven
    if wishes.sync == "auto" and wishes.share_parameters is not False and beside is None and not hindrance:
        hindrance = _why_not_moved(trained, job.group)
    if wishes.share_parameters and not unproven and (hindrance or wishes.sync != "auto"):
        raise ConfigError(f"parameters can't be shared: {hindrance or 'that goes with sync=auto alone'}")
    if beside is not None:
        why = "as asked for" if wishes.sync == TORCH else f"parameters are on {beside.device}"
        reason = f"torch.distributed's own group for {beside.device.type}: {why}; then a step on each worker"
        return Reduce(trained, job, beside, None, reason, emit, overlap=wishes.overlap)
    if wishes.sync != "auto":
        reason = f"strategy {wishes.sync}, as asked for"
        return Reduce(trained, job, job.group, wishes.sync, reason, emit, overlap=wishes.overlap)
    if not hindrance and wishes.share_parameters is not False:
        return SharedParameters(
            trained,
            job,
            job.group,
            f"parameters are shared: all {job.size} workers are on one host and {_name(trained)} is elementwise, so "
            "each reduces and updates its own part in one pass over memory",
            emit,
        )
    why = hindrance or "share_parameters=False"
    if job.group.on_one_host:
        reason = f"all-reduce in shared memory, then a step on each worker; parameters are not shared: {why}"
        return Reduce(trained, job, job.group, None, reason, emit, overlap=wishes.overlap)
    reason = f"all-reduce over links between the hosts, then a step on each worker; parameters are not shared: {why}"
    return Reduce(trained, job, job.group, None, reason, emit, overlap=wishes.overlap)


def _choose_over_servers(trained: Trained, job: Job, local: Local, wishes: Wishes, emit: Emit) -> Way:
    if job.size > 1:
        _check_modules(trained)
    if job.elastic is not None and any(map(needs_closure, trained.optimizers)):
        raise ConfigError(
            f"{_name(trained)} steps with a closure, but in a job that may lose or gain workers model.step() is "
            "called; use another optimizer, or leave --min-workers and the like out"
        )
    compress = None if wishes.compression is None else wishes.compression.settings
    if not local.after:
        return LocalOverServers(trained, job, local, emit, compress=compress)
    if job.elastic is not None:
        raise ConfigError(
            "Local(after=...) over servers: who comes in the steps that are taken together finds no parameters there; "
            "leave after= out, or --min-workers and the like"
        )
    return TogetherFirst(trained, job, local, emit, overlap=wishes.overlap, compress=compress)


def open_group(trained: Trained, job: Job, wishes: Wishes) -> Group | DeviceGroup | None:
    """Over which the parameters of all workers go, who have built the same. None: there is one worker."""
    if job.group is None:
        return None
    with job.group.purpose(WRAPPING):
        compare_models(trained, job.group, f"compress={wishes.compression and wishes.compression.settings!r}")
    return _beside(trained, job.group, wishes) or job.group


def _begin_alike(trained: Trained, spread: Group | DeviceGroup) -> None:
    for _, parameter in trained.everything:
        spread.broadcast(parameter.data)
    share_buffers(trained, spread)


def _choose_local(trained: Trained, job: Job, wishes: Wishes, spread: Group | DeviceGroup, emit: Emit) -> LocalSteps:
    local, known = wishes.sync, wishes.outer
    assert isinstance(local, Local)
    assert job.group is not None
    if job.elastic is not None and known.generation != job.generation:
        members = gather_progress(WindowProgress(), job.group)
        if members.under_way and members.steps >= local.after:  # the others are apart, and we have just come
            newcomer = LocalSteps(trained, job, spread, local, known, None, emit)
            _smaller(newcomer, trained, job, wishes.compression)
            newcomer.join(members)
            return newcomer
        if members.under_way:  # those who were there ask here, too: their steps are taken together, and begin anew
            open_group(trained, job, wishes)
    _begin_alike(trained, spread)
    if known.alike:
        share_state(trained, job, job.group, spread)
        steps = torch.tensor([known.steps])
        job.group.broadcast(steps)
        known.steps = int(steps)
    dense = Reduce(trained, job, spread, None, "", emit, overlap=wishes.overlap) if local.after else None
    hosts = None if local.within is None else len(set(job.group.host_of))
    way = LocalSteps(trained, job, spread, local, known, dense, emit)
    _smaller(way, trained, job, wishes.compression, hosts)
    if local.within is not None:
        known.inside = known.inside or join_inside(job.group)
        if known.inside is not None:
            own = DeviceGroup(known.inside, spread.device) if isinstance(spread, DeviceGroup) else known.inside
            reduce = Reduce(trained, job, own, None, "", emit, overlap=wishes.overlap)
            way.inside = InsideHost(job, known.inside, reduce)
    return way


def _smaller(
    way: LocalSteps, trained: Trained, job: Job, compression: Compression | None, hosts: int | None = None
) -> LocalSteps:
    """With what is compressed where workers meet, or so many hosts do."""
    if compression is not None:
        settings, note = decide_for_meetings(compression.settings, trained, job, hosts)
        compression.decided = note or f"compress='auto': {settings}"
        if settings is not None:
            way.make_smaller(SmallerChanges(trained, way.room, settings, compression, hosts=hosts))
        way.reason += f"; {note}" if note else ""
    return way


def _kind_of(wishes: Wishes) -> str:
    """Which way was asked for."""
    if isinstance(wishes.sync, Local) and wishes.sync.over is not None:
        return "local over servers"
    kinds = {Servers: "servers", Local: "local"}
    return kinds.get(type(wishes.sync), str(wishes.sync))


def _check_modules(trained: Trained) -> None:
    """Some modules change their parameters in forward, each worker's by its own part of the batch."""
    for name, module in trained.module.named_modules():
        if getattr(module, "max_norm", None) is not None and isinstance(module, nn.Embedding | nn.EmbeddingBag):
            raise ConfigError(
                f"{name or 'the model'} has max_norm=, so its forward changes its weight, on each worker other rows; "
                "leave max_norm out, and renormalise the weight in `with model.edit():` after a step"
            )


def _check_local(trained: Trained, wishes: Wishes) -> None:
    if isinstance(wishes.sync, Local) and wishes.sync.over is not None:
        check_one_optimizer(trained)
    if wishes.compression is not None and isinstance(wishes.sync, Local):
        _check_compressed_local(wishes.sync, wishes.compression)
    if wishes.share_parameters:
        raise ConfigError("with Local each worker has parameters of its own; leave share_parameters= out")


def check_one_optimizer(trained: Trained) -> None:
    """For local steps over servers."""
    if len(trained.optimizers) > 1:
        raise ConfigError(
            "Local over servers counts the steps of one optimizer; give one for all parameters, in groups if need be"
        )


def _check_compressed_local(local: Local, compression: Compression) -> None:
    text = f"compress={str(compression.settings)!r}"
    if compression.settings.codec == "onebit" and local.rule.name in ("adam", "adamw"):
        raise ConfigError(
            f"{text} does not go with an outer {local.rule.name}, whose second moments would be those of the signs; "
            "use sgd, or int8"
        )


def _beside(trained: Trained, group: Group, wishes: Wishes) -> DeviceGroup | None:
    """Parameters on an accelerator go through torch.distributed's group for it; on a CPU they do if asked to."""
    devices = {parameter.device for _, parameter in trained.everything}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ConfigError(f"parameters are on {names}; a model must be on one device, or be split by `gradtide.fit`")
    (device,) = devices
    if device.type == "cpu" and wishes.sync != TORCH:
        return None
    if wishes.sync not in ("auto", TORCH) and not isinstance(wishes.sync, Local):
        raise ConfigError(f"parameters are on {device}, where sync={wishes.sync!r} does not go; leave it out")
    return DeviceGroup(group, device)


def can_be_shared(trained: Trained, job: Job, wishes: Wishes) -> bool:
    """Whether sharing is open, if the program suits it."""
    if wishes.sync != "auto" or wishes.share_parameters is not None or job.group is None:
        return False
    if wishes.compression is not None and wishes.compression.settings.codec != AUTO:
        return False
    return not _why_not_shared(trained, job)


def _why_not_shared(trained: Trained, job: Job) -> str:
    """What keeps parameters from being shared; nothing if they can be."""
    assert job.group is not None
    if not job.group.on_one_host:
        return "the workers are on several hosts"
    if trained.why_workers_step:
        return trained.why_workers_step
    if not is_elementwise(trained.optimizer):
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


def _why_not_moved(trained: Trained, group: Group) -> str:
    """Each rank's parameters may lie otherwise in memory, and all must be able to move theirs."""
    own = why_not_moved(trained)
    layout = own or repr([storage.members for storage in find_storages(trained)])
    return own if alike(layout, group) else own or "on another worker they lie in memory otherwise"


def _name(trained: Trained) -> str:
    return type(trained.optimizer).__name__

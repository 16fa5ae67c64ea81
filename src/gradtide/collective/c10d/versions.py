"""What differs between versions of torch, all in here.

2.13   a group written in Python gets all devices: of "cpu:gradtide,cuda:nccl" torch forgets the cuda part, so that
       is refused
2.14   a Backend can be written in Python too: a group has one for each device, and gradtide's is the CPU's
2.15   torch asks every group's backend for its name (its flight recorder does), so a group has a Backend to ask

A group of gradtide alone is a ProcessGroup on each of them, and not a Backend in one of torch's: what torch's own hands
on of a Work written in Python is wait() and get_future(). is_completed() would be False for ever, exception() None, and
nobody could receive from anybody; and a Backend keeps the rank and size that it was made with, so its members could not
change. In a group of several backends there is no other way.
"""

import sys
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from gradtide.collective.c10d.compiling import never_compiled
from gradtide.collective.c10d.errors import BadArgument
from gradtide.environment import read_environment

__all__ = ["BACKENDS_IN_PYTHON", "as_backend", "introduce", "is_asked_as_backend", "no_error"]

_c10d: Any = vars(torch._C)["_distributed_c10d"]
_OURS = "gradtide"
_OPERATIONS = (
    "allgather allgather_coalesced all_gather_single all_gather_single_coalesced allreduce allreduce_coalesced "
    "all_to_all_single alltoall barrier broadcast gather recv reduce reduce_scatter reduce_scatter_single "
    "reduce_scatter_single_coalesced scatter send abort shutdown set_timeout "
    "_get_sequence_number_for_group _set_sequence_number_for_group"
)
BACKENDS_IN_PYTHON = "supports_reconfigure" in vars(_c10d.Backend)  # both came with 2.14


def is_asked_as_backend() -> bool:
    """Whether the group that torch is making is one of torch's own, because it has other backends beside gradtide's, or
    because torch is to look for NaN, which it does around backends alone. Refuses what can't be."""
    asked = _asked_for()
    wrong = [device for device, backend in asked.items() if backend == _OURS and device != "cpu"]
    if wrong:
        raise BadArgument(
            f"the gradtide backend takes CPU tensors, and {wrong[0]}:gradtide was asked for; use 'gradtide', or "
            f"'cpu:gradtide,{wrong[0]}:' and a backend of that device"
        )
    others = [f"{device}:{backend}" for device, backend in asked.items() if backend != _OURS]
    if others and not BACKENDS_IN_PYTHON:
        raise BadArgument(
            f"torch {torch.__version__} would forget {', '.join(others)} beside cpu:gradtide, which 2.14 and later do "
            "not; use init_process_group('gradtide'), and "
            f"new_group(backend='{others[0].partition(':')[2]}') for the other device"
        )
    return bool(others) or (BACKENDS_IN_PYTHON and read_environment().nan_check)


def _asked_for() -> dict[str, str]:
    """The backend of each device. torch does not tell who makes a backend what else the group has: it stands in the
    frame that calls."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        config = frame.f_locals.get("backend_config")
        if isinstance(config, vars(dist)["BackendConfig"]):
            return dict(config.get_device_backend_map())
        frame = frame.f_back
    return {}


def introduce(group: Any) -> None:
    """Lets torch's C++ part know a group of gradtide alone by its Backend, where it asks for one."""
    if BACKENDS_IN_PYTHON:
        kind = vars(dist)["ProcessGroup"].BackendType.CUSTOM
        group._register_backend(torch.device("cpu"), kind, _Introduced(group.rank(), group.size()))
        group._set_default_backend(kind)


def no_error() -> Any:
    """What get_error() says, which torch asks from 2.14 on."""
    return _c10d.ErrorType.SUCCESS


def as_backend(group: Any) -> Any:
    """A Backend that does what a group of gradtide's does, for torch's own group of several backends."""
    return _Backend(group)


if BACKENDS_IN_PYTHON:

    class _Introduced(_c10d.Backend):  # type: ignore[misc]
        """What torch finds where it looks for a group's backend. The group itself does the work."""

        def getBackendName(self) -> str:
            return _OURS

        @property
        def options(self) -> Any:  # the inherited one would ask itself for ever
            return self.Options(_OURS)

    class _Backend(_Introduced):
        supports_coalescing = supports_splitting = False

        def __init__(self, group: Any) -> None:
            super().__init__(group.rank(), group.size())
            self._group = group

        def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
            raise BadArgument(
                "in a group of several backends torch forgets from whom it received; name the source, or receive in "
                "new_group(backend='gradtide')"
            )

        def allreduce_sparse(self, tensors: Any, opts: Any = None) -> Any:
            return self._group.allreduce(tensors, opts)

        def get_error(self) -> Any:
            return self._group.get_error()

    def _hand_on(names: Iterable[str]) -> None:
        def handing_on(name: str) -> Any:
            def operation(self: Any, *arguments: Any) -> Any:
                return getattr(self._group, name)(*arguments)

            operation.__name__ = name
            return operation

        for name in names:
            setattr(_Backend, name, handing_on(name))

    _hand_on(_OPERATIONS.split())
    never_compiled(_Backend)

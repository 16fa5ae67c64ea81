"""Makes the process group that torch asks for. torch gives it a store that this group alone uses."""

from typing import Any

from gradtide.collective.c10d.errors import as_torch_error
from gradtide.collective.c10d.process_group import ProcessGroup
from gradtide.collective.group import Group
from gradtide.collective.joining import address_seen
from gradtide.errors import GradtideError

__all__ = ["create"]


def create(settings: Any, options: Any) -> ProcessGroup:
    """settings: what torch knows of the group. options: pg_options, of which there are none."""
    store, rank, size = settings.store, settings.group_rank, settings.group_size
    timeout_s = settings.timeout.total_seconds()
    name = f"process group {settings.group_id}"
    try:
        group = Group.from_store(name, store, rank, size, lambda: address_seen(store), timeout_s=timeout_s)
    except GradtideError as error:
        raise as_torch_error(error) from None
    return ProcessGroup(group, store)

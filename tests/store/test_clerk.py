"""What a coordinator tells while its journal can't be written."""

import pytest

from gradtide.errors import OutputError
from gradtide.store.coordinator.clerk import Clerk
from gradtide.store.coordinator.membership import Membership, Record
from gradtide.store.wire.messages import Beat, Decree, Join, Table, Welcome

pytestmark = pytest.mark.quick


class Disk:
    full = False

    def write(self, record: Record) -> None:
        if self.full:
            raise OutputError("no room")


def test_with_a_full_disk_who_knows_less_than_the_journal_still_hears_of_it() -> None:
    """A client that had missed the last table waited for it until there was room again: there was a newer one by then,
    which was in no journal."""
    disk, membership = Disk(), Membership()
    clerk = Clerk(membership, disk.write)
    for name in ("s0", "s1"):
        clerk.tellable(membership.hear(Join("server", name, 1, f"{name}:1", expected=2, replicas=1), 0.0), 0.0)
    clerk.tellable(membership.hear(Join("worker", "w0", 5, worker=0), 0.0), 0.0)
    written = membership.written
    assert written is not None
    assert written.table is not None

    disk.full = True
    told = clerk.tellable(membership.lost("s1", 1), 0.1)
    assert membership.epoch == written.table.epoch + 1, "it is decided, and must not be told"
    assert {tell.message for tell in told if isinstance(tell.message, Table)} <= {written.table}

    told = clerk.tellable(membership.hear(Beat("w0", 5), 0.2), 0.2)
    assert {tell.name for tell in told} == {"w0"}
    assert [tell.message for tell in told if isinstance(tell.message, Table)] == [written.table]
    assert [tell.message for tell in told if isinstance(tell.message, Decree)] == (
        [written.decree] if written.decree else []
    )
    assert any(isinstance(tell.message, Welcome) and tell.message.accepted for tell in told), "its life goes on"

    disk.full = False
    told = clerk.tellable(membership.hear(Beat("w0", 5), 1.0), 1.0)
    assert [tell.message.epoch for tell in told if isinstance(tell.message, Table)] == [written.table.epoch + 1]


def test_who_is_new_is_not_welcome_before_that_is_written() -> None:
    disk, membership = Disk(), Membership()
    clerk = Clerk(membership, disk.write)
    clerk.tellable(membership.hear(Join("server", "s0", 1, "s0:1", expected=1), 0.0), 0.0)
    disk.full = True
    comer = Join("server", "s1", 0, "s1:1", token=7)
    assert not [t for t in clerk.tellable(membership.hear(comer, 0.1), 0.1) if isinstance(t.message, Welcome)]
    disk.full = False
    told = clerk.tellable(membership.hear(comer, 1.0), 1.0)
    assert [t.message.token for t in told if isinstance(t.message, Welcome)] == [7]

"""The coordinator's journal on disk."""

import pytest

from gradtide.errors import DataError, OutputError
from gradtide.store.coordinator.journal import Journal
from gradtide.store.coordinator.membership import Membership, Record
from gradtide.store.wire.messages import Join

pytestmark = pytest.mark.quick


def record_of_a_store() -> Record:
    membership = Membership()
    for i in range(3):
        membership.hear(Join("server", f"s{i}", 1, f"s{i}", expected=3, replicas=1), 0.0)
    record = membership.take_unwritten()
    assert record is not None
    return record


def test_what_was_written_last_is_read(tmp_path):
    record = record_of_a_store()
    with Journal(tmp_path / "journal") as journal:
        assert journal.read() is None
        journal.write(Record(1, 0, None, None))
        journal.write(record)
        assert journal.read() == record
    with Journal(tmp_path / "journal") as again:
        assert again.read() == record
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o600


def test_a_write_that_was_broken_off_leaves_what_was_there(tmp_path):
    record = record_of_a_store()
    with Journal(tmp_path / "journal") as journal:
        journal.write(record)
        (tmp_path / "journal.new").write_bytes(b"half of someth")
        assert journal.read() == record
        journal.write(record)


def test_a_journal_has_one_coordinator_at_a_time(tmp_path):
    with Journal(tmp_path / "journal"), pytest.raises(OutputError, match="another coordinator"):
        Journal(tmp_path / "journal")


def test_a_file_that_is_no_journal_is_named(tmp_path):
    (tmp_path / "journal").write_text("something else")
    with Journal(tmp_path / "journal") as journal, pytest.raises(DataError, match="is no journal"):
        journal.read()


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(OutputError, match="can't be opened"):
        Journal(tmp_path / "missing" / "journal")

"""Who asks a store again and again keeps its connections; one that broke is made anew."""

import pytest
from operated import Operated

from gradtide.dashboard.sources import StoreSource
from gradtide.errors import PeerLost, PeerTimeout
from gradtide.store.local.status import StatusAsker, ask_status, servers_of
from gradtide.transport.authenticate import listen, parse_address
from gradtide.transport.keys import Credentials
from store_processes import wait_until

pytestmark = pytest.mark.quick


def test_the_next_question_goes_over_the_connection_of_the_last(tmp_path):
    with Operated(tmp_path) as store, StatusAsker() as asker:
        store.coordinator()
        store.server("s0")
        wait_until(lambda: servers_of(asker.inspect(store.address)))
        (server,) = servers_of(asker.inspect(store.address))
        assert asker.health(server) is not None
        (tmp_path / "c").rename(tmp_path / "c away")  # now nobody can connect
        (tmp_path / "s0").rename(tmp_path / "s0 away")
        with pytest.raises(PeerLost):
            ask_status(store.address)
        assert servers_of(asker.inspect(store.address)) == (server,)
        assert asker.health(server) is not None


def test_a_coordinator_that_was_started_again_answers_the_next_question(tmp_path):
    with Operated(tmp_path) as store, StatusAsker() as asker:
        store.coordinator()
        before = asker.inspect(store.address).term
        store.stop("coordinator")
        with pytest.raises(PeerLost):
            asker.inspect(store.address)
        store.coordinator()
        assert asker.inspect(store.address).term > before


def test_the_dashboard_sees_a_server_come_and_go_at_its_next_looks(tmp_path):
    source = StoreSource(f"unix:{tmp_path}/c", None)
    with Operated(tmp_path) as store:
        store.coordinator()
        store.server("s0", replicas=0)
        wait_until(lambda: source.ask().servers.get("s0") is not None)
        store.stop("s0")
        wait_until(lambda: source.ask().servers["s0"] is None)
        store.server("s0", replicas=0)
        wait_until(lambda: source.ask().servers["s0"] is not None)
    assert "no gradtide server" in source.ask()
    source.close()


def test_who_listens_and_says_nothing_is_told_with_a_time_that_one_can_read(tmp_path):
    tmp_path.chmod(0o700)
    address = f"unix:{tmp_path}/c"
    silent = pytest.raises(PeerTimeout, match=r"within 0\.\d{1,3} s; is it gradtide")
    with listen(parse_address(address), Credentials()), StatusAsker(timeout_s=0.1) as asker, silent:
        asker.inspect(address)

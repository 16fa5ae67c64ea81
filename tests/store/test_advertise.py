"""Where a server says that it is reached."""

import socket
from dataclasses import replace

import pytest

from gradtide.errors import ConfigError
from gradtide.store.coordinator.assignment import assign_first, host_of
from gradtide.store.local.advertise import default_name, find_advertised
from gradtide.store.wire.messages import ServerEntry
from gradtide.transport.authenticate import Address, parse_address

pytestmark = pytest.mark.quick
HERE = Address(host="127.0.0.1", port=7001)
EVERYWHERE = Address(host="0.0.0.0", port=7001)


@pytest.mark.parametrize("advertise", ["tcp:127.0.0.1:9", "127.0.0.1:9"])
def test_an_address_is_the_same_with_and_without_its_kind(advertise):
    assert str(find_advertised(advertise, EVERYWHERE, HERE)) == "tcp:127.0.0.1:9"


def test_who_listens_everywhere_is_reached_where_its_packets_to_the_coordinator_leave():
    assert find_advertised("", EVERYWHERE, HERE) == Address(host="127.0.0.1", port=7001)
    assert find_advertised("tcp:localhost:0", EVERYWHERE, HERE) == Address(host="localhost", port=7001)
    assert find_advertised("", HERE, HERE) == HERE
    assert str(find_advertised("localhost:9", replace(EVERYWHERE, tls=True), HERE)) == "tls:localhost:9"


@pytest.mark.parametrize(
    ("advertise", "coordinator", "text"),
    [
        ("tcp:0.0.0.0:7001", HERE, "no address that others can reach"),
        ("tcp:no.such.machine.invalid:7001", HERE, "can't be resolved"),
        ("somewhere", HERE, "is no address"),
        ("", Address(path="/c"), "say by which one it is reached"),
    ],
)
def test_what_nobody_could_reach_is_refused(advertise, coordinator, text):
    with pytest.raises(ConfigError, match=text):
        find_advertised(advertise, EVERYWHERE, coordinator)


def test_a_name_is_the_machine_and_the_port():
    assert default_name(parse_address("tcp:10.0.0.7:7001")) == "10.0.0.7:7001"
    assert default_name(EVERYWHERE) == f"{socket.gethostname()[:24]}:7001"
    names = {default_name(parse_address(f"unix:/run/{folder}/s0")) for folder in ("a", "b")}
    assert all(name.startswith(f"{socket.gethostname()[:24]}:s0-") for name in names)
    assert len(names) == 2


@pytest.mark.parametrize("kinds", [("tcp:", "tcp:"), ("tcp:", ""), ("tls:", "tcp:")])
def test_copies_are_on_different_machines(kinds):
    told = [str(parse_address(f"{kind}10.0.0.{i}:70{j}")) for i in range(3) for j, kind in enumerate(kinds)]
    servers = [ServerEntry(f"s{i}", address, 1) for i, address in enumerate(told)]
    first = assign_first(servers, 1)
    hosts = [host_of(server) for server in servers]
    assert all(hosts[owner] != hosts[other] for owner, (other,) in zip(first.owners, first.backups, strict=True))


def test_all_names_of_this_machine_are_one_machine():
    here = ("unix:/s0", "tcp:127.0.0.1:7001", "tcp:localhost:7002", "tcp:[::1]:7003", "tcp:127.0.0.2:7004")
    assert {host_of(ServerEntry("s", address, 1)) for address in here} == {""}

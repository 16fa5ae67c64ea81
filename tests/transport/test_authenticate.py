import os

import pytest

from gradtide.errors import AuthenticationError, ConfigError, PeerLost, PeerTimeout
from gradtide.transport.authenticate import (
    Address,
    Handshake,
    dial,
    listen,
    make_secret_file,
    parse_address,
    read_secret_file,
)


def test_addresses_are_read_back_as_they_are_written():
    for text in ("unix:/tmp/x", "tcp:127.0.0.1:80", "tcp:[::1]:80"):
        assert str(parse_address(text)) == text
    assert str(parse_address("localhost:1")) == "tcp:localhost:1"


@pytest.mark.parametrize("text", ["", "unix:", "host", "host:", ":1", "host:x", "host:70000", "unix:/" + 200 * "x"])
def test_what_is_no_address_is_told_in_one_line(text):
    with pytest.raises(ConfigError) as error:
        parse_address(text)
    assert "\n" not in str(error.value)


def test_a_secret_file_is_made_once_and_for_its_owner_alone(tmp_path):
    path = tmp_path / "secret"
    make_secret_file(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(read_secret_file(path)) == 32
    with pytest.raises(ConfigError, match="File exists"):
        make_secret_file(path)


def test_a_secret_that_others_can_read_or_of_another_length_is_refused(tmp_path):
    path = tmp_path / "secret"
    make_secret_file(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_secret_file(path)
    path.chmod(0o600)
    path.write_bytes(os.urandom(31))
    with pytest.raises(ConfigError, match="32 random bytes"):
        read_secret_file(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_secret_file(tmp_path / "nothing")


def test_tcp_needs_a_secret_and_stays_on_loopback_unless_told_otherwise():
    with pytest.raises(ConfigError, match="needs a secret file"):
        listen(Address(host="127.0.0.1", port=0), b"")
    with pytest.raises(ConfigError, match="--insecure-network"):
        listen(Address(host="0.0.0.0", port=0), bytes(32))
    listen(Address(host="0.0.0.0", port=0), bytes(32), insecure_network=True).close()


def test_a_unix_socket_in_a_folder_that_others_can_enter_is_refused(tmp_path):
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigError, match="0700"):
        listen(Address(path=f"{tmp_path}/x"), b"")


def test_nobody_there_and_somebody_silent_are_told_apart(tmp_path):
    tmp_path.chmod(0o700)
    address = Address(path=f"{tmp_path}/x")
    with pytest.raises(PeerLost, match="no gradtide server at"):
        dial(address, b"", "client")
    with listen(address, b""), pytest.raises(PeerTimeout, match="did not answer within"):
        dial(address, b"", "client", timeout_s=0.05)


def test_a_listener_ends_the_talk_with_whoever_speaks_something_else():
    with pytest.raises(AuthenticationError):
        Handshake(bytes(32), "server").feed(b"GET / HTTP/1.1\r\n")


def test_a_proof_is_good_for_one_connection_only():
    """Replaying what was heard on one connection fails on the next, because its nonce is another."""
    first, second = Handshake(bytes(32), "server"), Handshake(bytes(32), "server")
    hello = b"gradtide\x01client " + bytes(32)
    answers = [first.feed(hello), second.feed(hello)]
    assert answers[0] != answers[1]
    with pytest.raises(AuthenticationError, match="does not know the secret"):
        second.feed(first._expected)


def test_a_listeners_own_proof_can_not_be_sent_back_to_it():
    handshake = Handshake(bytes(32), "server")
    answer = handshake.feed(b"gradtide\x01server " + bytes(32))
    with pytest.raises(AuthenticationError, match="does not know the secret"):
        handshake.feed(answer[-32:])

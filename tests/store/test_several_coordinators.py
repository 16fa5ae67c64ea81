"""A list of coordinators in which an address is wrong: whoever is right is found all the same."""

import socket
import threading

import pytest
import torch

import gradtide
from gradtide.errors import AuthenticationError, PeerLost
from gradtide.store.local.roles import Role, make_process
from gradtide.store.local.status import inspect
from gradtide.transport import authenticate
from gradtide.transport.authenticate import dial, parse_address
from gradtide.transport.keys import Credentials


class Running:
    """A process of the store in a thread."""

    def __init__(self, role: Role) -> None:
        self.process = make_process(role, Credentials(name=role.name))
        self.thread = threading.Thread(target=self.process.run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.process.stop()
        self.thread.join(30)


@pytest.fixture
def something_else(tmp_path):
    """The address of what is no gradtide."""
    tmp_path.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "else"))
        listener.listen()
        thread = threading.Thread(target=_greet_all, args=(listener,), daemon=True)
        thread.start()
        yield f"unix:{tmp_path}/else"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(30)


def _greet_all(listener: socket.socket) -> None:
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        _greet(sock)


def _greet(sock: socket.socket) -> None:
    with sock:
        sock.sendall(b"220 mail.example ESMTP, and so on\r\n" * 9)


def test_an_address_where_something_else_listens_keeps_nobody_from_the_coordinator(something_else, tmp_path):
    right, server = f"unix:{tmp_path}/c", f"unix:{tmp_path}/s"
    address = f"{something_else}, {server},{right}"
    running = [
        Running(Role(role="coordinator", name="coordinator", address=right)),
        Running(Role(role="server", name="s", address=server, coordinator=address, expected=1)),
    ]
    try:
        with gradtide.connect(address) as store:
            store.init({"w": torch.zeros(2)})
            assert store.pull("w").tolist() == [0, 0]
        assert [peer.name for peer in inspect(right).peers if peer.role == "server"] == ["s"]
        assert inspect(f"{something_else},{right}").table is not None
    finally:
        for one in reversed(running):
            one.stop()


@pytest.mark.quick
def test_who_refused_is_named_before_who_was_not_there(something_else, tmp_path):
    with pytest.raises(AuthenticationError, match="is no gradtide; check the address"):
        gradtide.connect(f"{something_else},unix:{tmp_path}/nobody")
    with pytest.raises(AuthenticationError, match="is no gradtide; check the address"):
        inspect(f"{something_else},{something_else}")


@pytest.mark.quick
def test_what_was_said_before_the_line_was_closed_is_heard(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    connect = authenticate._connect
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "else"))
        listener.listen()

        def connect_and_be_greeted_and_left(*args):
            sock = connect(*args)
            _greet(listener.accept()[0])  # closed before the dialler sends its first byte
            return sock

        monkeypatch.setattr(authenticate, "_connect", connect_and_be_greeted_and_left)
        with pytest.raises(AuthenticationError, match="is no gradtide; check the address"):
            dial(parse_address(f"unix:{tmp_path}/else"), Credentials(), "worker")


@pytest.mark.quick
def test_a_line_that_is_gone_before_anybody_looks_at_it_is_told_in_one_line(monkeypatch):
    """As one that is reset between its connection and the first question about it."""
    monkeypatch.setattr(authenticate, "_connect", lambda *args: socket.socket())
    with pytest.raises(PeerLost, match="closed the connection as soon as it was made"):
        dial(parse_address("tcp:127.0.0.1:7000"), Credentials(), "worker")


@pytest.mark.quick
def test_a_host_that_no_name_can_be_is_told_in_one_line():
    with pytest.raises(PeerLost, match="no name of a host"):
        dial(parse_address("tcp:a..b:7000"), Credentials(), "worker")

import socket
import threading

import pytest

from gradtide.errors import AuthenticationError, PeerLost
from gradtide.testing.check_transport import check_transport
from gradtide.transport.authenticate import Address, Line, dial, listen
from gradtide.transport.connection import UNLIMITED, Connection, TlsConnection, open_connection
from gradtide.transport.handshake import Handshake
from gradtide.transport.keys import Credentials, Key
from gradtide.transport.tls import TlsListener

pytestmark = pytest.mark.quick

ROOT = Credentials((Key(bytes(range(32))),))
NOBODY = Credentials()


def accept(listener, credentials, tls=None):
    """The listener's side of one connection, in a few lines: what service.py does for many at once."""
    sock, _ = listener.accept()
    handshake = Handshake(credentials, "server", tls)
    while not handshake.done:
        data = sock.recv(4096)
        if not data:
            sock.close()
            raise PeerLost("gone")
        sock.sendall(handshake.feed(data))
    return Line(sock, handshake.identity, handshake.tls)


def failure_of(work):
    try:
        work()
    except PeerLost as error:
        return error


def pair_over(address, credentials, credit_bytes, tls=None):
    with listen(address, credentials) as listener:
        if not address.path:
            address = Address(host=address.host, port=listener.getsockname()[1], tls=address.tls)
        accepted = []
        thread = threading.Thread(target=lambda: accepted.append(accept(listener, credentials, tls)))
        thread.start()
        sender = dial(address, credentials, "worker")
        thread.join()
    return open_connection(sender, "the server", credit_bytes), open_connection(accepted[0], "the client")


def test_unix_sockets_keep_the_contract(tmp_path):
    tmp_path.chmod(0o700)
    numbers = iter(range(100))
    check_transport(lambda credit: pair_over(Address(path=f"{tmp_path}/{next(numbers)}"), NOBODY, credit))


def test_tcp_sockets_keep_the_contract():
    check_transport(lambda credit: pair_over(Address(host="127.0.0.1", port=0), ROOT, credit))


def test_tcp_sockets_with_tls_keep_the_contract():
    tls, address, kinds = TlsListener(), Address(host="127.0.0.1", port=0, tls=True), set()

    def connect(credit):
        pair = pair_over(address, ROOT, credit, tls)
        kinds.update(map(type, pair))
        return pair

    check_transport(connect)
    assert kinds == {TlsConnection}


def test_socket_pairs_keep_the_contract():
    def connect(credit):
        a, b = socket.socketpair()
        return Connection(a, "the server", credit), Connection(b, "the client")

    check_transport(connect)


def test_the_contract_notices_a_transport_that_ignores_credit():
    def connect(credit):
        a, b = socket.socketpair()
        return Connection(a, "the server", UNLIMITED), Connection(b, "the client")

    with pytest.raises(AssertionError):
        check_transport(connect)


def test_a_listener_that_does_not_know_the_secret_is_found_out(tmp_path):
    address, failed = Address(host="127.0.0.1", port=0), []
    with listen(address, ROOT) as listener:
        address = Address(host="127.0.0.1", port=listener.getsockname()[1])
        thread = threading.Thread(target=lambda: failed.append(failure_of(lambda: accept(listener, ROOT))))
        thread.start()
        with pytest.raises(AuthenticationError, match="wrong secret"):
            dial(address, Credentials((Key(bytes(32)),)), "worker")
        thread.join()
    assert isinstance(failed[0], PeerLost)

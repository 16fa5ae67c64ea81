"""TLS, and everybody who would like to be in between: refused, and named at the end that can know."""

import contextlib
import hmac
import logging
import os
import socket
import subprocess
import time

import pytest
from middle import LATE_S, ROOT, echoing, ends_tls, in_between, meddling

from gradtide.errors import AuthenticationError, CommunicationError, ConfigError, FrameError, PeerLost
from gradtide.transport.authenticate import Address, dial
from gradtide.transport.connection import TlsConnection, open_connection
from gradtide.transport.handshake import Challenge, Handshake, Identity, greeting
from gradtide.transport.keys import Credentials, Key
from gradtide.transport.tls import TlsListener, call_tls

WORKER = Credentials((Key(ROOT.keys[0].derive("worker", "worker-3"), "worker", "worker-3"),))


def reach(address, credentials=WORKER):
    connection = open_connection(dial(address, credentials, "worker"), "the server")
    connection.heard = []
    connection.on_messages(lambda message: connection.heard.append(bytes(message)), lambda: None)
    return connection


def say(connection, message):
    """What comes back."""
    connection.heard.clear()
    connection.send(message)
    while not connection.heard:
        connection.wait(LATE_S, "an echo")
        connection.flush()
        connection.receive()
    return connection.heard[0]


def wait_for(something, what):
    deadline_s = time.monotonic() + LATE_S
    while not something():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.005)


def test_what_passes_by_can_be_passed_on_and_not_be_read():
    passed = []
    with echoing() as echo, in_between(echo.address, meddling(lambda way, data: passed.append(data) or data)) as middle:
        connection = reach(middle.address)
        assert isinstance(connection, TlsConnection)
        assert say(connection, b"a gradient of great value") == b"a gradient of great value"
        assert connection.identity == Identity("server", "s0")
        assert echo.met == [Identity("worker", "worker-3")]
        connection.close()
    said = b"".join(passed)
    assert len(said) > 1000
    for secret in (b"of great value", b"worker-3", WORKER.keys[0].secret):
        assert secret not in said


def test_who_ends_tls_with_a_certificate_of_its_own_is_found_out():
    heard = []
    with echoing() as echo, in_between(echo.address, ends_tls(TlsListener(), heard)) as middle:
        with pytest.raises(AuthenticationError, match="somebody in between passes on, or changes, what is said"):
            reach(middle.address)
        assert len(heard) == 2, "a hello and an answer, and no proof: nothing to go on with"
        assert echo.met == []


def test_a_proof_for_another_certificate_is_refused_by_who_listens_as_well():
    """Of a dialler who does not look: the one in between gets a proof, but for the certificate that it has shown."""
    real, shown = TlsListener(), TlsListener()
    challenge, handshake, tls = Challenge(WORKER, "worker", True, "x"), Handshake(ROOT, "server", real), call_tls()
    answer = handshake.feed(greeting(True) + tls.shake(b""))
    challenge.hear_greeting(answer[:16])
    handshake.feed(tls.shake(answer[16:]))
    covered = [real.certificate_hash, shown.certificate_hash]
    tls.feed(memoryview(handshake.feed(tls.encrypt(challenge.hello))))
    room = memoryview(bytearray(1000))
    answer = bytes(room[: tls.decrypt_into(room)])
    with pytest.raises(AuthenticationError, match="could not prove itself on this connection"):
        challenge.prove(answer, covered[1], local=False)
    listens = challenge._greeting + challenge.hello + answer[:-32]
    proof = _proof_over(WORKER.keys[0].secret, listens + covered[1])
    with pytest.raises(AuthenticationError, match="could not prove itself on this connection"):
        handshake.feed(tls.encrypt(proof))


def _proof_over(key, covered):
    return hmac.digest(key, b"dials" + covered, "sha256")


def test_what_was_said_once_is_worth_nothing_when_it_is_said_again(caplog):
    said = []

    def remember(way, data):
        if way == "up":
            said.append(data)
        return data

    with echoing() as echo, caplog.at_level(logging.WARNING):
        with in_between(echo.address, meddling(remember)) as middle:
            connection = reach(middle.address)
            say(connection, b"once")
            connection.close()
        with socket.create_connection((echo.address.host, echo.address.port), LATE_S) as again:
            again.sendall(b"".join(said))
            with contextlib.suppress(ConnectionError):
                while again.recv(4096):
                    pass
        wait_for(lambda: "refused" in caplog.text, "the log names it")
        assert "from 127.0.0.1: no TLS 1.3 with it" in caplog.text
        assert len(echo.met) == 1


def test_tls_can_not_be_taken_away(caplog):
    """By telling the listener that none was asked for, or the dialler that none is there."""

    def ask_for_none(way, data):
        return data[:9] + b"\0" + data[10:] if way == "up" and data.startswith(b"gradtide") else data

    def offer_none(near, far):
        hello = near.recv(4096)
        far.sendall(hello[:9] + b"\0" + hello[10:16])
        near.sendall(b"gradtide\x02".ljust(16, b"\0") + bytes(200))
        near.recv(4096)

    with echoing() as echo, caplog.at_level(logging.WARNING):
        for talk, match in ((meddling(ask_for_none), "lets nobody in unencrypted"), (offer_none, "no TLS 1.3 with it")):
            with in_between(echo.address, talk) as middle, pytest.raises(AuthenticationError, match=match):
                reach(middle.address)
        assert echo.met == []
        assert "it came unencrypted" in caplog.text


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("change", ["flip a bit", "put something in", "send it twice"])
def test_what_is_changed_later_ends_the_connection_and_is_named(way, change):
    armed = []

    def meddle(passing, data):
        if not armed or passing != way:
            return data
        return {"flip a bit": flip(data), "put something in": data + os.urandom(64), "send it twice": data * 2}[change]

    with echoing() as echo, in_between(echo.address, meddling(meddle)) as middle:
        connection = reach(middle.address)
        assert say(connection, b"before") == b"before"
        armed.append(True)
        if way == "down":
            with pytest.raises(FrameError, match=r"changed on the way .*; somebody may be in between"):
                say_until_lost(connection)
        else:
            with pytest.raises(PeerLost):
                say_until_lost(connection)
            wait_for(lambda: echo.lost, "the service notices")
            assert "changed on the way" in str(echo.lost[0])
        connection.close()


def flip(data):
    return data[:-20] + bytes([data[-20] ^ 1]) + data[-19:]


def say_until_lost(connection):
    for _ in range(3):
        say(connection, b"after")


def test_strangers_who_drip_or_talk_rubbish_hold_nobody_up():
    openings = (b"", b"grad", b"gradtide\x02\x01", greeting(True), greeting(True) + call_tls().shake(b"")[:40])
    rubbish = (
        os.urandom(500),
        b"GET / HTTP/1.1\r\n\r\n",
        greeting(True) + os.urandom(3000),
        b"\x16\x03\x01\x02\x00\x01",
    )
    with contextlib.ExitStack() as stack, echoing(handshake_s=0.3) as echo:
        strangers = []
        for opening in 10 * (*openings, *rubbish):
            stranger = stack.enter_context(socket.create_connection((echo.address.host, echo.address.port), LATE_S))
            stranger.sendall(opening)
            strangers.append(stranger)
        connection = reach(echo.address)
        assert say(connection, b"am I held up?") == b"am I held up?"
        for stranger in strangers:
            with contextlib.suppress(ConnectionError):
                while stranger.recv(4096):
                    with contextlib.suppress(OSError):
                        stranger.sendall(b"\0")  # dripping on does not move the deadline
        assert say(connection, b"and now?") == b"and now?"
        assert echo.met == [Identity("worker", "worker-3")]
        assert not echo.service._newcomers
        connection.close()


def test_ones_own_certificate_is_used_and_a_wrong_one_is_refused(tmp_path):
    certificate, key = str(tmp_path / "c.pem"), str(tmp_path / "k.pem")
    made = TlsListener._load_bytes  # the one that would be made, kept in files
    kept = []
    try:
        TlsListener._load_bytes = lambda self, text: kept.append(text.decode()) or made(self, text)
        TlsListener()
    finally:
        TlsListener._load_bytes = made
    private, _, public = kept[0].partition("-----BEGIN CERTIFICATE")
    for path, text in ((key, private), (certificate, "-----BEGIN CERTIFICATE" + public)):
        with open(path, "w") as file:
            file.write(text)
    own = Credentials(ROOT.keys, "s0", certificate=certificate, certificate_key=key)
    with echoing(credentials=own) as echo:
        line = dial(echo.address, WORKER, "worker")
        assert line.tls.certificate_hash() == TlsListener(certificate, key).certificate_hash
        line.close()
    for wrong in ((certificate, ""), (key, ""), (str(tmp_path / "nothing"), "")):
        with pytest.raises(ConfigError, match="can't use the certificate"):
            TlsListener(*wrong)
    with pytest.raises(ConfigError, match="is the key of no certificate"):
        Credentials(certificate_key=key)


def test_between_machines_tls_is_the_default_and_only_both_together_can_forgo_it(caplog):
    """This machine has an address that others could reach: what comes there counts as from another machine."""
    host = own_address()
    insecure = Credentials(ROOT.keys, insecure_network=True)
    for listens, dials, expected in ((ROOT, WORKER, True), (insecure, WORKER, True), (insecure, insecure, False)):
        with echoing(False, credentials=listens, host=host) as echo:
            line = dial(echo.address, dials, "worker")
            assert (line.tls is not None) == expected
            line.close()
    with echoing(False, host=host) as echo, pytest.raises(AuthenticationError, match="lets nobody in unencrypted"):
        dial(echo.address, insecure, "worker")
    with echoing(False, host="0.0.0.0") as echo:
        for at, expected in (("127.0.0.1", False), (host, True)):
            line = dial(Address(host=at, port=echo.address.port), WORKER, "worker")
            assert (line.tls is not None) == expected
            line.close()


def own_address():
    found = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
    addresses = [address for address in found if ":" not in address]
    if not addresses:
        pytest.skip("this machine has no address but loopback")
    return addresses[0]


def test_a_service_without_tls_says_so(caplog):
    with echoing(tls=False) as echo, caplog.at_level(logging.WARNING):
        with pytest.raises(AuthenticationError, match="listens for its own machine alone, unencrypted"):
            dial(Address(host="127.0.0.1", port=echo.address.port, tls=True), WORKER, "worker")
        assert "it asked for TLS" in caplog.text
    with pytest.raises(CommunicationError):
        dial(echo.address, WORKER, "worker")

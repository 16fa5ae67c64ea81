import struct
import threading

import pytest

from gradtide.errors import AuthenticationError, ConfigError, PeerLost, PeerTimeout
from gradtide.transport.authenticate import Address, dial, listen, parse_address
from gradtide.transport.handshake import Challenge, Handshake, Identity, greeting
from gradtide.transport.keys import Credentials, Key
from gradtide.transport.tls import NO_CERTIFICATE

pytestmark = pytest.mark.quick

NOBODY = Credentials()
ROOT = Credentials((Key(bytes(range(32))),), name="s0")
OTHER = Credentials((Key(bytes(32)),))
OLD_HELLO = b"gradtide\x01client " + bytes(32)  # as version 1 begins, and what it waits for in return
OLD_ANSWER = struct.Struct("<8sB71x")


def key_of(root, role, name):
    return Credentials(tuple(Key(key.derive(role, name), role, name) for key in root.keys))


def shake(dials, listens, role="worker"):
    """Both sides of a handshake, in memory: what each has proven to the other, or why not."""
    challenge, handshake = Challenge(dials, role, False, "there"), Handshake(listens, "server")
    answer = handshake.feed(greeting(False) + challenge.hello)
    challenge.hear_greeting(answer[:16])
    if not handshake.refusal:
        handshake.feed(challenge.prove(answer[16:], NO_CERTIFICATE, local=False))
        assert handshake.done
    return challenge.identity, handshake.identity, handshake.refusal


def test_addresses_are_read_back_as_they_are_written():
    for text in ("unix:/tmp/x", "tcp:127.0.0.1:80", "tcp:[::1]:80", "tls:127.0.0.1:80", "tls:[::1]:80"):
        assert str(parse_address(text)) == text
    assert str(parse_address("localhost:1")) == "tcp:localhost:1"


@pytest.mark.parametrize("text", ["", "unix:", "host", "host:", ":1", "host:x", "host:70000", "unix:/" + 200 * "x"])
def test_what_is_no_address_is_told_in_one_line(text):
    with pytest.raises(ConfigError) as error:
        parse_address(text)
    assert "\n" not in str(error.value)


def test_tcp_needs_a_root_secret_wherever_it_listens():
    with pytest.raises(ConfigError, match="needs a secret file"):
        listen(Address(host="127.0.0.1", port=0), NOBODY)
    with pytest.raises(ConfigError, match="the key of worker w3 is not for servers"):
        listen(Address(host="127.0.0.1", port=0), key_of(ROOT, "worker", "w3"))
    listen(Address(host="0.0.0.0", port=0), ROOT).close()


def test_a_unix_socket_in_a_folder_that_others_can_enter_is_refused(tmp_path):
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigError, match="0700"):
        listen(Address(path=f"{tmp_path}/x"), NOBODY)


def test_a_socket_that_a_killed_server_left_is_taken_over_and_one_that_is_listened_at_is_not(tmp_path):
    tmp_path.chmod(0o700)
    address = Address(path=str(tmp_path / "s"))
    listen(address, NOBODY).close()  # as the kernel does at a kill: the file stays
    with listen(address, NOBODY), pytest.raises(ConfigError, match="is another server there"):
        listen(address, NOBODY)


def test_a_file_that_is_no_socket_is_left_as_it_is(tmp_path):
    tmp_path.chmod(0o700)
    (tmp_path / "s").write_text("mine")
    with pytest.raises(ConfigError, match="can't listen"):
        listen(Address(path=str(tmp_path / "s")), NOBODY)
    assert (tmp_path / "s").read_text() == "mine"


def test_nobody_there_and_somebody_silent_are_told_apart(tmp_path):
    tmp_path.chmod(0o700)
    address = Address(path=f"{tmp_path}/x")
    with pytest.raises(PeerLost, match="no gradtide server at"):
        dial(address, NOBODY, "worker")
    with listen(address, NOBODY), pytest.raises(PeerTimeout, match="did not answer within"):
        dial(address, NOBODY, "worker", timeout_s=0.05)


def test_both_ends_know_afterwards_who_the_other_one_is():
    assert shake(ROOT, ROOT, "server") == (Identity("server", "s0"), Identity("server", "s0"), "")
    assert shake(key_of(ROOT, "worker", "w3"), ROOT) == (Identity("server", "s0"), Identity("worker", "w3"), "")


def test_a_key_decides_the_role_whatever_its_holder_would_like_to_be():
    _, proven, _ = shake(key_of(ROOT, "worker", "w3"), ROOT, "operator")
    assert proven == Identity("worker", "w3")
    key = key_of(ROOT, "worker", "w3").keys[0]
    for role, name in (("server", "w3"), ("worker", "w4"), ("operator", "w3"), ("worker", "")):
        posing = Credentials((Key(key.secret, role, name),))
        assert shake_refused(posing) == "it does not know the secret"


def shake_refused(dials):
    challenge, handshake = Challenge(dials, "worker", False, "there"), Handshake(ROOT, "server")
    answer = handshake.feed(greeting(False) + challenge.hello)
    with pytest.raises(AuthenticationError, match="wrong secret for there; use a file that its server knows"):
        believe(challenge, answer)
    return handshake.refusal


def believe(challenge, answer):
    challenge.hear_greeting(answer[:16])
    return challenge.prove(answer[16:], NO_CERTIFICATE, local=False)


def test_while_a_secret_is_replaced_old_and_new_ones_work():
    both = Credentials((*OTHER.keys, *ROOT.keys))
    for dials, listens in ((ROOT, both), (OTHER, both), (both, ROOT), (both, OTHER), (both, both)):
        assert shake(dials, listens)[1] == Identity("worker", dials.name)
        assert shake(key_of(dials, "worker", "w3"), listens)[1] == Identity("worker", "w3")
    assert shake_refused(OTHER)


def test_a_secret_that_nobody_needs_does_no_harm_on_a_unix_socket_and_is_not_forgone_on_tcp():
    challenge, handshake = Challenge(ROOT, "worker", False, "there"), Handshake(NOBODY, "server")
    answer = handshake.feed(greeting(False) + challenge.hello)
    challenge.hear_greeting(answer[:16])
    with pytest.raises(AuthenticationError, match="wrong secret for there"):
        challenge.prove(answer[16:], NO_CERTIFICATE, local=False)
    handshake.feed(challenge.prove(answer[16:], NO_CERTIFICATE, local=True))
    assert handshake.done


def test_a_listener_ends_the_talk_with_whoever_speaks_something_else():
    with pytest.raises(AuthenticationError):
        Handshake(ROOT, "server").feed(b"GET / HTTP/1.1\r\n")


def test_a_gradtide_of_before_is_told_in_its_own_way_and_ours_names_both_versions():
    handshake = Handshake(ROOT, "server")
    magic, version = OLD_ANSWER.unpack(handshake.feed(OLD_HELLO))
    assert (magic, version) == (b"gradtide", 2)  # it says then that versions differ
    assert "version 1" in handshake.refusal
    assert "version 2" in handshake.refusal
    assert handshake.feed(bytes(32)) == b""


@pytest.mark.parametrize("answer", [b"", b"gradtide\x03" + bytes(71)], ids=["1 hangs up", "3 says so"])
def test_a_listener_of_another_version_is_named_with_ours(answer, tmp_path):
    tmp_path.chmod(0o700)
    address = Address(path=f"{tmp_path}/x")

    def hang_up(listener):
        peer, _ = listener.accept()
        with peer:
            peer.recv(4096)
            peer.sendall(answer)

    with listen(address, NOBODY) as listener:
        thread = threading.Thread(target=hang_up, args=(listener,))
        thread.start()
        with pytest.raises((PeerLost, AuthenticationError)) as error:
            dial(address, NOBODY, "worker")
        thread.join()
    assert f"version {answer[8] if answer else 1} of" in str(error.value)
    assert "this end" in str(error.value)
    assert "version 2" in str(error.value)


def test_a_proof_is_good_for_one_connection_only():
    """Replaying what was heard on one connection fails on the next, because its nonce is another."""
    challenge, first, second = Challenge(ROOT, "worker", False, "x"), *(Handshake(ROOT, "server") for _ in range(2))
    answers = [handshake.feed(greeting(False) + challenge.hello) for handshake in (first, second)]
    challenge.hear_greeting(answers[0][:16])
    proof = challenge.prove(answers[0][16:], NO_CERTIFICATE, local=False)
    with pytest.raises(AuthenticationError, match="could not prove itself on this connection"):
        second.feed(proof)
    first.feed(proof)
    assert first.done


def test_a_listeners_own_proof_can_not_be_sent_back_to_it():
    challenge, handshake = Challenge(ROOT, "server", False, "x"), Handshake(ROOT, "server")
    answer = handshake.feed(greeting(False) + challenge.hello)
    with pytest.raises(AuthenticationError, match="could not prove itself"):
        handshake.feed(answer[-32:])


@pytest.mark.parametrize("place", [9, 15, 16, 20, 30, 92, 98, 130])
def test_whatever_is_changed_on_the_way_there_is_noticed(place):
    challenge, handshake = Challenge(ROOT, "worker", False, "x"), Handshake(ROOT, "server")
    said = bytearray(greeting(False) + challenge.hello)
    said[place] ^= 1
    with pytest.raises(AuthenticationError):
        believe(challenge, handshake.feed(bytes(said)))


@pytest.mark.parametrize("place", [0, 8, 9, 15, 16, 17, 30, 100, 140, 156])
def test_whatever_is_changed_on_the_way_back_is_noticed(place):
    challenge, handshake = Challenge(ROOT, "worker", False, "x"), Handshake(ROOT, "server")
    answer = bytearray(handshake.feed(greeting(False) + challenge.hello))
    answer[place] ^= 1
    with pytest.raises(AuthenticationError):
        believe(challenge, bytes(answer))


def test_a_handshake_in_single_bytes_is_one():
    challenge, handshake, answer = Challenge(ROOT, "worker", False, "x"), Handshake(ROOT, "server"), b""
    for byte in greeting(False) + challenge.hello:
        answer += handshake.feed(bytes([byte]))
    challenge.hear_greeting(answer[:16])
    for byte in challenge.prove(answer[16:], NO_CERTIFICATE, local=False) + b"rest":
        if not handshake.done:
            handshake.feed(bytes([byte]))
    assert handshake.done


def test_nobody_is_let_in_unencrypted_where_tls_is_wanted_and_is_told_so():
    handshake, challenge = Handshake(ROOT, "server", only_tls=True), Challenge(ROOT, "worker", False, "there")
    answer = handshake.feed(greeting(False) + challenge.hello)
    assert "unencrypted" in handshake.refusal
    with pytest.raises(AuthenticationError, match="there lets nobody in unencrypted; write it as tls:host:port"):
        challenge.hear_greeting(answer)
    handshake = Handshake(ROOT, "server")
    answer = handshake.feed(greeting(True))
    with pytest.raises(AuthenticationError, match="listens for its own machine alone"):
        challenge.hear_greeting(answer)

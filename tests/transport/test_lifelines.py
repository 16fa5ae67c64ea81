"""Lifelines between three ranks of one process, each joined by a thread of its own."""

import contextlib
import os
import socket
import threading
from queue import Queue

import pytest

from gradtide.errors import ConfigError, PeerTimeout
from gradtide.transport.keys import derive_key_file, make_secret_file
from gradtide.transport.lifelines import Lifelines, Word, join_lifelines

pytestmark = pytest.mark.quick


class Store:
    """What a launcher's store does: a key that is read before it is set is waited for."""

    def __init__(self):
        self._values, self._news = {}, threading.Condition()

    def set(self, key, value):
        with self._news:
            self._values[key] = value.encode()
            self._news.notify_all()

    def wait(self, keys, timeout):
        with self._news:
            if not self._news.wait_for(lambda: all(key in self._values for key in keys), timeout.total_seconds()):
                raise RuntimeError("timeout")

    def get(self, key):
        with self._news:
            if not self._news.wait_for(lambda: key in self._values, 5):
                raise RuntimeError("timeout")
            return self._values[key]


class Ear:
    def __init__(self):
        self.words = Queue()

    def heard(self, *said):
        self.words.put(said)

    def next(self):
        return self.words.get(timeout=5)


def join_all(size, store=None, timeout_s=5):
    store, found = store or Store(), {}

    def join(rank):
        try:
            found[rank] = join_lifelines(store, rank, size, "127.0.0.1", timeout_s)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    return store, threads, found


@pytest.fixture
def three():
    _, threads, found = join_all(3)
    for thread in threads:
        thread.join()
    ears = [Ear() for _ in range(3)]
    lines = [Lifelines(found[rank], ears[rank]) for rank in range(3)]
    for line in lines:
        line.start()
    yield lines, ears, found
    for line in lines:
        line.close()


def test_what_a_rank_says_is_heard_and_its_end_too(three):
    lines, ears, _ = three
    lines[0].say(2, Word.ASK)
    assert ears[2].next() == (0, Word.ASK, 0, 0, "")
    lines[2].say_all(Word.BROKEN, 7, 8, "was über")
    lines[2].say_all(Word.BYE, 9)
    lines[2].close()
    for ear in ears[:2]:
        assert ear.next() == (2, Word.BROKEN, 7, 8, "was über")
        assert ear.next() == (2, Word.BYE, 9, 0, "")
        assert ear.next() == (2, Word.GONE, 0, 0, "")
    lines[0].say(2, Word.ASK)  # nobody is there to hear it, and that is no error
    assert ears[0].words.empty()


def test_who_says_what_no_rank_would_is_gone(three):
    _, ears, found = three
    found[1][0].send(b"\xff" * 30)
    assert ears[0].next() == (1, Word.GONE, 0, 0, "")


def test_a_forked_child_does_not_keep_its_parent_s_lines_open(three):
    lines, ears, _ = three
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reading, 1)  # lives until the parent has seen that the lines are closed
        os._exit(0)
    lines[1].close()
    assert ears[0].next() == (1, Word.GONE, 0, 0, "")
    os.write(writing, b"x")
    assert os.waitpid(child, 0)[1] == 0
    os.close(reading)
    os.close(writing)


def test_strangers_are_hung_up_on_and_the_ranks_still_meet():
    store = Store()
    first = threading.Thread(target=lambda: found.update({0: join_lifelines(store, 0, 2, "127.0.0.1", 5)}))
    found = {}
    first.start()
    port = int(store.get("lifeline/0").split()[0])
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
        stranger.settimeout(5)
        assert stranger.recv(100) == b""
    found[1] = join_lifelines(store, 1, 2, "127.0.0.1", 5)
    first.join()
    for lines in found.values():
        for line in lines.values():
            line.close()


def test_a_rank_that_does_not_join_is_named():
    with pytest.raises(PeerTimeout, match=r"rank 1, 2 did not join the job within 0\.1 s"):
        join_lifelines(Store(), 0, 3, "127.0.0.1", 0.1)


def test_strangers_who_drip_bytes_hold_nobody_up():
    store, found = Store(), {}
    first = threading.Thread(target=lambda: found.update({0: join_lifelines(store, 0, 2, "127.0.0.1", 30)}))
    first.start()
    port, over = int(store.get("lifeline/0").split()[0]), threading.Event()
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]

    def drip():
        for byte in b"gradtide" + bytes(100):
            for stranger in strangers:
                with contextlib.suppress(OSError):
                    stranger.send(bytes([byte]))
            if over.wait(0.05):
                return

    dripping = threading.Thread(target=drip)
    dripping.start()
    found[1] = join_lifelines(store, 1, 2, "127.0.0.1", 30)
    first.join(10)
    assert not first.is_alive()
    over.set()
    dripping.join()
    for line in (*found[0].values(), *found[1].values(), *strangers):
        line.close()


def test_with_a_secret_file_no_secret_goes_through_the_store(tmp_path, monkeypatch):
    make_secret_file(tmp_path / "root")
    monkeypatch.setenv("GRADTIDE_SECRET_FILE", str(tmp_path / "root"))
    store, threads, found = join_all(3)
    for thread in threads:
        thread.join()
    assert store.get("secret") == b"by the secret file"
    assert [sorted(lines) for _, lines in sorted(found.items())] == [[1, 2], [0, 2], [0, 1]]
    for lines in found.values():
        for line in lines.values():
            line.close()


def test_ranks_with_different_secrets_do_not_meet_and_are_told_why(tmp_path, monkeypatch):
    make_secret_file(tmp_path / "root")
    store = Store()
    store.set("secret", "some secret of rank 0")
    monkeypatch.setenv("GRADTIDE_SECRET_FILE", str(tmp_path / "root"))
    with pytest.raises(ConfigError, match="rank 1 has a secret file and rank 0 has none; set GRADTIDE_SECRET"):
        join_lifelines(store, 1, 2, "127.0.0.1", 1)
    derive_key_file(tmp_path / "root", tmp_path / "w3", "worker", "w3")
    monkeypatch.setenv("GRADTIDE_SECRET_FILE", str(tmp_path / "w3"))
    with pytest.raises(ConfigError, match="is the key of worker w3 alone"):
        join_lifelines(Store(), 0, 2, "127.0.0.1", 1)


def test_encryption_is_for_all_ranks_or_none_and_needs_a_secret_file(tmp_path, monkeypatch):
    make_secret_file(tmp_path / "root")
    store = Store()
    store.set("secret", "by the secret file")
    monkeypatch.setenv("GRADTIDE_ENCRYPT", "1")
    with pytest.raises(ConfigError, match=r"GRADTIDE_ENCRYPT needs the job's secret file; make one \(gradtide secret"):
        join_lifelines(store, 1, 2, "127.0.0.1", 1)
    monkeypatch.setenv("GRADTIDE_SECRET_FILE", str(tmp_path / "root"))
    with pytest.raises(ConfigError, match="rank 1 asks for encryption and rank 0 does not; set GRADTIDE_ENCRYPT alike"):
        join_lifelines(store, 1, 2, "127.0.0.1", 1)
    monkeypatch.setenv("GRADTIDE_ENCRYPT", "yes")
    with pytest.raises(ConfigError, match="GRADTIDE_ENCRYPT must be 1 or 0, not 'yes'"):
        join_lifelines(store, 1, 2, "127.0.0.1", 1)

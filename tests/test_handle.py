import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import gradtide
from gradtide import Group
from gradtide.errors import Closed, CommunicationError, Mismatch, OutputError, PeerLost
from gradtide.handle import Handle
from gradtide.store.client.checkpointing import CheckpointOptions
from gradtide.store.wire.messages import Version
from gradtide.testing.check_handle import Begun, check_handle

pytestmark = pytest.mark.quick


def test_waiting_returns_the_result_once_somebody_finishes_it():
    handle = Handle("a push")
    assert not handle.done()
    thread = threading.Thread(target=handle.finish, args=(7,))
    thread.start()
    assert handle.wait(10) == 7
    assert handle.done()
    assert handle.result() == 7
    thread.join()


def test_what_went_wrong_is_raised_by_who_waits():
    handle = Handle("a push")
    handle.fail(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        handle.wait()
    with pytest.raises(ValueError, match="no"):
        handle.result()


def test_waiting_too_short_says_what_is_not_done():
    handle = Handle("a push of block 3")
    with pytest.raises(CommunicationError, match=r"a push of block 3 is not done after 0\.01 s"):
        handle.wait(0.01)
    with pytest.raises(CommunicationError, match="wait"):
        handle.result()


def test_who_asked_is_told_of_the_end_once_and_at_once_if_it_is_over():
    handle, told = Handle("a push"), []
    handle.when_done(told.append)
    handle.finish(7)
    handle.when_done(told.append)
    assert told == [None, None]
    failed = Handle("a push")
    failed.when_done(told.append)
    failed.fail(error := ValueError("no"))
    assert told[2:] == [error]
    assert failed.ended(0)
    assert failed.error() is error


# --- every kind of handle keeps one contract ---


def plain(error=None):
    handle = Handle("a push")
    return Begun(handle, lambda: handle.finish(7) if error is None else handle.fail(error("no")), error)


@pytest.mark.parametrize("error", [None, ValueError])
def test_plain_handles_keep_the_contract(error):
    check_handle(lambda: plain(error))


def both_join(name):
    """Two ranks, of threads of this process."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda rank: Group.join(name, rank, 2, timeout_s=20), range(2)))


@pytest.fixture(scope="module")
def pair():
    first, second = both_join("handles")
    with first, second:
        yield first, second


# What one rank begins, with the tensors of both, and how the other lets it end.
COLLECTIVES = {
    "all_reduce": lambda group, mine: group.all_reduce(mine, async_op=True),
    "all_reduce by a schedule": lambda group, mine: group.all_reduce(mine, strategy="ring", async_op=True),
    "broadcast": lambda group, mine: group.broadcast(mine, async_op=True),
    "all_gather": lambda group, mine: group.all_gather(mine, async_op=True),
    "gather": lambda group, mine: group.gather(mine, 1, async_op=True),
    "barrier": lambda group, mine: group.barrier(async_op=True),
    "submit": lambda group, mine: group.submit("an all-reduce", lambda: group.all_reduce(mine)),
}


@pytest.mark.parametrize("what", COLLECTIVES)
def test_a_group_s_handles_keep_the_contract(pair, what):
    first, second = pair
    begin = COLLECTIVES[what]

    def begun():
        handle = begin(first, torch.ones(100))
        return Begun(handle, lambda: begin(second, torch.ones(100)).wait())

    check_handle(begun)


def test_handles_of_all_reduces_of_shared_tensors_keep_the_contract(pair):
    """As DataParallel's buckets are."""
    first, second = pair
    with ThreadPoolExecutor(2) as pool:
        mine, theirs = pool.map(lambda group: group.shared_tensor(5000), pair)
    check_handle(
        lambda: Begun(first.all_reduce(mine, async_op=True), lambda: second.all_reduce(theirs, async_op=True).wait())
    )


def test_handles_of_messages_keep_the_contract(pair):
    first, second = pair
    large, small = torch.ones(1_000_000), torch.ones(3)
    check_handle(lambda: Begun(first.send(large, 1, async_op=True), lambda: second.recv(torch.empty(1_000_000), 0)))
    for source in (1, None):
        check_handle(
            lambda s=source: Begun(first.recv(torch.empty(3), s, async_op=True), lambda: second.send(small, 0))
        )
    check_handle(
        lambda: Begun(first.recv(torch.empty(3), 1, async_op=True), lambda: second.send(torch.ones(4), 0), Mismatch)
    )


def test_handles_of_operations_that_a_rank_leaves_keep_the_contract():
    left = []

    def begun():
        first, second = both_join("left")
        left.append(first)
        return Begun(first.all_reduce(torch.ones(3), async_op=True), second.abort, PeerLost)

    check_handle(begun)
    for group in left:
        group.close()


@pytest.fixture(scope="module")
def workers(forks):
    """Two workers in rounds, which end when both have pushed."""
    with gradtide.local_servers(2, forks=forks) as servers, ThreadPoolExecutor(2) as pool:
        first, second = pool.map(
            lambda worker: gradtide.connect(servers.address, worker, workers=2, consistency="bsp"), range(2)
        )
        with first, second:
            first.init({"w": torch.zeros(5), "v": torch.zeros(2_000_000)}, update=gradtide.update("add"))
            yield first, second


def one_round(first, second, begin, values):
    """Begins something in a round of two workers: it ends when the other one pushes."""
    handle = begin(first)

    def let_end():
        second.push(values, wait=True)

    return Begun(handle, let_end)


def after_a_push(first, values):
    first.push(values)
    return first.pull(list(values), wait=False)


VALUES = {"w": torch.ones(5), "v": torch.ones(2_000_000)}
ROUNDS = {
    "push": lambda store: store.push("w", VALUES["w"]),
    "push of several": lambda store: store.push(VALUES, weight=2.0),
    "pull": lambda store: after_a_push(store, VALUES),
    "push_pull": lambda store: store.push_pull("w", VALUES["w"], wait=False),
    "push_pull of several": lambda store: store.push_pull(VALUES, wait=False),
}


@pytest.mark.parametrize("what", ROUNDS)
def test_a_store_s_handles_keep_the_contract(workers, what):
    first, second = workers
    values = VALUES if "several" in what or what == "pull" else {"w": VALUES["w"]}
    check_handle(lambda: one_round(first, second, ROUNDS[what], values))


@pytest.fixture(scope="module")
def servers(forks):
    with gradtide.local_servers(2, forks=forks) as started:
        yield started


@pytest.fixture
def store(servers):
    with gradtide.connect(servers.address) as connected:
        connected.init("w", torch.zeros(5), update=gradtide.update("add"))
        yield connected


def version_after(store, key, pushes):
    """What a pull of the key waits for until it has been pushed so often."""
    store.pull(key)
    return {shard: Version(now.epoch, now.sequence + pushes) for shard, now in store.last.versions.items()}


def test_handles_of_a_store_that_is_closed_keep_the_contract(servers, store):
    def begun():
        other = gradtide.connect(servers.address)
        return Begun(other.pull("w", at_least=version_after(other, "w", 1), wait=False), other.close, Closed)

    check_handle(begun)


def test_handles_of_checkpoints_keep_the_contract(store, tmp_path):
    def begun(error=None):
        go = threading.Event()

        def beside(place, folder):
            assert go.wait(20)
            if error is not None:
                raise error("no")
            return (), None

        return Begun(store.begin_checkpoint(tmp_path, CheckpointOptions(beside=beside)), go.set, error)

    check_handle(begun)
    check_handle(lambda: begun(OutputError))


def test_who_is_told_by_the_store_may_begin_other_operations(store):
    again, told = [], threading.Event()

    def push_again(error):
        again.append(store.push("w", torch.ones(5)))
        again[0].when_done(lambda error: told.set())

    before = store.pull("w")
    store.push("w", torch.ones(5)).when_done(push_again)
    assert told.wait(20)
    assert again[0].done()
    assert torch.equal(store.pull("w"), before + 2)


def test_who_is_told_by_the_store_may_close_it(servers, store):
    other, ended = gradtide.connect(servers.address), threading.Event()
    under_way = other.pull("w", at_least=version_after(other, "w", 2), wait=False)
    under_way.when_done(lambda error: ended.set())
    other.push("w", torch.ones(5)).when_done(lambda error: other.close())
    assert ended.wait(20)
    assert isinstance(under_way.error(), Closed)

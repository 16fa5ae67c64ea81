import gc
import os
import re
import signal
import threading

import pytest
import torch

import gradtide
from gradtide.errors import Closed, ConfigError, PeerLost, PeerTimeout, StoreError, UnknownKey
from gradtide.timeouts import Timeouts
from store_processes import pid_of

pytestmark = pytest.mark.quick

BIG = 3_000_000  # float32: three blocks


@pytest.fixture
def store(servers):
    with gradtide.connect(servers.address) as connected:
        yield connected


def test_the_five_lines_of_the_front_page(forks):
    with gradtide.local_servers(2, forks=forks) as servers:
        store = gradtide.connect(servers.address)
        store.init("w", torch.zeros(BIG), update=gradtide.update("sgd", lr=0.1, momentum=0.9))
        store.push("w", torch.ones(BIG)).wait()
        w = store.pull("w")
        store.close()
    assert torch.equal(w, torch.full((BIG,), -0.1))


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8"]
)
def test_every_dtype_comes_back_as_it_went(store, dtype):
    value = torch.arange(100).to(getattr(torch, dtype)).view(10, 10)
    store.init(dtype, value, update=gradtide.update("add"))
    store.push(dtype, torch.ones_like(value)).wait()
    assert torch.equal(store.pull(dtype), value + 1)


def test_odd_shapes_are_values_too(store):
    for name, value in {
        "number": torch.tensor(3.0),
        "nothing": torch.zeros(0, 4),
        "flags": torch.tensor([True, False]),
    }.items():
        store.init(name, value)
        assert torch.equal(store.pull(name), value)


def test_push_and_pull_take_one_key_a_list_or_a_dict(store):
    a, b = torch.arange(4.0), torch.arange(6).view(2, 3)
    store.init({"a": a, "b": b}, update=gradtide.update("add"))
    store.push(["a", "b"], [a, b]).wait()
    store.push({"b": b}).wait()
    assert torch.equal(store.pull(["b", "a"])[0], 3 * b)
    out = {"a": torch.empty(4), "b": torch.empty(2, 3, dtype=torch.int64)}
    assert store.pull(out)["a"] is out["a"]
    assert torch.equal(out["a"], 2 * a)
    together = store.push_pull({"a": a, "b": b})
    assert torch.equal(together["a"], 3 * a)
    assert torch.equal(together["b"], 4 * b)


def test_push_pull_brings_the_value_right_after_the_push(store):
    store.init("w", torch.zeros(BIG), update=gradtide.update("add"))
    store.init("small", torch.zeros(7), update=gradtide.update("add"))
    out = torch.empty(BIG)
    for step in range(1, 6):
        assert store.push_pull("w", torch.ones(BIG), out=out) is out
        assert torch.equal(out, torch.full((BIG,), float(step)))
        assert torch.equal(store.push_pull("small", torch.ones(7)), torch.full((7,), float(step)))


def test_rows_of_a_key_also_across_blocks(store):
    value = torch.arange(2_400_000.0).view(-1, 3)
    store.init("w", value)
    for rows in (slice(0, 100), slice(349_500, 349_600), slice(-5, None), slice(10, 10), slice(None)):
        assert torch.equal(store.pull("w", rows=rows), value[rows])
    with pytest.raises(ConfigError, match="must follow each other"):
        store.pull("w", rows=slice(0, 10, 2))


def test_tensors_that_are_not_contiguous_or_need_gradients_are_fine(store):
    value = torch.arange(12.0).view(3, 4)
    store.init("w", value.t(), update=gradtide.update("add"))
    store.push("w", value.t().clone().requires_grad_()).wait()
    out = torch.zeros(3, 4)
    store.pull("w", out=out.t())
    assert torch.equal(out, 2 * value)


def test_a_handle_ends_without_anybody_waiting(store):
    store.init("w", torch.zeros(BIG), update=gradtide.update("add"))
    handles = [store.push("w", torch.ones(BIG)) for _ in range(4)]
    pulled = store.pull("w", wait=False)
    event = threading.Event()
    threading.Thread(target=lambda: (pulled.wait(), event.set())).start()
    assert event.wait(20)
    assert all(handle.done() for handle in handles)
    assert torch.equal(pulled.result(), torch.full((BIG,), 4.0))


def test_many_threads_share_one_store(store):
    store.init({f"k{i}": torch.zeros(50) for i in range(8)}, update=gradtide.update("add"))

    def work(i):
        for step in range(1, 51):
            got = store.push_pull(f"k{i}", torch.ones(50))
            assert torch.equal(got, torch.full((50,), float(step)))
            store.push(f"k{(i + 1) % 8}", torch.zeros(50)).wait()

    failed = []
    threads = [threading.Thread(target=lambda i=i: _note_failure(failed, lambda: work(i))) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def _note_failure(failed, work):
    try:
        work()
    except BaseException as error:
        failed.append(error)


def test_keys_info_and_servers(store):
    store.init("a.weight", torch.zeros(BIG), update=gradtide.update("adam", lr=0.5))
    store.init("a.bias", torch.zeros(2, dtype=torch.float64))
    store.init("b", torch.zeros(1), consistency="bounded:4")
    assert store.keys() == ["a.bias", "a.weight", "b"]
    assert store.keys("a.") == ["a.bias", "a.weight"]
    info = store.info("a.weight")
    assert (info.shape, info.dtype, info.size_bytes) == ((BIG,), "float32", 4 * BIG)
    assert info.servers == ("server-0", "server-1")
    assert store.info("b").consistency == "bounded:4"
    store.push("a.weight", torch.ones(BIG)).wait()
    assert store.info("a.weight").version > info.version
    assert sum(server["bytes"] for server in store.servers()) == 4 * BIG + 16 + 4


def test_the_old_spelling_of_consistency_works_for_one_release_and_names_the_new_one(servers):
    with pytest.warns(DeprecationWarning, match=r"'bounded\(2\)' is written 'bounded:2' now") as warned:
        store = gradtide.connect(servers.address, consistency="bounded(2)")
    with store:
        store.init("w", torch.zeros(1))
        with pytest.warns(DeprecationWarning, match=r"'bounded:3'") as again:
            store.init("v", torch.zeros(1), consistency="bounded(3)")
        assert [store.info(key).consistency for key in "wv"] == ["bounded:2", "bounded:3"]
    assert {warning.filename for warning in (*warned, *again)} == {__file__}
    with pytest.raises(ConfigError, match="choose async, bsp or bounded:k, as in bounded:4"):
        gradtide.connect(servers.address, consistency="bounded")


def test_a_second_client_finds_what_the_first_made(store, servers):
    store.init("w", torch.arange(5.0), update=gradtide.update("add"))
    with gradtide.connect(servers.address) as other:
        assert torch.equal(other.pull("w"), torch.arange(5.0))
        other.push("w", torch.ones(5)).wait()
        assert torch.equal(other.pull("w"), torch.arange(5.0) + 1)
        version = dict(other.last.versions)
        assert torch.equal(store.pull("w", at_least=version), torch.arange(5.0) + 1)


def test_configure_changes_the_rule(store):
    store.init("w", torch.zeros(3), update=gradtide.update("sgd", lr=1.0))
    store.configure("w", lr=0.25)
    assert torch.equal(store.push_pull("w", torch.ones(3)), torch.full((3,), -0.25))
    with pytest.raises(StoreError, match="SGD"):
        store.configure("w", beta=1)
    store.init("v", torch.zeros(3), update=gradtide.update("adam", lr=1.0))
    store.configure("v", betas=(0.0, 0.25), lr=torch.tensor(0.5))
    store.push_pull("v", torch.ones(3))
    value = torch.nn.Parameter(torch.zeros(3))
    value.grad = torch.ones(3)
    torch.optim.Adam([value], lr=0.5, betas=(0.0, 0.25)).step()
    assert torch.allclose(store.pull("v"), value)
    with pytest.raises(ConfigError, match="betas holds a list, which servers can't be told"):
        store.configure("v", betas=([0.1], 0.2))


def test_every_mistake_is_one_clear_line(store, servers, tmp_path):
    rule = {"update": gradtide.update("add"), "reject_nan": True}
    store.init("layer.weight", torch.zeros(3), **rule)
    nowhere = f"unix:{tmp_path}/nothing"
    mistakes = [
        (UnknownKey, "did you mean 'layer.weight'", lambda: store.pull("layer.wieght")),
        (StoreError, r"got float32 \(2,\), but the key is", lambda: store.push("layer.weight", torch.ones(2))),
        (StoreError, "got float64", lambda: store.push("layer.weight", torch.ones(3, dtype=torch.float64))),
        (ConfigError, "did you mean 'adamw'", lambda: gradtide.update("adamww", lr=1)),
        (StoreError, "first initialised with", lambda: store.init("layer.weight", torch.zeros(4))),
        (StoreError, "initialises 'layer.weight'", lambda: store.init("layer.weight", torch.ones(3), **rule)),
        (PeerLost, "no gradtide server at", lambda: gradtide.connect(nowhere)),
        (StoreError, "needs rounds", lambda: store.init("m", torch.zeros(2), update=gradtide.update("mean"))),
        (StoreError, "not a number|NaN|nan", lambda: store.push("layer.weight", torch.full((3,), torch.nan)).wait()),
        (ConfigError, "choose async, bsp or bounded", lambda: store.init("c", torch.zeros(1), consistency="weekly")),
        (ConfigError, "is no address", lambda: gradtide.connect("somewhere")),
        (ConfigError, "named twice", lambda: store.pull(["layer.weight", "layer.weight"])),
        (ConfigError, "a tensor for each key", lambda: store.push("layer.weight")),
    ]  # fmt: skip
    for kind, text, mistake in mistakes:
        with pytest.raises(kind, match=text) as error:
            mistake()
        assert "\n" not in str(error.value)
    store.init("m", torch.zeros(2), update=gradtide.update("add"))  # a refused key is free for another try
    assert torch.equal(store.push_pull("layer.weight", torch.ones(3)), torch.ones(3))


def test_a_closed_store_says_that_you_closed_it(servers):
    store = gradtide.connect(servers.address)
    store.init("w", torch.zeros(3))
    store.close()
    store.close()
    with pytest.raises(Closed, match="was closed here"):
        store.pull("w")


def push_until_it_waits(store):
    for _ in range(10):  # the second worker is in from one of the next rounds on
        store.push("w", torch.ones(2)).wait()


def test_waiting_for_a_worker_that_does_not_push_says_so_first_in_a_line_and_then_as_an_error(servers, capfd):
    patience = Timeouts(step_s=0.7, notice_s=0.1)
    with (
        gradtide.connect(servers.address, worker=0, consistency="bsp", timeouts=patience) as first,
        gradtide.connect(servers.address, worker=1, consistency="bsp"),
    ):
        first.init("w", torch.zeros(2), update=gradtide.update("mean"))
        with pytest.raises(PeerTimeout, match="other workers of round"):
            push_until_it_waits(first)
        (line,) = capfd.readouterr().err.splitlines()
        assert re.match(r"gradtide: push of 'w' has waited [\d.]+ s for the other workers of round", line)


def test_a_store_that_is_gone_is_noticed_soon_though_a_step_may_take_long(forks):
    with gradtide.local_servers(2, forks=forks) as servers:
        store = gradtide.connect(servers.address, timeouts=Timeouts(lost_s=0.3))
        store.init("w", torch.zeros(BIG), update=gradtide.update("add"))
    with pytest.raises(PeerLost, match=r"server-. at .* can't be reached for 0.3 s during push of 'w'"):
        store.push("w", torch.ones(BIG)).wait()
    store.close()


def test_of_all_servers_that_are_asked_only_those_that_have_not_answered_are_waited_for(forks):
    soon = Timeouts(lost_s=0.3, step_s=10)
    with gradtide.local_servers(2, forks=forks) as servers, gradtide.connect(servers.address, timeouts=soon) as store:
        stopped = pid_of(servers, "server-1")
        os.kill(stopped, signal.SIGSTOP)
        try:
            with pytest.raises(PeerLost, match=r"^server server-1 at \S+ can't be reached for 0.3 s during keys"):
                store.keys()
        finally:
            os.kill(stopped, signal.SIGCONT)


def test_timeouts_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match=r"Timeouts\(step_s=0\) makes no sense; give more than 0 seconds"):
        Timeouts(step_s=0)


def test_nothing_that_was_pushed_is_kept_by_an_optimizer_outside_of_rounds(store):
    """The server receives the next push into the same memory: whoever kept the last one would see it change."""
    generator = torch.Generator().manual_seed(5)
    for name, kind in {"sgd": "SGD", "adam": "Adam", "rprop": "Rprop", "asgd": "ASGD", "nadam": "NAdam"}.items():
        arguments = {"lr": 0.1, **({"momentum": 0.9} if name == "sgd" else {})}
        store.init(name, torch.zeros(50), update=gradtide.update(name, **arguments))
        parameter = torch.nn.Parameter(torch.zeros(50))
        optimizer = getattr(torch.optim, kind)([parameter], **arguments)
        for _ in range(4):
            parameter.grad = torch.randn(50, generator=generator)
            value = store.push_pull(name, parameter.grad)
            optimizer.step()
            assert torch.allclose(value, parameter.detach(), rtol=1e-5, atol=1e-6), name


def background_threads():
    return [thread for thread in threading.enumerate() if thread.name == "gradtide-store"]


def test_a_store_that_is_dropped_leaves_when_all_it_was_asked_for_is_done(store, servers):
    store.init("dropped", torch.zeros(3, dtype=torch.int64), update=gradtide.update("add"))
    before = background_threads()
    for _ in range(10):
        gradtide.connect(servers.address).push("dropped", torch.ones(3, dtype=torch.int64))
    gc.collect()
    for thread in background_threads():
        if thread not in before:
            thread.join(20)
            assert not thread.is_alive()
    assert store.pull("dropped").tolist() == [10, 10, 10]

"""Keys that are compressed both ways give what one process gives that compresses in the same places, bit for bit."""

import pytest
import torch
from compressed_oracle import Case, expected, on_servers

import gradtide
from gradtide.store.wire.messages import KeySpec
from store_processes import LONG_LEASE_S, Killer

CODECS = ["fp16", "bf16", "int8", "onebit", "topk:0.1"]
SGD = gradtide.update("sgd", lr=0.1, momentum=0.9)


def check(address, case, **more):
    pulls, first = on_servers(address, case, **more)
    wanted = expected(case, first)
    for step, values in enumerate(wanted):
        for worker, pulled in enumerate(pulls):
            assert torch.equal(pulled[step], values), f"worker {worker}, step {step}"


@pytest.mark.quick
@pytest.mark.parametrize("compress", CODECS)
def test_what_workers_pull_in_bsp_is_what_one_process_would_have(forks, compress):
    with gradtide.local_servers(1, forks=forks) as servers:
        check(servers.address, Case(SGD, compress))


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("compress", ["int8", "topk:0.01"])
def test_a_key_of_several_blocks_has_the_same_bits_on_one_server_and_on_three(forks, servers, compress):
    case = Case(gradtide.update("adam", lr=0.01), compress, 1_200_001, torch.float64, steps=3)
    with gradtide.local_servers(servers, forks=forks) as started:
        check(started.address, case)


@pytest.mark.parametrize("rule", ["mean", "add"])
@pytest.mark.parametrize("delay", [0, 2])
def test_servers_that_average_or_add_compress_too(forks, rule, delay):
    with gradtide.local_servers(2, forks=forks) as servers:
        check(servers.address, Case(gradtide.update(rule), "topk:0.05", delay=delay))


@pytest.mark.parametrize("compress", ["onebit", "int8"])
def test_bounded_pulls_are_of_exactly_so_many_rounds_ago(forks, compress):
    with gradtide.local_servers(2, forks=forks) as servers:
        check(servers.address, Case(SGD, compress, delay=2, steps=10, weights=(1.0, 0.5, 4.0)))


@pytest.mark.parametrize("case", [Case(SGD, "int8", delay=0), Case(SGD, "topk:0.1", delay=2)], ids=["bsp", "bounded"])
def test_a_server_that_is_killed_between_rounds_changes_no_bit(forks, case):
    with gradtide.local_servers(2, replicas=1, lease_s=LONG_LEASE_S, forks=forks) as servers:
        killer = Killer(servers)

        def at(store, step):
            if step in (2, 5):
                killer.kill(store, f"server-{step % 2}")

        check(servers.address, case, at=at)


def test_a_key_of_an_older_checkpoint_goes_on_with_the_bytes_that_it_has(forks):
    """Its halves have no scales, whatever a worker of today says of it."""
    with gradtide.local_servers(1, forks=forks) as servers:
        rule = gradtide.update("add")
        spec = KeySpec("old", (3000,), "float32", rule, 0, compress="fp16")
        with gradtide.connect(servers.address, 0, workers=1, consistency="bsp") as store:
            store._init(spec, torch.zeros(3000)).wait()  # as a worker of then did
            for key in ("old", "new"):
                store.init(key, torch.zeros(3000), update=rule, compress="fp16")
                assert store.info(key).compress == "fp16"
            gradient = torch.full((3000,), 1e-8)
            store.push({"old": gradient, "new": gradient}, wait=True)
            old, new = store.pull(["old", "new"])
            assert not old.any()
            assert torch.allclose(new, gradient, rtol=2**-10, atol=0)

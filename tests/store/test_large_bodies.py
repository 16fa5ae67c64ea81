"""Large bodies between a store's processes on one machine go through shared memory, and leave nothing behind."""

import os
from contextlib import ExitStack

import torch

import gradtide
from gradtide.store.wire.messages import Part, Piece, Push, Pushed, Refused, decode, encode, layout_name
from gradtide.store.wire.placement import shard_of
from gradtide.transport.authenticate import dial, parse_address
from gradtide.transport.connection import MOST_RINGS, open_connection
from gradtide.transport.keys import Credentials
from gradtide.transport.shared_ring import connect_sharing

MB = 1 << 20


def test_values_read_where_they_lie_are_those_that_were_pushed(forks):
    """Of several keys, dtypes and sizes, in turn from two clients, with what fits the memory and what does not."""
    with (
        gradtide.local_servers(2, forks=forks) as servers,
        gradtide.connect(servers.address) as one,
        gradtide.connect(servers.address) as other,
    ):
        values = {
            "halves": torch.ones(3 * MB // 2, dtype=torch.float16),
            "odd": torch.arange(1_000_003, dtype=torch.uint8),
            "longs": torch.arange(700_001),
            "large": torch.arange(9 * MB, dtype=torch.int32),
        }
        one.init({key: torch.zeros_like(value) for key, value in values.items()}, update=gradtide.update("add"))
        for _ in range(3):
            handles = [one.push(values), other.push(values)]
            for handle in handles:
                handle.wait()
            other.push_pull(values)
        assert all(link.connection._shares for link in one._engine.links.all())
        for key, value in zip(values, one.pull(list(values)), strict=True):
            assert torch.equal(value, values[key] * 9), key


def test_an_optimizer_steps_on_what_was_pushed_not_on_what_came_after(forks):
    """Outside of rounds each push is a step of its own, on values that lie in memory that is used again."""
    with gradtide.local_servers(1, forks=forks) as servers, gradtide.connect(servers.address) as store:
        rule = gradtide.update("sgd", lr=0.5, momentum=0.9)
        store.init("w", torch.zeros(MB), update=rule)
        model = torch.nn.Parameter(torch.zeros(MB))
        optimizer = torch.optim.SGD([model], lr=0.5, momentum=0.9)
        for step in range(1, 8):
            gradient = torch.full((MB,), float(step))
            found = store.push_pull("w", gradient)
            model.grad = gradient
            optimizer.step()
            assert torch.equal(found, model.detach())


def test_a_server_takes_no_memory_that_could_shrink(forks):
    """Reading what was cut off would kill it."""
    with gradtide.local_servers(1, forks=forks) as servers:
        address = parse_address(f"unix:{servers.folder}/server-0")
        loose = os.memfd_create("loose")
        os.truncate(loose, 64 * MB)
        with dial(address, Credentials(), "worker", memory=loose).sock as sock:
            assert len(sock.recv(100)) == 12, "credit, and no word of a ring"
        os.close(loose)
        connection = connect_sharing(address, Credentials(), "worker", 5.0, "server")
        connection.on_messages(lambda message: None, lambda: None)
        while not connection._shares:
            connection.wait(5.0, "the ring")
            connection.receive()
        connection.close()


def test_connections_that_end_leave_no_descriptor_and_no_memory_behind(forks):
    with gradtide.local_servers(1, forks=forks) as servers:
        (server,) = [process for process in servers.processes if process.name.startswith("server")]

        def held() -> tuple[int, int]:
            with open(f"/proc/{server.pid}/maps") as maps:
                rings = sum("gradtide-ring" in line for line in maps)
            return len(os.listdir(f"/proc/{server.pid}/fd")), rings

        def once() -> None:
            with gradtide.connect(servers.address) as store:
                store.keys()

        once()
        before = held()
        for _ in range(20):
            once()
        with gradtide.connect(servers.address) as store:
            store.keys()
            now = held()
        assert now[0] <= before[0] + 2
        assert now[1] <= before[1] + 3


def test_a_server_shares_memory_with_so_many_and_serves_the_others_through_their_sockets(forks):
    with gradtide.local_servers(1, forks=forks) as servers, ExitStack() as open_now:
        stores = [open_now.enter_context(gradtide.connect(servers.address)) for _ in range(MOST_RINGS + 3)]
        stores[0].init("w", torch.zeros(100_000), update=gradtide.update("add"))
        for store in stores:
            store.push("w", torch.ones(100_000)).wait()
        shares = [link.connection._shares for store in stores for link in store._engine.links.all()]
        assert shares.count(True) == MOST_RINGS
        assert torch.equal(stores[-1].pull("w"), torch.full((100_000,), MOST_RINGS + 3.0))


def test_refused_pushes_cost_no_credit(forks):
    """Three times what a client may have on its way, all refused; then one that is not."""
    with gradtide.local_servers(1, forks=forks) as servers, gradtide.connect(servers.address) as store:
        store.init("w", torch.zeros(MB), update=gradtide.update("add"))
        table = store.table
        parts = (Part(shard_of("w", 0), (Piece("w", 0, 0, MB, 4 * MB),)),)
        for sharing in (False, True):
            address = parse_address(table.servers[0].address)
            if sharing:
                connection = connect_sharing(address, Credentials(), "worker", 5.0, "server")
            else:
                connection = open_connection(dial(address, Credentials(), "worker"), "server", credit_bytes=0)
            answers = []
            connection.on_messages(lambda data, into=answers: into.append(decode(data)), lambda: None)
            body = memoryview(torch.ones(MB).numpy()).cast("B")
            for sequence in range(1, 50):
                wrong = table.epoch + 1 if sequence < 49 else table.epoch
                push = Push(wrong, f"raw {sharing}", 1, sequence, layout_name(parts), parts)
                connection.send(encode(push), [body], 4 * MB)
                while len(answers) < sequence:
                    connection.wait(10, f"push {sequence}")
                    connection.flush()
                    connection.receive()
            connection.close()
            assert [type(answer) for answer in answers] == [Refused] * 48 + [Pushed]


def test_who_hangs_up_right_after_its_proof_harms_nobody(forks):
    with gradtide.local_servers(1, forks=forks) as servers, gradtide.connect(servers.address) as store:
        (server,) = [process for process in servers.processes if process.name.startswith("server")]
        for _ in range(200):
            dial(parse_address(f"unix:{servers.folder}/server-0"), Credentials(), "worker").close()
        store.init("w", torch.zeros(4), update=gradtide.update("add"))
        assert [process.pid for process in servers.processes if process.name == server.name] == [server.pid]

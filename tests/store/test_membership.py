"""The coordinator, word by word."""

from gradtide.store.membership import FORGET_LEASES, Membership, Tell
from gradtide.store.messages import Beat, Decree, Gone, Join, Leave, Member, Message, Promise, Propose, Table, Welcome


def said(tells: list[Tell], kind: type) -> dict[str, Message]:
    return {tell.name: tell.message for tell in tells if isinstance(tell.message, kind)}


def server(i: int, expected: int = 2, incarnation: int = 1) -> Join:
    return Join("server", f"s{i}", incarnation, f"host:{incarnation}", expected=expected)


def worker(i: int, expected: int = 0, incarnation: int = 1) -> Join:
    return Join("worker", f"w{i}", incarnation, worker=i, expected=expected)


def started(servers: int = 2) -> Membership:
    membership = Membership(lease_s=2.0)
    for i in range(servers):
        membership.hear(server(i, servers), 0.0)
    return membership


def test_the_first_table_waits_for_the_expected_servers() -> None:
    membership = Membership()
    assert said(membership.hear(server(0), 0.0), Table) == {}
    tables = said(membership.hear(server(1), 0.0), Table)
    assert set(tables) == {"s0", "s1"}
    assert membership.table is not None
    assert [entry.name for entry in membership.table.servers] == ["s0", "s1"]
    assert sum(owner == 0 for owner in membership.table.owners) == 512


def test_a_beat_is_told_what_is_newer_and_nothing_else() -> None:
    membership = started()
    assert said(membership.hear(Beat("s0", 1), 0.1), Table) != {}
    assert said(membership.hear(Beat("s0", 1, 1, 1), 0.1), Table) == {}


def test_a_worker_joins_at_a_round_that_every_server_promised() -> None:
    membership = started()
    asked = said(membership.hear(worker(0), 0.0), Propose)
    assert set(asked) == {"s0", "s1"}
    number = asked["s0"].number
    assert said(membership.hear(Promise("s0", 1, number, 4), 0.0), Decree) == {}
    decrees = said(membership.hear(Promise("s1", 1, number, 7), 0.0), Decree)
    assert list(decrees) == ["s0", "s1", "w0"], "servers first"
    assert decrees["w0"].members == (Member(0, 7, "w0", 1),)
    assert decrees["w0"].number > number


def test_the_first_round_waits_for_the_expected_workers() -> None:
    membership = started(1)
    assert said(membership.hear(worker(0, expected=2), 0.0), Propose) == {}
    asked = said(membership.hear(worker(1, expected=2), 0.0), Propose)
    decrees = said(membership.hear(Promise("s0", 1, asked["s0"].number, 1), 0.0), Decree)
    assert [member.worker for member in decrees["w0"].members] == [0, 1]


def joined(*workers: int) -> Membership:
    membership = started(1)
    for i in workers:
        asked = said(membership.hear(worker(i), 0.0), Propose)
        membership.hear(Promise("s0", 1, asked["s0"].number, 1), 0.0)
    return membership


def test_who_leaves_or_falls_silent_is_out_at_the_next_decree() -> None:
    membership = joined(0, 1, 2)
    assert members(said(membership.hear(Leave("w1", 1), 0.5), Decree)["s0"]) == [0, 2]
    membership.hear(Beat("w0", 1), 1.5)
    membership.hear(Beat("s0", 1), 1.5)
    assert members(said(membership.tick(2.5), Decree)["s0"]) == [0]
    refused = said(membership.hear(Beat("w2", 1), 2.6), Welcome)["w2"]
    assert not refused.accepted
    assert "join again" in refused.text
    assert said(membership.tick(2.7), Decree) == {}


def members(decree: Message) -> list[int]:
    assert isinstance(decree, Decree)
    return [member.worker for member in decree.members]


def test_a_proposal_that_is_dropped_frees_those_who_promised() -> None:
    membership = joined(0)
    proposal = said(membership.hear(worker(1), 0.0), Propose)["s0"]
    told = membership.hear(Leave("w1", 1), 0.1)
    decree = said(told, Decree)["s0"]
    assert members(decree) == [0]
    assert decree.number > proposal.number
    assert membership.hear(Promise("s0", 1, proposal.number, 3), 0.2) == []


def test_promises_that_are_lost_are_asked_for_again() -> None:
    membership = started()
    number = said(membership.hear(worker(0), 0.0), Propose)["s0"].number
    membership.hear(Promise("s0", 1, number, 1), 0.0)
    assert set(said(membership.tick(1.0), Propose)) == {"s1"}


def test_a_server_that_comes_back_gets_a_new_epoch_and_the_earlier_start_is_refused() -> None:
    membership = started()
    table = said(membership.hear(server(1, incarnation=2), 5.0), Table)["s0"]
    assert table.epoch == 2
    assert table.servers[1].address == "host:2"
    assert not said(membership.hear(server(1), 6.0), Welcome)["s1"].accepted
    assert not said(membership.hear(Beat("s1", 1), 6.0), Welcome)["s1"].accepted


def test_two_living_processes_cannot_be_the_same_worker() -> None:
    membership = joined(0)
    rival = Join("worker", "other", 1, worker=0)
    refused = said(membership.hear(rival, 0.1), Welcome)["other"]
    assert not refused.accepted
    assert "worker 0 is taken by w0" in refused.text
    membership.tick(3.0)
    assert said(membership.hear(rival, 3.1), Welcome)["other"].accepted


def test_whoever_is_unknown_is_asked_to_join() -> None:
    word = said(Membership().hear(Beat("w9", 1), 0.0), Welcome)["w9"]
    assert not word.accepted
    assert word.text == ""


def test_servers_are_told_of_clients_that_are_gone() -> None:
    membership = started()
    for name in ("c0", "c1"):
        membership.hear(Join("client", name, 3), 0.0)
    assert said(membership.hear(Leave("c0", 3), 1.0), Gone) == {"s0": Gone("c0", 3), "s1": Gone("c0", 3)}
    assert said(membership.tick(10.0), Gone) == {}
    assert said(membership.tick(2.0 * FORGET_LEASES + 0.1), Gone)["s0"] == Gone("c1", 3)
    assert set(membership.peers) == {"s0", "s1"}


def test_a_restarted_worker_is_out_at_once_and_in_again_at_a_later_round() -> None:
    membership = joined(0, 1)
    told = membership.hear(worker(1, incarnation=2), 0.5)
    assert members(said(told, Decree)["s0"]) == [0]
    decrees = said(membership.hear(Promise("s0", 1, said(told, Propose)["s0"].number, 9), 0.5), Decree)
    assert decrees["w1"].members == (Member(0, 1, "w0", 1), Member(1, 9, "w1", 2))

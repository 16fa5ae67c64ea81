"""The coordinator, word by word."""

import pytest

from gradtide.errors import StoreError
from gradtide.store.coordinator.membership import FORGET_LEASES, Membership
from gradtide.store.coordinator.peers import Tell
from gradtide.store.wire.messages import (
    Absent,
    Beat,
    CaughtUp,
    Decree,
    Gone,
    Join,
    Leave,
    Member,
    Message,
    Promise,
    Propose,
    Rival,
    Table,
    Welcome,
)

pytestmark = pytest.mark.quick


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
    assert said(membership.hear(Promise("s0", 1, number, 4, 1), 0.0), Decree) == {}
    decrees = said(membership.hear(Promise("s1", 1, number, 7, 1), 0.0), Decree)
    assert list(decrees) == ["s0", "s1", "w0"], "servers first"
    assert decrees["w0"].members == (Member(0, 7, "w0", 1),)
    assert decrees["w0"].number > number


def test_the_first_round_waits_for_the_expected_workers() -> None:
    membership = started(1)
    assert said(membership.hear(worker(0, expected=2), 0.0), Propose) == {}
    asked = said(membership.hear(worker(1, expected=2), 0.0), Propose)
    decrees = said(membership.hear(Promise("s0", 1, asked["s0"].number, 1, 1), 0.0), Decree)
    assert [member.worker for member in decrees["w0"].members] == [0, 1]


def joined(*workers: int) -> Membership:
    membership = started(1)
    for i in workers:
        asked = said(membership.hear(worker(i), 0.0), Propose)
        membership.hear(Promise("s0", 1, asked["s0"].number, 1, 1), 0.0)
    return membership


def test_who_leaves_or_falls_silent_is_out_at_the_next_decree() -> None:
    membership = joined(0, 1, 2)
    assert members(said(membership.hear(Leave("w1", 1), 0.5), Decree)["s0"]) == [0, 2]
    membership.hear(Beat("w0", 1), 1.5)
    membership.hear(Beat("s0", 1), 1.5)
    membership.lost("w2", 1)  # a connection that is closed, and not opened again within a lease
    assert members(said(membership.tick(2.5), Decree)["s0"]) == [0]
    refused = said(membership.hear(Beat("w2", 1), 2.6), Welcome)["w2"]
    assert not refused.accepted
    assert refused.text == "", "it may join again"
    assert said(membership.tick(2.7), Decree) == {}


def test_a_worker_whose_connection_stands_may_hang_for_longer_than_a_server() -> None:
    membership = joined(0)
    for quarter in range(1, 241):
        membership.hear(Beat("s0", 1), quarter / 4)
        assert said(membership.tick(quarter / 4), Decree) == {}
    assert members(said(membership.tick(60.1), Decree)["s0"]) == []
    told = membership.hear(Join("worker", "w0", 1, worker=0), 60.2)
    decree = said(membership.hear(Promise("s0", 1, said(told, Propose)["s0"].number, 9, 1), 60.3), Decree)["s0"]
    assert decree.members == (Member(0, 9, "w0", 1),)


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
    assert membership.hear(Promise("s0", 1, proposal.number, 3, 1), 0.2) == []


def test_a_worker_that_says_it_will_go_while_another_comes_makes_the_servers_promise_anew() -> None:
    """What is proclaimed frees those who promised: rounds that they named may be closed before the newcomer is in."""
    membership = joined(0)
    proposal = said(membership.hear(worker(1), 0.0), Propose)["s0"]
    told = membership.hear(Leave("w0", 1, 5), 0.1)
    assert said(told, Decree)["s0"].number > proposal.number
    again = said(told, Propose)["s0"]
    assert membership.hear(Promise("s0", 1, proposal.number, 3, 1), 0.2) == []
    decree = said(membership.hear(Promise("s0", 1, again.number, 6, 1), 0.3), Decree)["s0"]
    assert decree.members == (Member(0, 1, "w0", 1, 5), Member(1, 6, "w1", 1))


def test_a_proposal_outlives_its_coordinator_so_that_those_who_promised_are_freed() -> None:
    """Who wanted in had died too: the rounds of those who were in waited for ever."""
    membership = joined(0)
    proposal = said(membership.hear(worker(1), 0.0), Propose)["s0"]
    record = membership.take_unwritten()
    assert record is not None
    again = Membership.restore(record, 50.0)
    again.hear(Beat("s0", 1), 50.1)
    again.hear(Beat("w0", 1), 50.1)
    asked = said(again.tick(50.6), Propose)["s0"]
    assert asked == Propose(again.term, proposal.number)
    decree = said(again.hear(Promise("s0", 1, asked.number, 3, 1), 50.7), Decree)["s0"]
    assert members(decree) == [0]
    assert decree.number > proposal.number


def test_a_coordinator_that_starts_again_decides_nothing_before_its_servers_were_heard_of() -> None:
    """With an old journal it took a worker in, and stopped when a server told more; what the right one said next had
    the same number, and that worker never heard of it."""
    membership = started(2)
    record = membership.take_unwritten()
    assert record is not None
    again = Membership.restore(record, 50.0, lease_s=2.0)
    comer = Join("worker", "w0", 0, worker=0, token=7)
    told = again.hear(comer, 50.1)
    assert set(said(told, Welcome)) == {"w0"}
    assert said(told, Propose) == {}
    assert said(again.hear(Beat("s0", 1, 1, 1), 50.2), Propose) == {}
    assert again.resize(1)[0].text.startswith("the coordinator has just been started")
    again.hear(Beat("s1", 1, 1, 1), 50.3)
    assert set(said(again.tick(50.4), Propose)) == {"s0", "s1"}

    silent = Membership.restore(record, 50.0, lease_s=2.0)
    silent.hear(comer, 50.1)
    silent.tick(50.2)
    for quarter in range(10):
        silent.hear(Beat("s0", 1, 1, 1), 50.3 + quarter / 4)
        told = silent.tick(50.4 + quarter / 4)
    assert silent.peers["s1"].alive is False
    assert silent.decree is None
    assert silent._rounds.proposal is not None, "nobody waits for a server that is dead"


def test_promises_that_are_lost_are_asked_for_again() -> None:
    membership = started()
    number = said(membership.hear(worker(0), 0.0), Propose)["s0"].number
    membership.hear(Promise("s0", 1, number, 1, 1), 0.0)
    assert set(said(membership.tick(1.0), Propose)) == {"s1"}


def test_a_living_server_is_not_displaced_by_one_of_the_same_name() -> None:
    membership = started()
    for second in (server(1, incarnation=2), server(1, incarnation=0)):
        refused = said(membership.hear(second, 1.0), Welcome)["s1"]
        assert not refused.accepted
        assert "another s1 at host:1 is alive" in refused.text


def test_incarnations_are_given_in_order_and_the_same_to_who_asks_again() -> None:
    membership, told = Membership(), []
    for token in (7, 7, 8):
        joins = Join("client", f"c{token}", 0, token=token)
        told += [said(membership.hear(joins, 0.0), Welcome)[f"c{token}"]]
    assert [(word.incarnation, word.token) for word in told] == [(1, 7), (1, 7), (2, 8)]
    record = membership.take_unwritten()
    assert record is not None
    again = Membership.restore(record, 50.0)
    later = said(again.hear(Join("client", "c9", 0, token=9), 50.0), Welcome)["c9"].incarnation
    assert later > 2, "nobody gets a number twice, whoever starts again"


def test_a_server_that_comes_back_gets_a_new_epoch_and_the_earlier_start_is_refused() -> None:
    membership = started()
    membership.lost("s1", 1)
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
    assert refused.rival == Rival("w0", 0, 59.9)
    membership.hear(Beat("w0", 1), 0.2)
    assert said(membership.hear(rival, 0.3), Welcome)["other"].rival == Rival("w0", 1, 59.9)
    membership.lost("w0", 1)
    membership.tick(3.0)
    assert said(membership.hear(rival, 3.1), Welcome)["other"].accepted


def test_whoever_is_unknown_is_asked_to_join() -> None:
    word = said(Membership().hear(Beat("w9", 1), 0.0), Welcome)["w9"]
    assert not word.accepted
    assert word.text == ""


def test_servers_are_told_of_clients_that_are_gone() -> None:
    membership = started()
    for number in (3, 4):
        membership.hear(Join("client", f"c{number}", number), 0.0)
    membership.hear(Leave("c3", 3), 1.0)
    assert said(membership.tick(0.1), Gone) == dict.fromkeys(("s0", "s1"), Gone(Absent(5, (4,))))
    told = [tell for quarter in range(8 * FORGET_LEASES) for tell in membership.tick(quarter / 4)]
    assert said(told, Gone) == {}
    assert said(membership.tick(2.0 * FORGET_LEASES + 0.1), Gone)["s0"] == Gone(Absent(5))
    assert set(membership.peers) == {"s0", "s1"}
    refused = said(membership.hear(Join("client", "c4", 4), 200.0), Welcome)["c4"]
    assert not refused.accepted
    assert "connect again" in refused.text


def test_a_worker_that_hangs_is_struck_off_after_its_own_lease_and_not_forgotten_before() -> None:
    membership, forget_s = joined(0, 1), 2 * FORGET_LEASES
    membership.worker_lease_s = forget_s + 10.0
    told = [tell for half in range(2 * forget_s + 10) for tell in membership.tick(half / 2)]
    assert {"w0", "w1"} <= set(membership.peers), "rounds still wait for them"
    assert said(told, Gone) == {}
    for half in range(2 * forget_s + 10, 2 * forget_s + 30):
        membership.tick(half / 2)
    assert membership.decree is not None
    assert membership.decree.members == (), "nobody waits for who is gone"
    assert {"w0", "w1"}.isdisjoint(membership.peers)


def test_a_restarted_worker_is_out_at_once_and_in_again_at_a_later_round() -> None:
    membership = joined(0, 1)
    told = membership.hear(worker(1, incarnation=2), 0.5)
    assert members(said(told, Decree)["s0"]) == [0]
    decrees = said(membership.hear(Promise("s0", 1, said(told, Propose)["s0"].number, 9, 1), 0.5), Decree)
    assert decrees["w1"].members == (Member(0, 1, "w0", 1), Member(1, 9, "w1", 2))


def test_a_coordinator_that_was_stopped_itself_evicts_nobody() -> None:
    membership = joined(0, 1)
    membership.tick(0.5)
    assert membership.tick(60.0) == []
    assert {peer.alive for peer in membership.peers.values()} == {True}


# --- replicas ---


def replicated(servers: int = 3, replicas: int = 1) -> Membership:
    membership = Membership(lease_s=2.0)
    for i in range(servers):
        membership.hear(Join("server", f"s{i}", 1, f"s{i}", expected=servers, replicas=replicas), 0.0)
    return membership


def test_each_shard_has_its_replicas_on_other_servers() -> None:
    table = replicated(3, 2).table
    assert table is not None
    for owner, backups in zip(table.owners, table.backups, strict=True):
        assert len({owner, *backups}) == 3
    table = replicated(4, 1).table
    assert table is not None
    of_s0 = [backups[0] for owner, backups in zip(table.owners, table.backups, strict=True) if owner == 0]
    assert max(map(of_s0.count, (1, 2, 3))) <= len(of_s0) // 3 + 1, "its heirs share what it held"


def test_replicas_are_on_other_machines_where_there_are_any() -> None:
    membership = Membership()
    for i, host in enumerate("aabb"):
        membership.hear(Join("server", f"s{i}", 1, f"tcp:{host}:{i}", expected=4, replicas=1), 0.0)
    assert membership.table is not None
    assert all((o < 2) != (b[0] < 2) for o, b in zip(membership.table.owners, membership.table.backups, strict=True))


def test_a_closed_socket_promotes_replicas_at_once_and_only_those_in_sync() -> None:
    membership = replicated()
    before = membership.table
    table = said(membership.lost("s1", 1), Table)["s0"]
    assert before is not None
    assert isinstance(table, Table)
    assert table.epoch == 2
    for shard, owner in enumerate(before.owners):
        if owner == 1:
            assert table.owners[shard] in before.backups[shard]
            assert {*table.joining[shard], table.owners[shard]} == {0, 2}
        else:
            assert table.owners[shard] == owner
            assert 1 not in table.backups[shard]


def test_a_shard_is_lost_only_when_everybody_in_sync_was_replaced() -> None:
    membership = replicated(2)
    membership.lost("s0", 1)
    membership.lost("s1", 1)
    assert membership.table is not None
    assert not any(membership.table.lost), "they may come back"
    membership.hear(Join("server", "s0", 2, "s0", expected=2, replicas=1), 1.0)
    assert not any(membership.table.lost), "s1 may come back, and has everything"
    membership.hear(Join("server", "s1", 2, "s1", expected=2, replicas=1), 1.0)
    assert all(membership.table.lost)


def test_nobody_is_struck_off_for_a_primary_that_may_be_dead_itself() -> None:
    membership = replicated(2)
    for s in range(1, 12):
        membership.tick(s / 10)
    before = membership.table
    assert before is not None
    assert membership.lost("s1", 1) == [], "s0 is overdue: whoever of the two comes back first has everything"
    assert membership.table == before
    membership.hear(Beat("s0", 1), 1.2)
    assert set(membership.table.owners) == {0}
    assert set(membership.table.backups) == {()}


def test_who_was_given_up_while_its_primary_was_overdue_leads_when_the_primary_has_been_replaced() -> None:
    membership = replicated(2)
    for s in range(1, 12):
        membership.tick(s / 10)
    membership.lost("s1", 1)
    membership.lost("s0", 1)
    membership.hear(Join("server", "s0", 2, "s0", expected=2, replicas=1), 1.2)
    membership.hear(Beat("s1", 1), 1.3)
    assert membership.table is not None
    assert set(membership.table.owners) == {1}
    assert not any(membership.table.lost)


def test_nobody_is_let_go_for_a_server_that_has_died_while_its_primary_was_overdue() -> None:
    membership = Membership(lease_s=2.0)
    for i in range(2):
        membership.hear(server(i), 0.0)
    membership.hear(Leave("s0", 1), 0.0)
    table = membership.table
    assert table is not None
    moving = tuple(shard for shard, owner in enumerate(table.owners) if owner == 0)
    assert all(table.joining[shard] == (1,) for shard in moving)
    for s in range(1, 14):
        membership.tick(s / 10)
        membership.hear(Beat("s1", 1, 1, table.epoch), s / 10)
    membership.lost("s1", 1)
    membership.hear(CaughtUp("s0", 1, table.epoch, "s1", moving), 1.3)
    membership.hear(Beat("s0", 1, 1, membership.table.epoch), 1.3)
    assert [entry.name for entry in membership.table.servers] == ["s0", "s1"]
    assert all(membership.table.owners[shard] == 0 for shard in moving)
    assert not membership.peers["s0"].dismissed


def test_only_the_primary_of_this_epoch_says_who_has_caught_up() -> None:
    membership = replicated(2)
    membership.lost("s1", 1)
    membership.hear(Join("server", "s1", 2, "s1", expected=2, replicas=1), 1.0)
    table = membership.table
    assert table is not None
    assert set(table.joining) == {(1,)}
    shards = tuple(range(1024))
    assert membership.hear(CaughtUp("s0", 1, table.epoch - 1, "s1", shards), 1.0) == []
    assert membership.hear(CaughtUp("s1", 2, table.epoch, "s1", shards), 1.0) == []
    assert said(membership.hear(CaughtUp("s0", 1, table.epoch, "s1", shards), 1.0), Table) != {}
    assert set(membership.table.backups) == {(1,)}


def test_a_coordinator_goes_on_from_its_journal_with_a_higher_term() -> None:
    membership = joined(0, 1)
    record = membership.take_unwritten()
    assert record is not None
    assert membership.take_unwritten() is None
    again = Membership.restore(record, 50.0)
    assert again.term == 2
    assert again.decree == membership.decree
    assert said(again.hear(Beat("w0", 1, 1, 1), 50.1), Table)["w0"].owners == membership.table.owners
    told = again.tick(50.2)
    assert told == [], "everybody has a lease's time to be heard of"


def test_a_coordinator_without_its_journal_says_so() -> None:
    with pytest.raises(StoreError, match="journal"):
        Membership().hear(Join("server", "s0", 1, "s0", expected=1, term=2, epoch=7), 0.0)


def test_an_old_journal_is_given_away_by_a_server_that_was_started_again_since() -> None:
    record = started().take_unwritten()
    assert record is not None
    again = Membership.restore(record, 50.0)
    with pytest.raises(StoreError, match="old one"):
        again.hear(Beat("s1", 2, term=1, epoch=3), 50.1)
    again.hear(Beat("s1", 2, term=1, epoch=1), 50.1)  # it knows no more than the journal: it may join


def test_a_client_with_a_number_that_nobody_was_given_leaves_numbers_for_those_who_come_later() -> None:
    membership = started()
    for number in ((1 << 64) - 1, 1 << 62, 1 << 40):
        (refused,) = membership.hear(Join("worker", "w", number, worker=0), 0.0)
        assert not refused.message.accepted
        assert "connect again" in refused.message.text
    welcome = said(membership.hear(Join("client", "c", 0, token=7), 0.0), Welcome)["c"]
    assert (welcome.accepted, welcome.incarnation) == (True, 2)


def test_nobody_but_a_server_takes_a_servers_name() -> None:
    membership = started()
    membership.hear(worker(0), 0.0)
    for join in (Join("worker", "s1", 5, worker=1), Join("client", "s1", 0, token=9), Join("server", "w0", 0, "x")):
        (refused,) = membership.hear(join, 0.0)
        assert "is the name of a" in refused.message.text
    membership.lost("s1", 1)
    assert membership.peers["s1"].join.role == "server"
    assert said(membership.tick(1.0), Table) == {}

"""One client, message by message."""

import pytest

from gradtide.store.client.operations import Done, Send, TellCoordinator
from gradtide.store.client.session import Session, SessionOptions
from gradtide.store.wire.credit import ANSWERS_KEPT
from gradtide.store.wire.messages import (
    Configure,
    Decree,
    KeySpec,
    Member,
    Noted,
    Pull,
    Pulled,
    Push,
    Pushed,
    Refused,
    Rival,
    ServerEntry,
    Table,
    UpdateRule,
    Version,
    Welcome,
)
from gradtide.store.wire.placement import SHARDS, block_elements, deal, shard_of

pytestmark = pytest.mark.quick

BIG = KeySpec("big", (2 * block_elements(8),), "int64", UpdateRule("add"))
SMALL = KeySpec("small", (4,), "int64", UpdateRule("add"))
SERVERS = tuple(ServerEntry(f"s{i}", f"host{i}", 1) for i in range(2))


def session(worker: int = -1, **options: float) -> Session[str]:
    made: Session[str] = Session("c", 1, worker, options=SessionOptions(resend_s=1.0, resend_most_s=8.0, **options))
    made.hear(Table(1, 1, SERVERS, deal(2)), 0.0)
    for spec in (BIG, SMALL):
        made.learn(spec)
    return made


def sends(told: list) -> list[Send[str]]:
    return [instruction for instruction in told if isinstance(instruction, Send)]


def done(told: list) -> list[Done[str]]:
    return [instruction for instruction in told if isinstance(instruction, Done)]


def server_of(key: str, block: int = 0) -> str:
    return f"s{shard_of(key, block) % 2}"


def answer(made: Session[str], key: str, sequence: int, block: int = 0, version: int = 1, now_s: float = 0.0) -> list:
    shard = shard_of(key, block)
    return made.receive(server_of(key, block), Pushed(sequence, shard, Version(1, version)), (), now_s)


def test_many_keys_are_one_request_a_server_and_the_layout_is_worked_out_once() -> None:
    made = session()
    layout = made.layout(("big", "small"))
    assert made.layout(("big", "small")) is layout
    _, told = made.push(layout, [piece.key + str(piece.block) for piece in layout.pieces], now_s=0.0)
    assert sorted(send.server.name for send in sends(told)) == ["s0", "s1"]
    for send in sends(told):
        assert isinstance(send.message, Push)
        named = [f"{piece.key}{piece.block}" for part in send.message.parts for piece in part.pieces]
        assert named == list(send.values)
        assert all(f"s{part.shard % 2}" == send.server.name for part in send.message.parts)


def test_parts_travel_until_the_server_has_answered_and_again_when_it_forgot() -> None:
    made = session()
    layout = made.layout(("small",))
    first, told = made.push(layout, ["a"], now_s=0.0)
    assert sends(told)[0].message.parts
    assert [d.refused for d in done(answer(made, "small", first))] == [None]
    second, told = made.push(layout, ["b"], now_s=0.0)
    assert sends(told)[0].message.parts == ()
    again = made.receive(server_of("small"), Refused(second, -1, "layout"), (), 0.0)
    assert sends(again)[0].message.parts == layout.parts
    assert sends(again)[0].values == ["b"]


def test_what_is_not_answered_goes_again_with_the_same_bytes_less_and_less_often() -> None:
    made = session()
    sequence, told = made.push(made.layout(("small",)), ["a"], now_s=0.0)
    times = []
    for tick in range(400):
        for send in sends(made.tick(tick / 10)):
            assert (send.message, send.values) == (sends(told)[0].message, ["a"])
            times.append(tick / 10)
    assert times == [1.0, 3.0, 7.0, 15.0, 23.0, 31.0, 39.0]
    assert done(answer(made, "small", sequence)) != []
    assert sends(made.tick(100.0)) == []


def test_a_request_that_was_sent_very_often_still_waits_for_its_turn() -> None:
    made = session()
    made.push(made.layout(("small",)), ["a"], now_s=0.0)
    times = [tick for tick in range(9000) if sends(made.tick(float(tick)))]
    assert len(times) > 1100  # 2**1100 is no float
    assert times[-1] - times[-2] == 8


def test_an_operation_is_done_when_every_shard_has_answered_once() -> None:
    made = session()
    sequence, _ = made.push(made.layout(("big",)), ["a", "b"], now_s=0.0)
    assert done(answer(made, "big", sequence, 0)) == []
    assert done(answer(made, "big", sequence, 0)) == []
    finished = done(answer(made, "big", sequence, 1))
    assert [d.sequence for d in finished] == [sequence]
    assert set(finished[0].versions) == {shard_of("big", 0), shard_of("big", 1)}
    assert done(answer(made, "big", sequence, 1)) == []


def test_what_follows_names_the_unanswered_push_before_it() -> None:
    made = session()
    layout = made.layout(("small",))
    first, _ = made.push(layout, ["a"], now_s=0.0)
    second, told = made.push(layout, ["b"], now_s=0.0)
    assert sends(told)[0].message.after == (first,)
    _, told = made.pull(layout, now_s=0.0)
    assert sends(told)[0].message.after == (second,)
    _, told = made.configure("small", {"lr": 1.0}, 0, 0.0)
    assert isinstance(sends(told)[0].message, Configure)
    assert sends(told)[0].message.after == (second,)
    answer(made, "small", first)
    answer(made, "small", second)
    _, told = made.pull(made.layout(("small",)), now_s=0.0)
    assert sends(told)[0].message.after == (3 + 1,), "the change is still unanswered"


def test_an_early_push_makes_the_one_before_it_go_again() -> None:
    made = session()
    layout = made.layout(("small",))
    first, _ = made.push(layout, ["a"], now_s=0.0)
    second, _ = made.push(layout, ["b"], now_s=0.0)
    made.receive(server_of("small"), Refused(second, shard_of("small", 0), "early"), (), 0.1)
    assert [send.message.sequence for send in sends(made.tick(0.4))] == [first, second]


def test_what_one_shard_refuses_for_now_goes_again_soon_though_others_answer() -> None:
    """Just after a server took over, some of its shards answer and others can't yet."""
    made = session()
    both = [key for key in ("big", "small") for _ in made.layout((key,)).parts]
    shares = made.layout(("big", "small")).shares(made.table)
    share = next(share for share in shares if len(share.parts) > 1)
    sequence, _ = made.push(made.layout(("big", "small")), ["a"] * len(both), now_s=0.0)
    name, shards = f"s{share.server}", [part.shard for part in share.parts]
    made.receive(name, Refused(sequence, shards[0], "early"), (), 0.1)
    made.receive(name, Pushed(sequence, shards[1], Version(1, 1)), (), 0.1)
    again = [send.message.sequence for send in sends(made.tick(0.2)) if send.server.name == name]
    assert again == [sequence], "it waited for eight times the first wait"


def test_credit_holds_back_what_the_server_has_not_taken_in() -> None:
    made = session(credit_bytes=6 << 20)
    spec = KeySpec("block", (block_elements(8),), "int64", UpdateRule("add"))
    made.learn(spec)
    layout = made.layout(("block",))
    first, told = made.push(layout, ["a"], now_s=0.0)
    assert len(sends(told)) == 1
    second, told = made.push(layout, ["b"], now_s=0.0)
    assert sends(told) == [], "8 MiB would be in flight"
    noted = made.receive(server_of("block"), Noted(first, shard_of("block", 0)), (), 0.0)
    assert [send.message.sequence for send in sends(noted)] == [second], "it is in; its answer may take a round"
    assert first in made.operations


def test_no_more_pushes_are_unanswered_than_a_shard_remembers() -> None:
    made = session()
    layout = made.layout(("small",))
    sent = [len(sends(made.push(layout, ["a"], now_s=0.0)[1])) for _ in range(ANSWERS_KEPT + 2)]
    assert sum(sent) == ANSWERS_KEPT
    assert [send.message.sequence for send in sends(answer(made, "small", 1))] == [ANSWERS_KEPT + 1]


def test_a_broken_connection_sends_again_in_order_with_the_layout() -> None:
    made = session()
    layout = made.layout(("small",))
    for value in "abc":
        sequence, _ = made.push(layout, [value], now_s=0.0)
        if value == "a":
            answer(made, "small", sequence)
    again = sends(made.lost(server_of("small"), 0.5))
    assert [send.values for send in again] == [["b"], ["c"]]
    assert all(send.message.parts for send in again)


def test_a_new_table_sends_what_is_unanswered_to_the_new_owner() -> None:
    made = session()
    sequence, _ = made.push(made.layout(("big",)), ["a", "b"], now_s=0.0)
    answer(made, "big", sequence, 0)
    told = made.receive(server_of("big", 1), Refused(sequence, -1, "epoch", epoch=2), (), 0.0)
    assert sends(told) == []
    assert len(told) == 1, "asks the coordinator"
    moved = Table(1, 2, SERVERS, tuple(1 - owner for owner in deal(2)))
    again = sends(made.hear(moved, 0.1))
    assert [send.server.name for send in again] == [server_of("big", 0)]
    assert again[0].message.epoch == 2
    assert again[0].values == ["b"]


def test_a_read_that_is_older_than_what_was_seen_is_not_taken() -> None:
    made = session()
    layout, shard = made.layout(("small",)), shard_of("small", 0)
    pushed, _ = made.push(layout, ["a"], now_s=0.0)
    answer(made, "small", pushed, version=7)
    read, told = made.pull(layout, now_s=0.0)
    assert sends(told)[0].message.at_least == (), "within an epoch a shard never goes back"
    assert done(made.receive(server_of("small"), Pulled(read, shard, Version(1, 6)), ("old",), 0.0)) == []
    assert [send.message.sequence for send in sends(made.tick(1.0))] == [read], "it is asked for again"
    finished = done(made.receive(server_of("small"), Pulled(read, shard, Version(1, 7)), ("new",), 0.0))
    assert finished[0].values == {shard: ("new",)}
    made.hear(Table(1, 2, SERVERS, deal(2)), 0.0)
    _, told = made.pull(layout, now_s=0.0)
    assert sends(told)[0].message.at_least == (Version(1, 7),), "after a change of table it must be said"


def test_at_least_is_what_the_user_asked_for() -> None:
    made = session()
    _, told = made.pull(made.layout(("small",)), now_s=0.0, at_least={shard_of("small", 0): Version(1, 42)})
    assert sends(told)[0].message.at_least == (Version(1, 42),)


def test_a_worker_counts_its_steps() -> None:
    made = session(worker=3)
    assert not made.ready
    for name in "ab":
        made.learn(KeySpec(name, (4,), "int64", UpdateRule("add"), delay=0))
    made.hear(Decree(1, 2, (Member(3, 5, "c", 1),)), 0.0)
    assert made.ready

    def push(name: str) -> int:
        return sends(made.push(made.layout((name,)), ["x"], now_s=0.0)[1])[0].message.round

    def pull(*names: str) -> int:
        message = sends(made.pull(made.layout(names), now_s=0.0)[1])[0].message
        assert isinstance(message, Pull)
        return message.round

    assert [pull("a", "b"), push("a"), push("b"), pull("a", "b")] == [5, 5, 5, 6]
    assert [push("a"), push("a"), push("b")] == [6, 7, 7]
    assert sends(made.push(made.layout(("small",)), ["x"], now_s=0.0)[1])[0].message.round == 0


def test_the_members_of_a_step_are_those_of_the_decree_that_servers_name_for_it() -> None:
    made = session(worker=3)
    made.learn(KeySpec("a", (4,), "int64", UpdateRule("add"), delay=0))
    both = Member(3, 1, "c", 1), Member(4, 1, "d", 1)
    made.hear(Decree(1, 2, both), 0.0)
    made.hear(Decree(1, 3, both[:1]), 0.0)
    assert made.members == (3,)
    for step, number, members in ((2, 2, (3, 4)), (3, 3, (3,))):
        sequence, _ = made.pull(made.layout(("a",)), now_s=0.0, round_=step)
        answer = Pulled(sequence, shard_of("a", 0), Version(1, step), step - 1, decree=number)
        made.receive(server_of("a"), answer, ("x",), 0.0)
        assert made.members == members


def test_a_worker_that_was_struck_off_learns_from_the_servers_what_counted_and_is_in_again() -> None:
    made = session(worker=3)
    made.learn(KeySpec("a", (4,), "int64", UpdateRule("add"), delay=0))
    made.hear(Decree(1, 2, (Member(3, 1, "c", 1),)), 0.0)
    made.push(made.layout(("a",)), ["x"], now_s=0.0)
    assert made.hear(Decree(1, 3, ()), 0.0) == []
    assert not made.ready
    assert len(made.operations) == 1
    made.hear(Decree(1, 4, (Member(3, 7, "c", 1),)), 0.0)
    assert made.ready
    assert made.step == 7


def test_a_refusal_that_comes_when_a_worker_is_in_again_already_does_not_put_it_out_for_good() -> None:
    made = session(worker=3)
    made.learn(KeySpec("a", (4,), "int64", UpdateRule("add"), delay=0))
    made.hear(Decree(1, 2, (Member(3, 1, "c", 1),)), 0.0)
    sequence, _ = made.push(made.layout(("a",)), ["x"], now_s=0.0)
    made.hear(Decree(1, 3, ()), 0.0)
    again = Decree(1, 4, (Member(3, 7, "c", 1),))
    made.hear(again, 0.0)
    late = Refused(sequence, shard_of("a", 0), "not_member", "it was struck off")
    told = made.receive(server_of("a"), late, (), 0.0)
    assert [word.message.decree for word in told if isinstance(word, TellCoordinator)] == [0], "it asks who is in"
    made.hear(again, 0.0)
    assert made.ready
    assert made.hear(again, 0.0) == []


def test_a_worker_that_is_put_out_for_good_is_told_so() -> None:
    made = session(worker=3, rejoin=False)
    made.learn(KeySpec("a", (4,), "int64", UpdateRule("add"), delay=0))
    made.hear(Decree(1, 2, (Member(3, 1, "c", 1),)), 0.0)
    made.push(made.layout(("a",)), ["x"], now_s=0.0)
    made.push(made.layout(("small",)), ["x"], now_s=0.0)
    finished = done(made.hear(Decree(1, 3, ()), 0.0))
    assert [d.refused.reason for d in finished if d.refused] == ["not_member"]
    assert "connect again" in made.expelled
    assert len(made.operations) == 1, "the async push goes on"


def test_a_refusal_ends_an_operation_with_its_text() -> None:
    made = session()
    sequence, _ = made.push(made.layout(("small",)), ["x"], now_s=0.0)
    told = made.receive(
        server_of("small"), Refused(sequence, shard_of("small", 0), "unknown_key", "no such key"), (), 0.0
    )
    assert done(told)[0].refused is not None
    assert made.operations == {}


def test_a_push_that_settles_is_over_when_every_shard_has_said_whether_it_is_in() -> None:
    """What compression has left out is given back for the shards where it does not count, and for no other."""
    made = session()
    layout = made.layout(("big",))
    refused, counted = (shard_of("big", block) for block in range(2))
    sequence, _ = made.push(layout, ["a", "b"], now_s=0.0, settles=True)
    for _ in range(2):  # what is said twice is one answer
        assert done(made.receive(server_of("big", 0), Refused(sequence, refused, "nan", "no"), (), 0.0)) == []
    again = sends(made.tick(1.1))
    assert [send.server.name for send in again] == [server_of("big", 1)], "the other is still asked"
    over = done(answer(made, "big", sequence, block=1))
    assert [report.refused.text for report in over] == ["no"]
    assert set(over[0].versions) == {counted}
    assert not made.operations


def test_a_push_that_settles_is_over_when_a_server_refuses_all_that_it_has_of_it() -> None:
    made = session()
    sequence, _ = made.push(made.layout(("big",)), ["a", "b"], now_s=0.0, settles=True)
    assert done(answer(made, "big", sequence, block=0)) == []
    over = done(made.receive(server_of("big", 1), Refused(sequence, -1, "rule", "no"), (), 0.0))
    assert [set(report.versions) for report in over] == [{shard_of("big", 0)}]


def test_a_push_that_settles_asks_the_other_shards_when_one_is_lost() -> None:
    made = session()
    layout = made.layout(("big",))
    first, _ = made.push(layout, ["a", "b"], now_s=0.0)
    answer(made, "big", first, block=0)
    answer(made, "big", first, block=1)
    plain, _ = made.push(layout, ["a", "b"], now_s=0.0)
    settling, _ = made.push(layout, ["a", "b"], now_s=0.0, settles=True)
    lost, left = (shard_of("big", block) for block in range(2))
    epochs = tuple(2 if shard == lost else 0 for shard in range(SHARDS))
    told = made.hear(Table(1, 2, SERVERS, deal(2), lost=epochs), 0.0)
    assert [(report.sequence, report.refused.reason) for report in done(told)] == [(plain, "rolled_back")]
    over = done(made.receive(server_of("big", 1), Pushed(settling, left, Version(2, 2)), (), 0.0))
    assert [(report.refused.reason, set(report.versions)) for report in over] == [("rolled_back", {left})]


def test_every_server_is_asked_for_its_keys() -> None:
    made = session()
    _, told = made.keys("", 0.0)
    assert {send.server.name for send in sends(told)} == {"s0", "s1"}


def test_ten_thousand_keys_are_still_one_request_a_server() -> None:
    made = session()
    names = tuple(f"k{i}" for i in range(10_000))
    for name in names:
        made.learn(KeySpec(name, (4,), "int64", UpdateRule("add")))
    layout = made.layout(names)
    assert len(layout.parts) <= SHARDS
    _, told = made.push(layout, ["v"] * 10_000, now_s=0.0)
    assert len(sends(told)) == 2


def test_a_request_at_which_a_living_server_hangs_up_three_times_fails_alone() -> None:
    made = session()
    bad, _ = made.push(made.layout(("small",)), ["x"], now_s=0.0)
    good, _ = made.push(made.layout(("small",)), ["y"], now_s=0.0)
    name = server_of("small")
    for _ in range(3):  # the first time it may have been for either
        told = made.lost(name, 0.0, hung_up=True)
        assert done(told) == []
        assert [send.message.sequence for send in sends(told)] == [bad], "by itself, to see whether it is that one"
    for _ in range(5):
        assert done(made.lost(name, 0.0)) == [], "one that was started again, or could not be reached, is no reason"
    (failed,) = done(made.lost(name, 0.0, hung_up=True))
    assert failed.sequence == bad
    assert "has hung up 3 times at this request" in failed.refused.text
    assert list(made.operations) == [good]


def test_a_network_that_cuts_again_and_again_ends_no_request() -> None:
    """Cuts while much is under way say nothing about the first of them, and what is kept for a while is no poison."""
    made = session()
    sequences = [made.push(made.layout(("small",)), ["x"], now_s=0.0)[0] for _ in range(5)]
    name, wait_s = server_of("small"), made.options.resend_s
    for number in range(1, 10):
        assert done(made.lost(name, number * wait_s, hung_up=True)) == []
        assert sends(made.tick((number + 0.99) * wait_s)) == []
        again = made.tick((number + 1) * wait_s)
        assert {send.message.sequence for send in sends(again)} >= set(sequences[1:])
    assert list(made.operations) == sequences


def test_who_goes_says_so_early_enough_for_those_who_may_be_ahead_of_it() -> None:
    made = session(worker=0)
    made.hear(Decree(1, 1, (Member(0, 1, "c", 1),)), 0.0)
    made.step = 7
    assert made.announce_leave()[0] == 10
    made.learn(KeySpec("late", (4,), "float32", UpdateRule("mean"), 5))
    assert made.announce_leave()[0] == 15, "others may have cut the batch of step 12 already"


def test_who_is_in_a_step_is_known_with_the_decree_that_the_servers_name() -> None:
    made = session(worker=0)
    made.hear(Decree(1, 3, (Member(0, 1, "c", 1),)), 0.0)
    sequence, _ = made.pull(made.layout(("small",)), now_s=0.0)
    assert made.knows_members
    made.receive(server_of("small"), Pulled(sequence, shard_of("small", 0), Version(1, 1), decree=4), ("v",), 0.0)
    assert not made.knows_members
    made.hear(Decree(1, 5, (Member(0, 1, "c", 1), Member(1, 2, "d", 2))), 0.1)
    assert made.knows_members


def test_a_number_that_is_taken_is_waited_for_until_its_owner_was_heard_of_again_and_again() -> None:
    made: Session[str] = Session("c", 0, 0, token=7)

    def refused(words: int, name: str = "old") -> str:
        made.hear(Welcome("c", 0, 2.0, False, "taken", token=7, rival=Rival(name, words, 60.0)), 0.0)
        return made.expelled

    assert [refused(words) for words in (5, 5, 8, 8, 8, 9)] == [""] * 6
    assert next(told.message for told in made.tick(1.0)).name == "c"  # it asks again
    assert refused(20, "another") == ""
    assert [refused(words, "another") for words in (21, 22, 23)] == ["", "", "taken"]

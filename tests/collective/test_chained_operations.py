"""Operations asked for one after another on the same memory."""

import torch
from cases import group_of

from gradtide.collective.groups.group import Group

LAYOUTS = {
    "plain": lambda number: torch.full((1000,), float(number)),
    "strided": lambda number: torch.full((1000, 2), float(number))[:, 0],
    "conjugated": lambda number: torch.full((1000,), complex(number, 1)).conj(),
}


def chained(group):
    """Of each layout: reduced twice, in the background; then gathered after an all-reduce that may be under way."""
    found = {}
    for name, make in LAYOUTS.items():
        tensor = make(1)
        handles = [group.all_reduce(tensor, async_op=True) for _ in range(2)]
        rows = group.all_gather(tensor)
        group.all_reduce(tensor)
        for handle in handles:
            handle.wait(20)
        found[name] = rows[:, 0].real.tolist(), tensor[0].real.item()
    return found


def chain_on_one_host(rank, size):
    return chained(group_of(rank, size))


def chain_between_hosts(rank, size):
    with Group.from_environment(timeout_s=30) as group:
        return chained(group)


def test_operations_in_a_row_on_memory_of_any_layout_see_what_came_before(ranks):
    for found in ranks.run(chain_on_one_host, 2):
        assert set(map(str, found.values())) == {"([4.0, 4.0], 8.0)"}, found


def test_so_they_do_between_hosts(far):
    for found in far.run(chain_between_hosts, 4):
        assert set(map(str, found.values())) == {"([16.0, 16.0, 16.0, 16.0], 64.0)"}, found

"""Ranks of a job that a launcher started, on two hosts."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from ranks import Ranks, move

from gradtide.errors import ConfigError
from gradtide.testing import hosts

__all__ = ["far_ranks"]


@contextmanager
def far_ranks(count: int, rate: str) -> Iterator[Ranks]:
    """The first half of them on one host, the others on the other; a wire of this rate between."""
    with ExitStack() as stack:
        try:
            inside = stack.enter_context(hosts.two_hosts(rate))
        except ConfigError as error:
            pytest.skip(str(error))
        started = Ranks(count)
        stack.callback(started.close)
        started.run(move, count, [command[-1] for command in inside])
        yield started

"""Hosts on this machine, for a fixture: network namespaces, or the test is skipped where there can be none."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from gradtide.errors import ConfigError
from gradtide.testing.hosts import several_hosts


@contextmanager
def namespaces(count: int, rate: str = "") -> Iterator[list[str]]:
    """Their names, as `move` takes them."""
    with ExitStack() as stack:
        try:
            inside = stack.enter_context(several_hosts(count, rate))
        except ConfigError as error:
            pytest.skip(str(error))
        yield [command[-1] for command in inside]

"""Where a store's coordinators listen, and which of them to ask next: one of them leads, and the others say who.

`tcp:h1:7000,tcp:h2:7000` are two; most stores have one.
"""

import time

from gradtide.errors import ConfigError
from gradtide.store.wire.messages import Elsewhere
from gradtide.transport.authenticate import HANDSHAKE_S, Address, parse_address

__all__ = ["Coordinators", "parse_coordinators"]

_ONE_OF_SEVERAL_S = 2.0  # to reach one, where there are others
_REST_S = 0.2  # before the next is asked, when one has said that nobody leads
_VAIN_S = 5.0  # for how long nobody's word is taken for it that he leads who could not be reached


class Coordinators:
    """One connection at a time leads to `next`; what became of it is said by `missed` and `hear`, from any thread."""

    def __init__(self, addresses: tuple[Address, ...]) -> None:
        self.known = addresses
        self.connect_s = HANDSHAKE_S if len(addresses) == 1 else _ONE_OF_SEVERAL_S
        self.trouble = ""  # what the last that was asked said of why nobody leads
        self._turn = 0
        self._hint: Address | None = None
        self._rests_until_s = 0.0
        self._vain: dict[Address, float] = {}  # when they were not reached

    def __str__(self) -> str:
        return ",".join(map(str, self.known))

    @property
    def next(self) -> Address:
        """Whom to dial now."""
        return self._hint or self.known[self._turn % len(self.known)]

    @property
    def rests(self) -> bool:
        """Is it too early to dial?"""
        return time.monotonic() < self._rests_until_s

    def missed(self, address: Address) -> None:
        """It could not be reached, or has fallen silent: the next one's turn."""
        self._vain[address] = time.monotonic()
        if self._hint == address:
            self._hint = None
        if self.known[self._turn % len(self.known)] == address:
            self._turn += 1

    def hear(self, word: Elsewhere, address: Address) -> None:
        """Who was asked, at this address, does not lead."""
        self._hint, leader = None, _leader_of(word)
        if self.known[self._turn % len(self.known)] == address:
            self._turn += 1
        in_vain = leader is not None and time.monotonic() - self._vain.get(leader, -_VAIN_S) < _VAIN_S
        if leader is not None and leader != address and not in_vain:
            self._hint, self.trouble = leader, ""
        else:
            self.trouble = word.text or "none of them leads"
            self._rests_until_s = time.monotonic() + _REST_S

    def found(self) -> None:
        """Who was asked leads."""
        self.trouble = ""
        self._vain.clear()


def _leader_of(word: Elsewhere) -> Address | None:
    try:
        return parse_address(word.leader) if word.leader else None
    except ConfigError:
        return None


def parse_coordinators(text: str) -> Coordinators:
    """One address, or several with commas."""
    if not isinstance(text, str):
        raise ConfigError(f"{text!r} is no address; write unix:/path/to/socket or tcp:host:port, or servers.address")
    return Coordinators(tuple(parse_address(part.strip()) for part in text.split(",")))

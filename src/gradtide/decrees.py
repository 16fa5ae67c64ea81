"""How a worker asks its launcher who works together, in a job that outlives its workers."""

import socket

import msgspec

from gradtide.errors import CommunicationError

__all__ = ["Ask", "Decree", "ask"]

_MESSAGE_BYTES = 1 << 16


class Ask(msgspec.Struct, frozen=True):
    """Worker to launcher: whom do I work with? The generation it was in; 0 for one that has just started."""

    rank: int
    generation: int


class Decree(msgspec.Struct, frozen=True):
    """Launcher to workers: these work together. Those who know where the job stands come first."""

    generation: int
    ranks: tuple[int, ...]


def ask(address: str, question: Ask, timeout_s: float) -> Decree:
    """Waits until all who live have asked; the launcher, at that (abstract) address, then answers everybody."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as launcher:
        launcher.settimeout(timeout_s)
        try:
            launcher.connect(f"\0{address}")
            launcher.send(msgspec.json.encode(question))
            answer = launcher.recv(_MESSAGE_BYTES)
        except TimeoutError:
            late = f"the launcher has not said who goes on within {timeout_s:g} s; is a worker stuck?"
            raise CommunicationError(late) from None
        except OSError as error:
            gone = f"the launcher can't be asked who goes on ({error.strerror}); is it gone?"
            raise CommunicationError(gone) from None
    if not answer:
        raise CommunicationError("the launcher hung up instead of saying who goes on; the job is ending")
    return msgspec.json.decode(answer, type=Decree)

"""A small push that a client asks for again and again: all that its asking again takes."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gradtide.store.server.fast.short import Short
from gradtide.store.wire.message_templates import Template
from gradtide.store.wire.messages import Push, Pushed

__all__ = ["RepeatedPush"]


@dataclass(slots=True, eq=False)
class RepeatedPush:
    """What is kept of it from one to the next."""

    message: Push
    short: Short
    values: Sequence[Tensor]
    view: memoryview  # their memory
    size_bytes: int
    epoch: int = -1  # of the versions in its answers
    template: Template | None = None

    def answer(self, pushed: Pushed) -> bytearray:
        """What goes before the values."""
        version, template = pushed.version, self.template
        if template is None or version.epoch != self.epoch:
            template = self.template = Template(pushed, self.short.size_bytes)
            self.epoch = version.epoch
        return template.pushed(pushed.sequence, version.sequence)

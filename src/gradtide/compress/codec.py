"""What every codec can do, and the list of them: a further one is a file with `@codec` on its class."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from gradtide.compress.compiled import Array
from gradtide.errors import ConfigError, DataError

__all__ = ["CODECS", "FORMATS", "Codec", "Form", "codec", "number_of", "refuse"]


@dataclass(frozen=True, slots=True)
class Form:
    """What is encoded: so many elements of one type, as a matrix of so many rows."""

    count: int
    dtype: np.dtype[Any]  # float32 or float64
    rows: int = 1

    @property
    def columns(self) -> int:
        return self.count // self.rows


class Codec(Protocol):
    """A pure function of what it is given, and of `draw` where it throws dice; frozen, with its options as fields."""

    name: ClassVar[str]  # as users say it
    tag: ClassVar[str]  # of its bytes, which never change, in keys' specs
    number: ClassVar[int]  # the same in payloads
    feedback: ClassVar[bool]  # whether what it leaves out is to be sent later; else it is unbiased, or close to it

    def kept(self, form: Form) -> int:
        """What a payload says of itself besides: how many values it has, or of which rank it is."""

    def body_bytes(self, form: Form) -> int:
        """How long the body of a payload is: the same for whatever values."""

    def encode(self, values: Array, form: Form, body: Array, draw: int) -> bool:
        """Writes what stands for these finite values. With feedback, what it leaves out stays in `values`.

        False, and they stay as they are, where they are beyond it.
        """

    def check(self, body: Array, form: Form) -> None:
        """Raises DataError unless decode gives finite values. The body has the right length."""

    def decode(self, body: Array, form: Form, out: Array, add: bool) -> None:
        """What was encoded becomes, or is added to, `out`."""


CODECS: dict[str, type[Codec]] = {}  # by name: of two with one name, the later
FORMATS: dict[str, type[Codec]] = {}  # by tag: also those of before, whose bytes may still come

C = TypeVar("C", bound=type[Codec])


def codec(kind: C) -> C:
    """Puts a codec on the list."""
    taken = {known.number for known in FORMATS.values()}
    assert not {kind.tag, kind.number} & {*FORMATS, *taken}, f"two codecs are tagged {kind.tag}, or {kind.number}"
    CODECS[kind.name] = FORMATS[kind.tag] = kind
    return kind


def number_of(kind: type[Codec], name: str, value: Any) -> Any:
    """An option's value as its codec has it: of the type of its default."""
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name == name:
            wanted: Any = type(field.default)
            if isinstance(value, bool) or not isinstance(value, int | float) or wanted(value) != value:
                raise ConfigError(f"compress: {name}={value!r} of {kind.name} makes no sense; give a number")
            return wanted(value)
    raise ConfigError(f"compress: {kind.name} has no option {name}")


def refuse(what: str) -> None:
    raise DataError(f"a compressed gradient is refused: {what}; it is damaged, or of another program")

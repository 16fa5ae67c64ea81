"""What a user says of compression: Compress("topk", ratio=0.01), or "topk:0.01"."""

from dataclasses import fields
from typing import Any

from gradtide.compress.codec import CODECS, FORMATS, Codec, number_of
from gradtide.errors import ConfigError

__all__ = ["AUTO", "Compress", "as_compress", "codec_of_tag", "text_of_tag"]

AUTO = "auto"  # whatever pays, or nothing


class Compress:
    """`DataParallel(model, optimizer, compress=Compress("powersgd", rank=4, after=200))`. It never changes.

    Gradients travel as the codec makes them; the first `after` steps are taken with whole ones. Options are the
    codec's: `ratio` of topk, `rank` of powersgd.
    """

    __slots__ = ("after", "codec", "options")
    after: int
    codec: str
    options: tuple[tuple[str, float], ...]

    def __init__(self, codec: str, *, after: int = 0, **options: float) -> None:
        if codec not in CODECS and codec != AUTO:
            raise ConfigError(f"compress={codec!r}: no codec is called that; there are {', '.join([*CODECS, AUTO])}")
        if not isinstance(after, int) or isinstance(after, bool) or after < 0:
            raise ConfigError(f"compress: after={after!r} makes no sense; give a number of steps, 0 or more")
        if codec == AUTO and options:
            raise ConfigError(f"compress: {AUTO} has no option {min(options)}")
        kept = tuple((name, number_of(CODECS[codec], name, value)) for name, value in sorted(options.items()))
        for name, value in (("codec", codec), ("after", after), ("options", kept)):
            object.__setattr__(self, name, value)
        if codec != AUTO:
            self.make()  # what makes no sense is said now

    def make(self) -> Codec:
        """The codec, with its options."""
        return CODECS[self.codec](**dict(self.options))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Compress never changes; make another with {name}={value!r}")

    def __reduce__(self) -> Any:
        return _again, self._key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Compress) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        options = [f"{name}={value!r}" for name, value in self.options] + [f"after={self.after}"] * bool(self.after)
        return f"Compress({', '.join([repr(self.codec), *options])})"

    def __str__(self) -> str:
        """As a user would write it."""
        return ":".join([self.codec, *(f"{value:g}" for _, value in self.options)])

    @property
    def tag(self) -> str:
        """As a key's spec has it."""
        return ":".join([CODECS[self.codec].tag, *(f"{value:g}" for _, value in self.options)])

    @property
    def _key(self) -> tuple[Any, ...]:
        return self.codec, self.after, self.options


def _again(codec: str, after: int, options: tuple[tuple[str, float], ...]) -> Compress:
    """A copy of one, in this process or another."""
    return Compress(codec, after=after, **dict(options))


def as_compress(given: "str | Compress | None") -> Compress | None:
    """What `compress=` says: "int8", or "topk:0.01" with the codec's first option."""
    if given is None or isinstance(given, Compress):
        return given
    if not isinstance(given, str):
        raise ConfigError(f"compress={given!r} makes no sense; give a codec's name, or gradtide.Compress(...)")
    name, colon, text = given.partition(":")
    if not colon or name not in CODECS:
        return Compress(name)
    options = [field.name for field in fields(CODECS[name])]  # type: ignore[arg-type]
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not options or value != value:
        raise ConfigError(f"compress={given!r} makes no sense; {name} takes {options[0] if options else 'no option'}")
    option: dict[str, Any] = {options[0]: value}
    return Compress(name, **option)


def text_of_tag(tag: str) -> str:
    """What a user says of what a key's spec has."""
    name, colon, option = tag.partition(":")
    return f"{FORMATS[name].name if name in FORMATS else name}{colon}{option}"


def codec_of_tag(tag: str) -> Codec:
    """What a key's spec has, with its options: also one whose bytes are written for no new keys."""
    settings = as_compress(text_of_tag(tag))
    assert settings is not None
    return FORMATS[tag.partition(":")[0]](**dict(settings.options))

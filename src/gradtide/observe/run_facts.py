"""run.json in a run's folder: what whoever watches must know besides its events. No secret is ever in it."""

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gradtide.errors import DataError, OutputError

__all__ = ["RunFacts", "note_end", "read_facts", "write_facts"]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run as it was begun, and how it ended."""

    title: str
    workers: int
    servers: int = 0
    store: str = ""  # the coordinator's address
    ended_unix_s: float | None = None
    code: int = 0  # with which it ended


def write_facts(folder: Path, facts: RunFacts) -> None:
    path = folder / "run.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / "run.json.part"
        partial.write_text(json.dumps(asdict(facts)) + "\n", encoding="utf-8")
        partial.replace(path)  # a dashboard may look at any moment
    except OSError as error:
        raise OutputError(f"can't write {path} ({error.strerror}); choose another folder") from error


def note_end(folder: Path, code: int) -> None:
    """Whoever watches need not take a run that has ended for one that nobody hears of any more."""
    facts = read_facts(folder)
    if facts is not None:
        write_facts(folder, replace(facts, ended_unix_s=time.time(), code=code))


def read_facts(folder: Path) -> RunFacts | None:
    """None where there is no such file: a run of one process, or an old one."""
    path = folder / "run.json"
    try:
        return RunFacts(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, TypeError, ValueError) as error:
        raise DataError(f"{path} is not what gradtide writes ({error}); remove it, and only events are shown") from None

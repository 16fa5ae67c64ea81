"""Makes the bytes of all that gradtide encodes, and keeps them in golden/: what changes there is a format.

    python tests/store/golden_bytes.py --write     after a struct or a format was added, or was changed on purpose

structs.json    every struct, by its key (golden_structs.py): with its defaults, and with all fields set
wire.json       frames, greetings and names (golden_wire.py)
other files     as gradtide writes them (golden_files.py)
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from golden_files import FILES
from golden_structs import all_structs, encodings, variants
from golden_wire import WIRES

__all__ = ["GOLDEN", "file_bytes", "kept_structs", "kept_wires", "struct_bytes", "wire_bytes"]

GOLDEN = Path(__file__).with_name("golden")


def struct_bytes() -> dict[str, dict[str, Any]]:
    """By key: what it was called when this was written, and its encodings."""
    return {
        key: {
            "was": " ".join(sorted(struct.__name__ for struct in found)),
            **{name: encodings(value) for name, value in variants(found[0]).items()},
        }
        for key, found in all_structs().items()
    }


def wire_bytes(kind: str, folder: Path) -> dict[str, str]:
    """As hexadecimal digits."""
    return {name: data.hex() for name, data in WIRES[kind](folder).items()}


def file_bytes(name: str, folder: Path) -> bytes:
    FILES[name].write(folder / name)
    return (folder / name).read_bytes()


def kept_structs() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((GOLDEN / "structs.json").read_text(encoding="utf-8"))
    return found


def kept_wires() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads((GOLDEN / "wire.json").read_text(encoding="utf-8"))
    return found


def _write() -> None:
    GOLDEN.mkdir(exist_ok=True)
    structs = dict(sorted(struct_bytes().items(), key=lambda item: item[1]["was"]))
    wires = {}
    for kind in WIRES:
        with tempfile.TemporaryDirectory() as folder:
            wires[kind] = wire_bytes(kind, Path(folder))
    for name, content in (("structs", structs), ("wire", wires)):
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        (GOLDEN / f"{name}.json").write_text(text, encoding="utf-8")
    for name in FILES:
        with tempfile.TemporaryDirectory() as folder:
            (GOLDEN / name).write_bytes(file_bytes(name, Path(folder)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", required=True, help="write golden/ anew")
    parser.parse_args()
    _write()

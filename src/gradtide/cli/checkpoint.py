"""`gradtide checkpoint ls|verify|export|import PATH`: looks at checkpoints; makes of one what others read, and back."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradtide.cli.help import Commands
from gradtide.cli.table import print_table

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["app"]

app = typer.Typer(
    cls=Commands,
    help="Look at checkpoints; export them to formats that others read, and import them.",
    no_args_is_help=True,
)

Where = Annotated[str, typer.Argument(help="A checkpoint's folder, or one with several; any address that fsspec knows")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table")]


@app.command()
def ls(path: Where, as_json: AsJson = False) -> None:
    """List the complete checkpoints in a folder, oldest first."""
    from gradtide.checkpoint.shelf import Shelf, find_checkpoint

    shelf = Shelf(path)
    found = [(taken.folder, taken.manifest) for taken in shelf.complete()]
    if not found:
        place, manifest = find_checkpoint(path)
        found = [(place.address.rpartition("/")[2], manifest)]
    rows = [
        {
            "folder": folder,
            "step": manifest.step,
            "taken": manifest.taken[:16].replace("T", " "),
            "bytes": manifest.size_bytes,
            "servers": manifest.servers,
            "cut": _cut(manifest.round, manifest.servers),
        }
        for folder, manifest in found
    ]
    if as_json:
        print(json.dumps(rows))
        return
    shown = [name for name in rows[0] if name != "step"]  # which is in the folder's name
    print_table(shown, [[row[name] for name in shown] for row in rows])


@app.command()
def verify(path: Where) -> None:
    """Read the newest checkpoint to its last byte and compare every checksum; names a file that differs."""
    from gradtide.checkpoint.manifest import verify as read_all
    from gradtide.checkpoint.shelf import find_checkpoint

    place, _ = find_checkpoint(path)
    manifest = read_all(place)
    typer.echo(f"{place.address}: {len(manifest.files)} files, {manifest.size_bytes:,} bytes, all as they were written")


@app.command()
def export(
    path: Where,
    file: Annotated[
        Path, typer.Argument(help="NAME.safetensors, NAME.pt for a state_dict that torch loads, or a new folder")
    ],
    format_: Annotated[
        str | None,
        typer.Option(
            "--format", help="Format of a folder: hf (sharded safetensors) or dcp (torch.distributed.checkpoint)"
        ),
    ] = None,
    shard_bytes: Annotated[int, typer.Option(help="Largest size of a file of --format hf")] = 5_000_000_000,
) -> None:
    """Write the newest checkpoint's values as others read them: every key, or the model of a training run. Of a run's
    folder (runs/NAME), the final model, or what its newest checkpoint has if it has not ended."""
    from gradtide.checkpoint.shelf import find_checkpoint
    from gradtide.errors import OutputError
    from gradtide.store.snapshot.export import collect_values, read_plain

    if file.exists():
        raise OutputError(f"{file} is there already; choose another name or remove it")
    final = Path(path) / "model.safetensors"
    if final.is_file():  # a run's folder, of a run that has ended
        tensors = read_plain(final)
        _write(file, tensors, format_, shard_bytes)
        typer.echo(f"written: {file}, {len(tensors)} tensors of the final model in {path}")
        return
    place, manifest = find_checkpoint(_of_run(path))
    tensors = collect_values(place, manifest)
    _write(file, tensors, format_, shard_bytes)
    typer.echo(f"written: {file}, {len(tensors)} tensors of step {manifest.step}")


def _write(file: Path, tensors: "dict[str, Tensor]", format_: str | None, shard_bytes: int) -> None:
    from gradtide.store.snapshot.export import write_plain
    from gradtide.store.snapshot.other_formats import write_folder

    if format_ is None:
        write_plain(file, tensors)
    else:
        write_folder(file, tensors, format_, shard_bytes)


def _of_run(path: str) -> str:
    """A run's folder has its checkpoints in one of its own."""
    inside = Path(path) / "checkpoints"
    return str(inside) if inside.is_dir() else path


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A safetensors file, or a folder of them")],
    path: Annotated[str, typer.Argument(help="Where the checkpoint goes, in a new folder")],
    update: Annotated[str, typer.Option(help="The update rule of every key: assign, add, sgd, adam, ...")] = "assign",
    argument: Annotated[list[str] | None, typer.Option(help="An argument of the rule, as in --argument lr=0.1")] = None,
    consistency: Annotated[str, typer.Option(help="async, bsp or bounded:2")] = "async",
) -> None:
    """Make a checkpoint, for `gradtide restore`, of a plain file of tensors or of a folder in Hugging Face's format."""
    from gradtide.store.rules.consistency import parse_consistency
    from gradtide.store.rules.updates import update as rule
    from gradtide.store.snapshot.export import make_checkpoint, read_plain
    from gradtide.store.snapshot.other_formats import read_folder

    arguments = dict(_argument(text) for text in argument or ())
    tensors = read_folder(file) if file.is_dir() else read_plain(file)
    chosen = rule(update, **arguments)  # type: ignore[arg-type]  # any name but `reduce`, which has no number
    taken = make_checkpoint(path, tensors, chosen, parse_consistency(consistency))
    typer.echo(
        f"written: {taken.address}, {len(tensors)} keys; start a store with it: gradtide restore {taken.address}"
    )


def _cut(round_: int, servers: int) -> str:
    return f"round {round_}" if round_ else "each shard for itself" if servers else "-"


def _argument(text: str) -> tuple[str, bool | int | float]:
    from gradtide.errors import ConfigError

    name, _, value = text.partition("=")
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    try:
        return name, int(value) if value.lstrip("-").isdecimal() else float(value)
    except ValueError:
        raise ConfigError(f"--argument {text!r} makes no sense; write NAME=NUMBER, as in lr=0.1") from None

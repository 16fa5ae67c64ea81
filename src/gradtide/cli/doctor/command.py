"""`gradtide doctor`: what this machine has, and what that means for gradtide."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradtide.cli.table import print_table

if TYPE_CHECKING:
    from gradtide.bench.machine import Machine

__all__ = ["doctor"]

TESTED_TORCH = ("2.13.0", "2.14.1", "2.15.0")
_REACHED = ("address", "reached", "what was found")


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON")] = False,
    addresses: Annotated[
        str, typer.Option("--reach", help="host:port of other machines, with commas: test whether they can be reached")
    ] = "",
) -> None:
    """Say what this machine has, what that means for gradtide, and what stands in the way. The exit code is 1 if one
    of the addresses can't be reached."""
    from gradtide.bench.machine import describe_machine
    from gradtide.cli.doctor.limits import read_limits, what_stands_in_the_way
    from gradtide.cli.doctor.reaching import reach
    from gradtide.extras import missing

    reached = [reach(address.strip()) for address in addresses.split(",") if address.strip()]
    machine, torch_facts, extras = describe_machine(), _torch_facts(), missing()
    obstacles = list(what_stands_in_the_way(read_limits(), machine.cores, machine.memory_bytes))
    advice = obstacles + _advice(machine, torch_facts)
    if extras:
        names = ",".join(extras)
        advice.append(f"Extras that are not installed: {names}; those you need: pip install 'gradtide[{names}]'.")
    if as_json:
        found = {"machine": machine.as_dict(), "torch": torch_facts, "advice": advice, "missing_extras": extras}
        print(json.dumps(found | {"reached": [dict(zip(_REACHED, one, strict=True)) for one in reached]}, indent=2))
    else:
        print_table(("what", "this machine has"), list(_findings(machine, torch_facts).items()))
        print()
        for line in advice:
            print(f"• {line}")
        if reached:
            print()
            print_table(_REACHED, [(address, "yes" if there else "NO", what) for address, there, what in reached])
    if not all(there for _, there, _ in reached):
        raise typer.Exit(1)


def _torch_facts() -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    there = dist.is_available()
    return {
        "version": torch.__version__,
        "threads": torch.get_num_threads(),
        "cuda_devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "backends": {
            "gloo": there and dist.is_gloo_available(),
            "nccl": there and dist.is_nccl_available(),
            "mpi": there and dist.is_mpi_available(),
            "mkl": torch.backends.mkl.is_available(),
            "mkldnn": torch.backends.mkldnn.is_available(),
            "openmp": torch.backends.openmp.is_available(),
        },
    }


def _findings(machine: "Machine", torch_facts: dict[str, Any]) -> dict[str, str]:
    cuda = torch_facts["cuda_devices"]
    return {
        "devices": ", ".join(f"cuda:{i} ({name})" for i, name in enumerate(cuda)) or "no CUDA; logical CPU devices",
        "cores": f"{machine.cores} ({machine.cpu})",
        "memory": f"{machine.memory_free_bytes / 2**30:.1f} of {machine.memory_bytes / 2**30:.1f} GiB free",
        "shared memory": f"{machine.shared_memory_bytes / 2**30:.1f} GiB free in /dev/shm",
        "torch": f"{torch_facts['version']}, {torch_facts['threads']} threads (tested: {', '.join(TESTED_TORCH)})",
        "backends": ", ".join(name for name, there in torch_facts["backends"].items() if there) or "none",
        "python": f"{machine.python} on {machine.system}",
    }


def _advice(machine: "Machine", torch_facts: dict[str, Any]) -> list[str]:
    cuda, threads = len(torch_facts["cuda_devices"]), torch_facts["threads"]
    lines = []
    if cuda > 1:
        lines.append(f"gradtide train --devices {cuda} uses all {cuda} GPUs.")
    elif cuda == 1:
        lines.append("One GPU: --devices 1 uses it; --devices cpu:0,cpu:1 tries several devices on the CPU.")
    else:
        best = max(1, machine.cores)
        lines.append(
            f"No GPU: --devices {best} gives each of {best} logical CPU devices a core; more than that share cores."
        )
    if threads < machine.cores:
        lines.append(f"torch uses {threads} of {machine.cores} cores; unset OMP_NUM_THREADS to use all.")
    if not torch_facts["backends"]["gloo"]:
        lines.append("This torch has no Gloo: `gradtide bench train` can't run its DDP contender.")
    if machine.memory_free_bytes and machine.memory_free_bytes < 2**30:
        lines.append("Less than 1 GiB of memory is free: each device holds a copy of the model, so use few.")
    return lines + _untested(torch_facts["version"])


def _untested(version: str) -> list[str]:
    """Of a torch that no test ran under. A patch of a release that was tested is taken for that."""
    *known, newest = TESTED_TORCH
    tested = f"gradtide is tested with torch {', '.join(known)} and {newest}"
    try:
        release, oldest, last = (_release(text) for text in (version, TESTED_TORCH[0], newest))
    except ValueError:
        return [f"{tested}; this is {version}, of which nothing is known."]
    if release in map(_release, TESTED_TORCH):
        return []
    if release < oldest:
        return [f"{tested}; this is {version}, which is too old: pip install --upgrade torch."]
    age = "newer than any of them" if release > last else "another"
    return [f"{tested}; this is {version}, {age}: if something fails, try pip install torch=={newest}."]


def _release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)

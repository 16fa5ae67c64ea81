"""`gradtide doctor`: what this machine has, and what that means for gradtide."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradtide.cli.table import print_table

if TYPE_CHECKING:
    from gradtide.bench.machine import Machine

__all__ = ["doctor"]

TESTED_TORCH = "2.13"


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON")] = False) -> None:
    """Say what this machine has, and what that means for gradtide."""
    from gradtide.bench.machine import describe_machine

    machine, torch_facts = describe_machine(), _torch_facts()
    advice = _advice(machine, torch_facts)
    if as_json:
        print(json.dumps({"machine": machine.as_dict(), "torch": torch_facts, "advice": advice}, indent=2))
        return
    print_table(("what", "this machine has"), list(_findings(machine, torch_facts).items()))
    print()
    for line in advice:
        print(f"• {line}")


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
        "torch": f"{torch_facts['version']}, {torch_facts['threads']} threads",
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
    if not torch_facts["version"].startswith(TESTED_TORCH):
        lines.append(
            f"gradtide is tested with torch {TESTED_TORCH}; this is {torch_facts['version']}: see constraints.txt."
        )
    return lines

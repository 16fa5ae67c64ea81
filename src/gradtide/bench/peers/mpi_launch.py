"""Becomes mpiexec: a benchmark starts its contenders as Python programs, but MPI's ranks have their own starter."""

import os
import sys

from gradtide.environment import with_root_allowed


def main(mpiexec: str, ranks: str, python: str, program: str, *options: str) -> None:
    crowd = ["--oversubscribe"] if "open" in os.path.realpath(mpiexec).lower() + _says(mpiexec) else []
    os.execve(mpiexec, [mpiexec, *crowd, *options, "-n", ranks, python, program], with_root_allowed())


def _says(mpiexec: str) -> str:
    import subprocess

    return subprocess.run(
        [mpiexec, "--version"], capture_output=True, text=True, check=False, env=with_root_allowed()
    ).stdout.lower()


if __name__ == "__main__":
    main(*sys.argv[1:])

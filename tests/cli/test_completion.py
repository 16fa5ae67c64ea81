"""`gradtide --install-completion` in bash: commands, options, and those of plan, which has a parser of its own."""

import os
import shutil
import subprocess
import sys

import pytest

COMPLETED = {
    "gradtide pla": {"plan"},
    "gradtide run --work": {"--workers", "--workers-per-node"},
    "gradtide plan --si": {"--size", "--sizes"},
    "gradtide plan dgx1": {"dgx1-v100", "dgx1-v100-pcie"},
    "gradtide plan dgx2 --size 1": set(),
}
ASK = """
. "$HOME/.bash_completions/gradtide.sh"
while read -r line; do
    COMP_WORDS=($line); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
    _gradtide_completion gradtide
    echo "${COMPREPLY[*]}" | tr '\\n' ' '; echo
done
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_and_options(tmp_path):
    command = tmp_path / "gradtide"
    main = "import sys; from gradtide.cli import main; sys.argv[0] = 'gradtide'; main()"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{main}" "$@"\n')
    command.chmod(0o755)
    paths = {"HOME": str(tmp_path), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    environment = os.environ | paths
    told = subprocess.run([command, "--install-completion", "bash"], env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert "bash completion is installed in" in told.stdout
    asked = subprocess.run(
        ["bash", "-c", ASK], input="".join(f"{line}\n" for line in COMPLETED), env=environment, capture_output=True,
        text=True,
    )  # fmt: skip
    assert asked.stderr == ""
    assert [{*line.split()} for line in asked.stdout.splitlines()] == [*COMPLETED.values()]


def test_a_shell_that_nobody_knows_is_one_line():
    command = [sys.executable, "-m", "gradtide", "--install-completion", "bsah"]
    told = subprocess.run(command, capture_output=True, text=True)
    assert (told.returncode, told.stdout, told.stderr.count("\n")) == (2, "", 1)
    assert "known are bash, zsh, fish" in told.stderr

"""README's first example on two machines, by the lines that README shows for it."""

import os
import re
import shlex
import subprocess
from contextlib import ExitStack

import pytest
import torch

from documented_reader import STARTED_BY, first_program, lines_on_machines
from gradtide.errors import ConfigError
from gradtide.testing import hosts
from loaded_python import loaded_python

README = "README.md"
LIMIT_S = 60
PARAMETERS = "print('parameters', *torch.nn.utils.parameters_to_vector(model.parameters()).tolist())\n"


@pytest.fixture
def nodes():
    """node1 (10.0.0.1) and node2 (10.0.0.2), as README calls them: what to put before a command to run it there."""
    with ExitStack() as stack:
        try:
            inside = stack.enter_context(hosts.two_hosts(""))
        except ConfigError as error:
            pytest.skip(str(error))
        for number, host in enumerate(inside):
            there = ("ip", "addr", "add", f"10.0.0.{number + 1}/24", "dev", hosts.INTERFACES[number])
            subprocess.run([*host, *there], check=True)
        yield {f"node{number + 1}": host for number, host in enumerate(inside)}


def run(before, words, folder):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*before, loaded_python(), *words], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )


def parameters(process):
    with process:
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert process.returncode == 0, output
    return torch.tensor([float(word) for word in re.search(r"^parameters (.*)$", output, re.M)[1].split()])


def test_two_lines_of_the_readme_start_its_first_example_on_two_machines(nodes, tmp_path):
    (tmp_path / "train.py").write_text(first_program(README) + PARAMETERS)
    shown = lines_on_machines(README, "torchrun")
    assert [node for node, _ in shown] == ["node1", "node2"]
    assert lines_on_machines("docs/launch.md", "torchrun") == shown
    torchrun = STARTED_BY["torchrun"][:2]
    started = [run(nodes[node], [*torchrun, *shlex.split(line)[1:]], tmp_path) for node, line in shown]
    alone = parameters(run([], ["train.py"], tmp_path))
    for process in started:
        torch.testing.assert_close(parameters(process), alone)

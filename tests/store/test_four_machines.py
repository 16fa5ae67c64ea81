"""The guide "A store on four machines", as it is written, between network namespaces."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradtide.testing.hosts import ADDRESSES, several_hosts

GUIDE = Path(__file__).parent.parent.parent / "docs" / "four-machines.md"
NODES = [f"node{i}" for i in range(1, 5)]
needs_machines = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("etcd"), reason="needs root, iproute2 and etcd"
)


class Guide:
    """Runs the page's lines, each on its machine; what ends with & goes on until the end."""

    def __init__(self, hosts: list[list[str]], folder: Path) -> None:
        self.hosts, self.folder, self.running = dict(zip(NODES, hosts, strict=True)), folder, []
        names = "".join(f"{address} {node}\\n" for address, node in zip(ADDRESSES, NODES, strict=False))
        self.names = f'mount --bind "$0" /etc/hosts && printf "127.0.0.1 localhost\\n{names}" > /etc/hosts && exec "$@"'

    def run(self, node: str, line: str, stdout: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        line = line.replace("/etc/gradtide", str(self.folder)).replace("/var/lib/etcd", str(self.folder / node))
        words = shlex.split(line.removesuffix("&"))
        words[0] = {"gradtide": f"{Path(sys.executable).parent}/gradtide", "python": sys.executable}.get(*words[:1] * 2)
        hosts_file = self.folder / f"hosts-{len(self.running)}"
        hosts_file.touch()
        command = [*self.hosts[node], "unshare", "--mount", "sh", "-c", self.names, str(hosts_file), *words]
        process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.STDOUT, text=True)
        self.running.append(process)
        return process

    def finish(self, node: str, line: str, timeout_s: float = 60.0) -> tuple[int, str]:
        process = self.run(node, line, subprocess.PIPE)
        said, _ = process.communicate(timeout=timeout_s)
        return process.returncode, said

    def close(self) -> None:
        for process in self.running:
            with process:
                process.send_signal(signal.SIGKILL)


def lines() -> list[tuple[str, str]]:
    return re.findall(r"^    (node\d)\$ (.+)$", GUIDE.read_text(), re.M)


def test_the_guide_has_a_line_for_every_machine() -> None:
    assert {node for node, _ in lines()} == set(NODES)
    serve = next(line for _, line in lines() if "gradtide serve" in line)
    assert f"ExecStart=/opt/gradtide/bin/{serve.removesuffix(' &')}\n" in GUIDE.read_text()


@needs_machines
@pytest.mark.slow
def test_the_guide_of_four_machines_works_as_it_is_written(tmp_path) -> None:
    with several_hosts(4, rate="") as hosts:
        guide = Guide(hosts, tmp_path)
        try:
            for node, line in lines():
                if line.endswith("&"):
                    guide.run(node, line)
                elif "gradtide status" in line:
                    deadline_s = time.monotonic() + 120
                    while (found := guide.finish(node, line))[0]:
                        assert time.monotonic() < deadline_s, found[1]
                    assert "all is well" in found[1]
                else:
                    code, said = guide.finish(node, line)
                    assert code == 0, said
            assert "tensor([1., 1., 1., 1.])" in said
        finally:
            guide.close()

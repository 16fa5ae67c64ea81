"""Debian's Prometheus scrapes the dashboard and a coordinator."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from written_run import write_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus; apt-get install prometheus"),
]


def started(command, pattern):
    """A process, and what it says of where it listens."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in process.stdout:
        if found := re.search(pattern, line):
            return process, found[1]
    raise AssertionError(f"{command} said nothing of {pattern}")


def ask(port, query):
    address = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return [(row["metric"], float(row["value"][1])) for row in json.load(answer)["data"]["result"]]
    except (urllib.error.URLError, ConnectionError):
        return []  # it has only been started


def until(port, query, timeout_s=60):
    deadline_s = time.monotonic() + timeout_s
    while not (found := ask(port, query)):
        assert time.monotonic() < deadline_s, query
    return found


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_prometheus_reads_both(tmp_path):
    run = tmp_path / "run"
    write_run(run, steps=6)[0].close()
    token, own, metrics = tmp_path / "token", free_port(), free_port()
    gradtide = [sys.executable, "-m", "gradtide"]
    page, dashboard = started(
        [*gradtide, "dashboard", str(run), "--metrics-token", str(token)], r"http://127.0.0.1:(\d+)/"
    )
    where = f"unix:{tmp_path}/coordinator"
    coordinator, _ = started([*gradtide, "coordinator", where, "--metrics", str(metrics)], "listens at (.*)")
    assert os.stat(token).st_mode & 0o777 == 0o600
    (tmp_path / "prometheus.yml").write_text(f"""
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: dashboard
    authorization: {{credentials_file: {token}}}
    static_configs: [{{targets: ['127.0.0.1:{dashboard}']}}]
  - job_name: coordinator
    static_configs: [{{targets: ['127.0.0.1:{metrics}']}}]
""")
    options = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    prometheus = subprocess.Popen(
        ["prometheus", *options, f"--web.listen-address=127.0.0.1:{own}"], stderr=subprocess.DEVNULL
    )
    try:
        assert until(own, "gradtide_samples_total")[0][1] == 192
        (lost,) = until(own, 'gradtide_failures_total{role="server"}')
        assert (lost[0]["job"], lost[1]) == ("coordinator", 0)
        assert [value for _, value in until(own, "up == 1")] == [1, 1]
    finally:
        for process in (prometheus, coordinator, page):
            process.terminate()
            process.wait(30)
        for process in (coordinator, page):
            process.stdout.close()

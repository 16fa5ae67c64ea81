"""The dashboard as a process of its own: who may look, and what they see."""

import json
import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner
from written_run import Browser, write_run, write_steps

from gradtide.cli.app import app
from gradtide.dashboard.feed import Feed
from gradtide.dashboard.serve import beside
from gradtide.dashboard.sources import RunSource
from gradtide.errors import ConfigError
from gradtide.observe.run_facts import RunFacts, note_end, write_facts

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a run")
    log, clock = write_run(folder, steps=2)
    with beside(folder) as link:
        browser = Browser(link)
        entered = browser.enter()
        yield browser, link, entered, (log, clock)
    log.close()


def test_the_token_is_good_once_and_becomes_a_cookie_that_scripts_cannot_read(running):
    browser, link, (status, headers, body), _ = running
    assert status == 200
    assert "<title>gradtide</title>" in body
    cookie = headers["set-cookie"]
    assert cookie.startswith(f"gradtide_{browser.port}=")
    assert "; HttpOnly; SameSite=Strict" in cookie
    assert Browser(link).get(Browser(link).first)[0] == 401
    assert browser.get("/")[0] == 200
    other = Browser(link)
    other.cookie = f"gradtide_{browser.port}=" + "x" * 43
    assert other.get("/")[0] == 401


@pytest.mark.parametrize("path", ["/", "/stream", "/metrics", "/topology.svg", "/static/page.js", "/nowhere"])
def test_nothing_is_shown_without_a_token(running, path):
    _, link, _, _ = running
    status, _, body = Browser(link).get(path)
    assert status == 401
    assert "start gradtide dashboard again" in body
    assert Browser(link).get(path + "?token=wrong")[0] == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost:80:80", ""])
def test_a_foreign_host_is_refused(running, host):
    browser, _, _, _ = running
    assert browser.get("/", Host=host)[0] == 400


def test_the_far_end_of_an_ssh_tunnel_is_not_foreign(running):
    browser, _, _, _ = running
    assert [browser.get("/", Host=host)[0] for host in ("localhost:9999", "127.0.0.1:1", "LOCALHOST")] == [200] * 3


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_it_only_shows(running, method):
    browser, _, _, _ = running
    status, headers, _ = browser.get("/", method)
    assert (status, headers["allow"]) == (405, "GET")


def test_the_browser_may_load_nothing_from_elsewhere(running):
    browser, _, (_, headers, body), _ = running
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in headers["content-security-policy"]
    assert "://" not in body
    assert headers["cache-control"] == "no-store"
    for path in (
        "static/page.js",
        "static/page.css",
        "static/charts.js",
        "static/words.js",
        "static/uPlot.iife.min.js",
    ):
        assert browser.get(f"/{path}")[0] == 200
    assert "Leon Sorokin" in browser.get("/static/uPlot.LICENSE.txt")[2]
    assert browser.get("/static/..%2fserve.py")[0] == 404


def test_steps_are_streamed_as_they_are_written_down_and_metrics_agree(running):
    browser, _, _, (log, clock) = running
    stream = browser.stream()
    event, seen = next(stream)
    while event != "snapshot" or not seen["run"]["workers"]:
        event, news = next(stream)
        seen["run"] |= news.get("run", {})
        event = "snapshot"
    before = seen["run"]["workers"][0]["steps"]
    write_steps(log, clock, before + 1, before + 2)
    while seen["run"]["workers"][0]["steps"] < before + 2:
        seen = next(stream)[1]
    stream.close()
    metrics = browser.get("/metrics")[2]
    assert f'gradtide_steps_total{{rank="0"}} {before + 2}.0' in metrics
    assert f'gradtide_samples_total{{rank="0"}} {seen["run"]["workers"][0]["samples"]}.0' in metrics


def test_it_ends_when_who_started_it_is_killed(tmp_path):
    code = (
        "import sys, pathlib, time\nfrom gradtide.dashboard.serve import beside\n"
        "with beside(pathlib.Path(sys.argv[1])) as link:\n    print(link, flush=True)\n    time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    browser = Browser(parent.stdout.readline())
    parent.stdout.close()
    browser.enter()
    stream = browser.stream()
    assert next(stream)[0] == "snapshot"
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert [event for event, _ in stream if event == "snapshot"] == []  # until the other end is closed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["runs/nowhere"], "is neither a run's folder nor an address"),
        (["."], "is no run's folder"),
        (["unix:/x", "--port", "70000"], "is no port"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["dashboard", *words])
    assert isinstance(shown.exception, ConfigError)
    assert said in str(shown.exception)


@pytest.mark.parametrize(("missing", "extra"), [("uvicorn", "dashboard"), ("prometheus_client", "metrics")])
def test_a_missing_extra_is_named_with_the_command_that_installs_it(missing, extra, tmp_path, monkeypatch):
    write_run(tmp_path)[0].close()
    monkeypatch.setitem(sys.modules, missing, None)
    shown = CliRunner().invoke(app, ["dashboard", str(tmp_path), "--metrics-token", str(tmp_path / "token")])
    assert isinstance(shown.exception, ConfigError)
    assert f"pip install 'gradtide[{extra}]'" in str(shown.exception)


def awaited(told):
    """What a page that was told this says of the store: whether there is one, and from whom it waits to hear."""
    return told.get("store") and told["store"]["complaints"], told.get("awaited")


def test_a_run_without_a_store_is_said_to_have_none_only_when_it_has_said_so(tmp_path):
    with beside(tmp_path) as link:
        browser = Browser(link)
        browser.enter()
        stream = browser.stream()
        assert awaited(next(stream)[1]) == (None, "run")
        write_facts(tmp_path, RunFacts("a run", workers=1))
        assert awaited(next(stream)[1]) == (None, "nothing")
        stream.close()


def test_a_run_of_one_process_has_no_store(running):
    browser, _, _, _ = running
    stream = browser.stream()
    while awaited(told := next(stream)[1])[1] == "run":
        pass
    assert awaited(told) == (None, "nothing")
    stream.close()


def test_a_store_is_being_asked_until_it_has_answered(tmp_path):
    with beside(tmp_path) as link:
        browser = Browser(link)
        browser.enter()
        stream = browser.stream()
        assert awaited(next(stream)[1]) == (None, "run")
        write_facts(tmp_path, RunFacts("a run", workers=1, servers=1, store=f"unix:{tmp_path}/nobody"))
        assert awaited(next(stream)[1]) == (None, "store")
        (complaint,), _ = awaited(next(stream)[1])
        assert complaint.startswith("the coordinator does not answer")
        stream.close()


def test_a_dashboard_that_ends_with_its_run_tells_the_last_step_and_the_end_first(tmp_path):
    log, clock = write_run(tmp_path, steps=2)
    write_facts(tmp_path, RunFacts("a run", workers=1))
    with beside(tmp_path) as link:
        browser = Browser(link)
        browser.enter()
        stream = browser.stream()
        next(stream)
        write_steps(log, clock, 3, 4)
        log.close()
        note_end(tmp_path, 0)
    told = [news["run"] for _, news in stream if "run" in news]  # until the other end is closed
    assert told[-1]["ended"][1] == 0
    assert told[-1]["workers"][0]["steps"] == 4


def test_the_store_of_a_run_that_has_ended_is_not_asked_and_not_missed(tmp_path):
    write_run(tmp_path)[0].close()
    write_facts(tmp_path, RunFacts("a run", workers=1, servers=1, store=f"unix:{tmp_path}/nobody"))
    note_end(tmp_path, 0)
    feed = Feed(RunSource(tmp_path), "", None)
    feed.finish()
    seen = json.loads(feed.snapshot().partition("data: ")[2])
    assert (seen["run"]["ended"][1], seen["store"], seen["awaited"]) == (0, None, "ended")

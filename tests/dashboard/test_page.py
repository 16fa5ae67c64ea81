"""The page in a real browser: Debian's chromium, driven by playwright."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from written_run import write_run

import gradtide
from gradtide.dashboard.serve import beside
from gradtide.observe.run_facts import RunFacts, note_end, write_facts
from store_processes import wait_until_copied

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium; apt-get install chromium"),
]
playwright = pytest.importorskip(
    "playwright.sync_api", reason="there is no playwright; pip install 'gradtide[browser]'"
)
SIZES, THEMES = ((1280, 900), (400, 800)), ("light", "dark")


def until(page, holds, timeout_s=120):
    """Asked from here: the page itself may not evaluate text."""
    deadline_s = time.monotonic() + timeout_s
    while not page.evaluate(holds):
        assert time.monotonic() < deadline_s, holds
        page.wait_for_timeout(20)


@pytest.fixture
def browser():
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--enable-precise-memory-info"]
        )
        yield started
        started.close()


@pytest.fixture
def opened(browser):
    """A page at a link; what it complains about fails the test."""
    wrong = []

    def open_(link, theme="light", size=SIZES[0]):
        context = browser.new_context(viewport=dict(zip(("width", "height"), size, strict=True)), color_scheme=theme)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.goto(link)
        return page

    yield open_
    assert wrong == []


@pytest.fixture
def training(tmp_path):
    """`gradtide train --dashboard`, and the link that it prints."""
    command = [sys.executable, "-m", "gradtide", "train", "--workers", "2", "--servers", "2", "--sync", "bounded:2"]
    command += ["--epochs", "1000", "--name", "seen", "--output", str(tmp_path), "--dashboard"]
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    link = next(found[0] for line in job.stderr if (found := re.search(r"http://\S+", line)))
    yield link
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=60)


def test_a_training_is_seen_live_in_light_and_dark_on_large_and_small_screens(training, opened, tmp_path):
    page = opened(training)
    until(page, "document.querySelectorAll('#links tbody tr').length == 8")
    assert "token" not in page.url
    steps = "Number(document.querySelector('#workers tbody tr td:nth-child(2)').textContent.replace(',', ''))"
    before = page.evaluate(steps)
    until(page, f"{steps} > {before} + 3")
    assert page.locator("#health").inner_text() == "all is well"
    assert page.locator("#connection").inner_text() == "live"
    assert page.locator("#stream .lane canvas").count() == 2
    assert page.locator("#staleness .bar").count() >= 1
    assert page.locator("#happened li").count() >= 3
    until(page, "document.getElementById('picture').naturalWidth > 100")
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            until(page, f"document.querySelector('#rate canvas').clientWidth < {width}")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            cut = "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth).length"
            assert page.evaluate(cut) == 0
            assert page.evaluate("document.documentElement.dataset.theme") == theme
            page.screenshot(path=tmp_path / f"{theme}-{width}.png", full_page=True)


def test_before_the_first_answer_the_page_says_that_it_waits_and_then_what_the_run_says(opened, tmp_path):
    with beside(tmp_path) as link:
        page = opened("about:blank")
        held = []
        page.route("**/stream", lambda route: held.append(route))
        page.goto(link)
        until(page, "document.querySelector('#servers td') !== null")
        waits = "waiting for the dashboard's first answer"
        assert [page.locator(place).inner_text() for place in ("#health", "#servers td")] == [waits] * 2
        until(page, "document.getElementById('connection').textContent == 'connecting…'")
        held[0].continue_()
        page.wait_for_selector("#servers td:has-text('waiting for the run to say whether it has a store')")
        write_facts(tmp_path, RunFacts("a run", workers=1))
        page.wait_for_selector("#servers td:has-text('this run has no store')")
        assert page.locator("#picture").is_hidden()  # there is none yet
        page.screenshot(path=tmp_path / "no-store.png", full_page=True)


def test_a_run_that_ends_while_it_is_looked_at_is_said_to_have_ended_and_is_not_red(opened, tmp_path):
    log, _ = write_run(tmp_path)
    write_facts(tmp_path, RunFacts("a run", workers=1))
    with beside(tmp_path) as link:
        page = opened(link)
        page.wait_for_selector("#stream .lane")
        log.close()
        note_end(tmp_path, 0)
    until(page, "document.getElementById('connection').textContent == 'ended'")
    assert page.locator("#health").inner_text().startswith("the run has ended at ")
    assert page.locator("#health").get_attribute("class") == "over"
    assert page.locator("#connection").get_attribute("class") in (None, "")


def test_keys_pause_change_the_theme_and_go_to_panels(training, opened):
    page = opened(training)
    page.wait_for_selector("#stream .lane", timeout=120_000)
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("p")
    assert page.locator("#pause").get_attribute("aria-pressed") == "true"
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("9")
    assert page.evaluate("document.activeElement.querySelector('h2').textContent").endswith("What happened")


def test_a_killed_server_is_seen_within_a_second(opened, tmp_path):
    with gradtide.local_servers(3, replicas=1) as servers, beside(tmp_path, servers.address) as link:
        page = opened(link)
        until(page, "document.querySelectorAll('#servers tbody tr').length == 3")
        wait_until_copied(servers.address)
        dead = next(process.pid for process in servers.processes if process.name == "server-1")
        os.kill(dead, signal.SIGKILL)
        killed_s = time.monotonic()
        page.wait_for_selector("#happened li.bad:has-text('server-1 was lost')", timeout=30_000)
        assert time.monotonic() - killed_s < 1.0
        page.wait_for_selector("#happened li.good:has-text('replicas took over')", timeout=30_000)
        page.wait_for_selector("#happened li.good:has-text('all shards have all their copies again')", timeout=30_000)


def test_after_ten_minutes_the_page_has_hardly_grown(training, opened):
    page = opened(training)
    page.wait_for_selector("#stream .lane", timeout=120_000)
    session = page.context.new_cdp_session(page)

    def heap_bytes():
        session.send("HeapProfiler.collectGarbage")
        return page.evaluate("performance.memory.usedJSHeapSize")

    page.wait_for_timeout(30_000)  # the soak itself, no synchronisation
    first = heap_bytes()
    page.wait_for_timeout(600_000)
    assert page.locator("#connection").inner_text() == "live"
    assert heap_bytes() - first < 20e6

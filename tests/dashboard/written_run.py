"""A run's folder as workers write it, with a clock of its own; and a reader of the dashboard."""

import http.client
import json
from urllib.parse import urlsplit

from gradtide.events import (
    BatchDone,
    BatchStarted,
    GradientsReady,
    GradientsSynchronised,
    LinksPlanned,
    ParametersUpdated,
    ValuesPulled,
    Waiting,
)
from gradtide.observe.event_log import EventLog, log_path

PLANNED = LinksPlanned(
    "servers, bounded:2", [["worker 0", "server-0", 400], ["worker 0", "server-1", 600]], 0.002, "lab"
)


class Clock:
    def __init__(self, now_s=100.0):
        self.now_s = now_s

    def __call__(self):
        return self.now_s


def write_steps(log, clock, first, last, planned=None):
    """Each takes a second: compute 0.5, push 0.1, wait 0.2, update 0.1, data 0.1."""
    for step in range(first, last + 1):
        told = [(0.5, GradientsReady()), (0.1, Waiting()), (0.2, GradientsSynchronised(1000))]
        log.observe(BatchStarted())
        for seconds, event in told:
            clock.now_s += seconds
            if planned is not None and isinstance(event, GradientsSynchronised):
                log.observe(planned)
                planned = None
            log.observe(event)
        log.observe(ValuesPulled(step - 1, step % 3))
        clock.now_s += 0.1
        log.observe(ParametersUpdated())
        log.observe(BatchDone(1, step, 32, 1.0 / step, None, 0.1))
        clock.now_s += 0.1


def write_run(folder, steps=6):
    clock = Clock()
    log = EventLog(log_path(folder, 0), clock)
    write_steps(log, clock, 1, steps, PLANNED)
    return log, clock


class Browser:
    """Asks as a browser does, and keeps its cookie."""

    def __init__(self, link):
        found = urlsplit(link)
        self.port, self.first, self.cookie = found.port, f"{found.path}?{found.query}", ""

    def ask(self, path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        if self.cookie:
            headers["Cookie"] = self.cookie
        connection.request(method, path, headers=headers)
        return connection, connection.getresponse()

    def get(self, path, method="GET", **headers):
        connection, answer = self.ask(path, method, **headers)
        body = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), body.decode()

    def enter(self):
        status, headers, body = self.get(self.first)
        self.cookie = headers["set-cookie"].partition(";")[0]
        return status, headers, body

    def stream(self):
        """(event, data) after another, as long as it is wanted."""
        connection, answer = self.ask("/stream")
        assert answer.status == 200
        event = ""
        try:
            for line in iter(answer.readline, b""):
                name, _, value = line.decode().strip().partition(": ")
                if name == "event":
                    event = value
                elif name == "data":
                    yield event, json.loads(value)
        finally:
            connection.close()

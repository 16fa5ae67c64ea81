"""A server's events as tracks: what it receives from each worker, its rounds; and the arrows there and back."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gradtide.events import PullAnswered, PullAsked, PushAnswered, PushArriving, PushTaken, ReplicaLag
from gradtide.observe.describe import describe
from gradtide.observe.meter import Timed
from gradtide.observe.trace.pieces import FlowArrow, Track, Tracks, just_before
from gradtide.observe.trace.requests import PushWindow, WorkerRequests
from gradtide.observe.trace.worker import worker_place

__all__ = ["ServerTracks", "draw_coordinator"]

_COORDINATOR = 10_000  # process ids: servers come after it
_FIRST_WORKER = 1_000  # tracks: rounds come before
_SHORTEST_S = 1e-7  # what times are written with


@dataclass(slots=True)
class _Round:
    """What a server saw of one, from its first push to its last answer."""

    began_s: float
    ended_s: float
    answers: list[tuple[int, float, PushWindow]] = field(default_factory=list)  # to whom, when, in which step


class ServerTracks:
    """Of one server. `align` brings its times to the clock of the trace."""

    def __init__(self, tracks: Tracks, number: int, name: str, requests: Mapping[int, WorkerRequests]) -> None:
        self._tracks, self._pid, self._requests = tracks, _COORDINATOR + 1 + number, requests
        self._align: Callable[[float], float] = float
        self._rounds: dict[int, _Round] = {}
        self._begun: dict[tuple[int, int, bool], float] = {}  # by worker, request, and whether it is a pull
        self._ends: dict[Track, float] = {}  # of the last slice
        tracks.name_process(self._pid, name, self._pid)

    def draw(self, events: Iterable[Timed], align: Callable[[float], float]) -> None:
        self._align = align
        for timed in events:
            self._take(align(timed.at_s), timed)
        self._draw_rounds()

    def _take(self, at_s: float, timed: Timed) -> None:
        event = timed.event
        if isinstance(event, ReplicaLag):
            self._tracks.counter(Track(self._pid, 0), f"lag of {event.replica}", "in entries", at_s, event.entries)
            return
        if not isinstance(event, PushArriving | PushTaken | PushAnswered | PullAsked | PullAnswered):
            return
        of_worker = self._requests.get(event.worker)
        window = of_worker.find(event.sequence, at_s) if of_worker is not None else None
        if window is None:
            return
        match event:
            case PushArriving() | PullAsked():
                self._begun[event.worker, event.sequence, isinstance(event, PullAsked)] = at_s
            case PushTaken():
                self._draw_push(event, at_s, window)
            case PullAnswered():
                self._draw_pull(event, at_s, window)
            case PushAnswered() if event.round:
                seen = self._rounds.get(event.round)
                if seen is not None:
                    seen.ended_s = at_s
                    seen.answers.append((event.worker, at_s, window))

    def _draw_push(self, push: PushTaken, at_s: float, window: PushWindow) -> None:
        place = self._place(push.worker, f"from worker {push.worker}", 0)
        began_s = self._begun.pop((push.worker, push.sequence, False), at_s)
        began_s, ended_s = self._after(place, began_s, at_s)
        about = {"bytes": push.size_bytes, "round": push.round}
        self._tracks.slice(place, "server", "receive", began_s, ended_s, **about)
        name = f"push, {push.size_bytes:,} bytes"
        self._tracks.arrow(FlowArrow(name, worker_place(push.worker), window.left_s, place, began_s))
        if push.round:
            self._rounds.setdefault(push.round, _Round(began_s, ended_s))

    def _draw_pull(self, pull: PullAnswered, at_s: float, window: PushWindow) -> None:
        place = self._place(pull.worker, f"to worker {pull.worker}", 1)
        began_s = self._begun.pop((pull.worker, pull.sequence, True), at_s)
        began_s, ended_s = self._after(place, began_s, at_s)
        self._tracks.slice(place, "server", "answer a pull", began_s, ended_s, round=pull.round)
        if window.pulled_s is not None:
            start_s = just_before(ended_s)
            self._tracks.arrow(FlowArrow("pull", place, start_s, worker_place(pull.worker), window.pulled_s))

    def _draw_rounds(self) -> None:
        """Where rounds overlap (bounded), each has a track of its own."""
        lanes: list[float] = []  # until when each is taken
        for number, seen in sorted(self._rounds.items(), key=lambda item: item[1].began_s):
            lane = next((i for i, end_s in enumerate(lanes) if end_s <= seen.began_s), len(lanes))
            place = Track(self._pid, 1 + lane)
            if lane == len(lanes):
                lanes.append(0.0)
                self._tracks.name_track(place, f"rounds{f' ({lane + 1})' if lane else ''}")
            lanes[lane] = seen.ended_s
            about = {"answered": len(seen.answers)}
            self._tracks.slice(place, "server", f"round {number}", seen.began_s, seen.ended_s, **about)
            for worker, at_s, window in seen.answers:
                self._draw_answer(place, worker, at_s, window)

    def _draw_answer(self, place: Track, worker: int, at_s: float, window: PushWindow) -> None:
        """Where the worker waited for it: in bounded it goes on, and the answer comes when it may."""
        if window.synchronised_s is not None and at_s <= window.synchronised_s:
            start_s, end_s = just_before(at_s), window.synchronised_s
            self._tracks.arrow(FlowArrow("round closed", place, start_s, worker_place(worker), end_s))

    def _place(self, worker: int, name: str, which: int) -> Track:
        place = Track(self._pid, _FIRST_WORKER + 2 * worker + which)
        if place not in self._ends:
            self._ends[place] = float("-inf")
            self._tracks.name_track(place, name)
        return place

    def _after(self, place: Track, began_s: float, ended_s: float) -> tuple[float, float]:
        """Slices of a track follow each other, and can be seen."""
        began_s = max(began_s, self._ends[place])
        ended_s = max(ended_s, began_s + _SHORTEST_S)
        self._ends[place] = ended_s
        return began_s, ended_s


def draw_coordinator(tracks: Tracks, events: Iterable[Timed], align: Callable[[float], float]) -> None:
    """Who came, was lost, took over."""
    tracks.name_process(_COORDINATOR, "store", _COORDINATOR)
    for at_s, event in events:
        told = describe(event)
        if told is not None:
            tracks.mark(Track(_COORDINATOR, 0), told[0], told[1], align(at_s))

import json

import pytest

from gradtide.draw.timeline import Transfer, chrome_trace, write_timeline
from gradtide.errors import OutputError

pytestmark = pytest.mark.quick

UP, DOWN = ("gpu0", "switch"), ("switch", "gpu1")


def rows(trace) -> dict[str, list[dict]]:
    titles = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    return {
        title: [e for e in trace["traceEvents"] if e["ph"] == "X" and e["tid"] == tid] for tid, title in titles.items()
    }


def test_each_link_has_a_row_with_its_name_and_times_in_microseconds():
    trace = chrome_trace([Transfer("op 0", (UP, DOWN), 0.0, 1e-3), Transfer("op 1", (UP,), 1e-3, 3e-3)], "ring")
    assert [(e["name"], e["ts"], e["dur"]) for e in rows(trace)["gpu0 → switch"]] == [
        ("op 0", 0, 1000), ("op 1", 1000, 2000)
    ]  # fmt: skip
    assert [e["name"] for e in rows(trace)["switch → gpu1"]] == ["op 0"]
    assert trace["traceEvents"][0]["args"] == {"name": "ring"}


def test_spans_that_nest_share_a_row_and_those_that_only_overlap_do_not():
    nested = chrome_trace([("a", [UP], 0.0, 4e-3), ("b", [UP], 1e-3, 2e-3), ("c", [UP], 0.0, 4e-3)], "x")
    assert list(rows(nested)) == ["gpu0 → switch"]
    crossed = chrome_trace([("a", [UP], 0.0, 2e-3), ("b", [UP], 1e-3, 3e-3), ("c", [UP], 2e-3, 4e-3)], "x")
    assert {row: [e["name"] for e in events] for row, events in rows(crossed).items()} == {
        "gpu0 → switch": ["a", "c"], "gpu0 → switch (2)": ["b"]
    }  # fmt: skip


def test_the_slices_of_every_row_nest_whatever_the_spans():
    import random

    pick = random.Random(5)
    spans = []
    for i in range(400):
        start = pick.randrange(1000) * 1e-6
        spans.append((f"op {i}", [UP], start, start + pick.randrange(1, 100) * 1e-6))
    trace = chrome_trace(spans, "x")
    assert sum(len(events) for events in rows(trace).values()) == 400
    for events in rows(trace).values():
        open_: list[float] = []
        for event in events:
            while open_ and open_[-1] <= event["ts"] + 1e-9:
                open_.pop()
            assert not open_ or event["ts"] + event["dur"] <= open_[-1] + 1e-9
            open_.append(event["ts"] + event["dur"])


def test_the_file_is_json_and_a_place_that_can_not_be_written_is_said(tmp_path):
    write_timeline(tmp_path / "trace.json", [("op", [UP], 0.0, 1.0)], "ring")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    with pytest.raises(OutputError, match="can't write the timeline"):
        write_timeline(tmp_path / "no" / "trace.json", [], "ring")

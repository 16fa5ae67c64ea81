"""What a run did over time, as a Chrome trace: for Perfetto (ui.perfetto.dev) or chrome://tracing.

A process a worker and a server; arrows go from who sent to who received. Only files of events are read.

pieces.py   events of the trace-event format: slices, marks, counters, arrows
steps.py    a worker's events, cut into steps
keeping.py  which steps stay in a trace of bounded size
worker.py   a worker's steps as a track
tasks.py    the tasks of a split model's step as tracks, and the arrows between them
meeting.py  arrows between workers, by what each was planned to send to whom
requests.py what workers asked servers for, and when
server.py   a server's events as tracks, and the arrows there and back
folder.py   the files of a run, and the trace of all of them
"""

from gradtide.observe.trace.folder import MOST_EVENTS, find_logs, make_trace, write_trace

__all__ = ["MOST_EVENTS", "find_logs", "make_trace", "write_trace"]

"""What a run and its store do, seen live in a browser: a process of its own that reads, and changes nothing.

series.py       samples and losses over time, in a number of points that does not grow
worker_view.py  one worker, from its events: where its time goes, what it sends, how stale its values are
run_view.py     a whole run: all workers, predicted beside measured, what has happened
store_view.py   a store: servers, shards, lag, complaints
sources.py      where these come from: a run's folder, a coordinator
picture.py      the topology with the loads of its links, as the planner draws it
feed.py         one reader of the sources, and many readers of what is new
guard.py        who may look: the host's name, the token, the cookie; what the browser may load
app.py          the pages and the stream, as an ASGI application
serve.py        the server's process, and how a run starts one beside itself

The page itself is in the folder `static`, with uPlot and its licence; there is no build step. starlette, uvicorn and
prometheus-client are extras, loaded when somebody wants a dashboard.
"""

"""Commands that look at what runs, and change nothing.

status.py     `gradtide status`: how a store is, in one screen
dashboard.py  `gradtide dashboard`: a run and its store, live in a browser
trace.py      `gradtide trace`: what every worker and server did when, for Perfetto
"""

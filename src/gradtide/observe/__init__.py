"""What events say: where time went, and when; events as lines of a file. It never loads torch.

meter.py        where the time and the bytes of a run went, from its events
event_log.py    a worker's events as lines of a file: written, followed while it runs, read
bounded_log.py  the same of a process that runs for months, in files that don't grow with it
clocks.py       clocks of several hosts: compared, and aligned when events are merged
run_facts.py    what a run's folder says of it besides events: its name, its store
describe.py     what has happened, in words
trace/          what a run did over time, for Perfetto
figures.py      the totals of a run and of a store, as Prometheus wants them
"""

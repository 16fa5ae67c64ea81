"""`gradtide train`.

command.py    trains a model, shows it live, keeps what it saw
meeting.py    what --every can't mean
splitting.py  what --split can't mean
keeping.py    checkpoints: its options, what is kept of an interrupted run
workers.py    the same on several workers: starts them
report.py     ... shows how far they are, and what came of it
"""

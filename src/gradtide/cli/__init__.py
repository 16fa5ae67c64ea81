"""The command line, one file a command.

entry.py       loads what the asked command needs; turns our errors into one line and exit code 2
app.py         puts the commands together
table.py       the table of every command
train/         trains a model, shows it live, keeps what it saw; the same on several workers
run.py         starts a script on several workers of this machine
plan/          which synchronisation is best on these links, and why; which one wins from which size on
topology.py    lists, shows, checks and probes topologies
serve.py       a server or the coordinator of a store, on any machine, and their keys
store.py       looks inside a running store
checkpoint.py  lists and verifies checkpoints; exports and imports plain files of tensors
restore.py     a store on this machine that begins with a checkpoint
status.py      how a store is, and what is wrong when a job hangs
scale.py       more or fewer servers of a store, or workers of a job, that is at work
chaos.py       the store under fire: real processes that are killed, or simulated ones
bench/         gradtide beside its peers
doctor.py      what this machine has, and what that means
"""

from gradtide.cli.entry import main

__all__ = ["main"]

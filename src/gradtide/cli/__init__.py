"""The command line, one file a command.

app.py         puts the commands together; turns our errors into one line and exit code 2
topology.py    lists, shows, checks and probes topologies
plan.py        which synchronisation is best on these links, and why
plan_sizes.py  which one wins from which size on
"""

from gradtide.cli.app import main

__all__ = ["main"]

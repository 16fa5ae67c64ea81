"""The command line, one file a command.

entry.py       loads what the asked command needs; turns our errors into one line and exit code 2
stopping.py    Ctrl-C and SIGTERM: one line, whatever was going on
shell_completion.py  completion for a shell by its name
usage.py       a mistake in a command's words, as one line
app.py         puts the commands together
help.py        lists commands with their whole sentences
table.py       the table of every command
train/         trains a model, shows it live, keeps what it saw; the same on several workers
run.py         starts a script on several workers of this machine
plan/          which synchronisation is best on these links, and why; how to split a model
topology.py    lists, shows, checks and probes topologies
store_commands/  a server, the coordinator, their keys; how a store is; more or fewer servers; chaos
checkpoint.py  lists and verifies checkpoints; exports and imports plain files of tensors
watch/         how a store is, and what is wrong when a job hangs; a run and its store in a browser
bench/         gradtide beside its peers
doctor/        what this machine has, what that means, and what stands in the way
"""

from gradtide.cli.entry import main

__all__ = ["main"]

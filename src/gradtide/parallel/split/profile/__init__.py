"""What a chain costs, unit by unit, measured within a budget of memory.

entry.py       profile: all of it, as the search for a layout reads it
walking.py     a chain run unit by unit, each in a copy of its own, with no more alive than is read later
survey.py      bytes: of values, and of what is kept for backward
scratch.py     bytes for a moment: workspaces, and gradients on their way
timing.py      seconds: of forward and backward at two sizes of a micro-batch
tail.py        seconds of the loss
updating.py    an optimizer's bytes and seconds
handling.py    seconds of messages, exchanges and sums between two devices
overheads.py   what devices do in a step beside their layers
"""

from gradtide.parallel.split.profile.entry import profile

__all__ = ["profile"]

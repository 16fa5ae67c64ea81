"""A parameter server: gradients are pushed as backward goes on, values are pulled at the step.

settings.py    what a user says: the mode, where they are, whether to go on with an earlier training
newcomers.py   what workers who come later are told, and by whom
lodging.py     a training's keys on the servers: who makes them, who may come
attendance.py  a worker's place at the servers, from when it connects to when it leaves
options.py     the options that servers step with, and how they are told of changes
averages.py    what servers that only average keep: gradients, and which of them there are
smaller.py     gradients that are compressed on their way: which, what that saves, what is left out of them
way.py         the way of a gradient, to the servers and back
"""

from gradtide.sync.servers.settings import Servers
from gradtide.sync.servers.way import ServersWay

__all__ = ["Servers", "ServersWay"]

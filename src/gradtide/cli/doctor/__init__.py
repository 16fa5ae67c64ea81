"""`gradtide doctor`: what this machine has, and what stands in the way.

command.py   the command: the findings as a table, and advice
limits.py    what the machine and its container allow: memory, cores, shared memory, descriptors, the kernel
reaching.py  whether ports of other hosts can be reached
"""

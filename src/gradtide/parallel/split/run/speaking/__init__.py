"""How the devices of a split model speak to each other.

communicator.py   the protocol
threads.py        between the threads of one process
headers.py        what goes ahead of a message's tensors
enclosing.py      what a letter is made of, on one host
processes.py      between processes, over a Group
places.py         the devices of this process, and how each does its work
"""

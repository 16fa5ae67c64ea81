"""Links of our own between hosts: collectives of their leaders, one compiled call each, without Gloo.

parts.py       what goes to and comes from each host in one exchange, as plain data
operations.py  the collectives as such data: one exchange each, whatever the number of hosts
links.py       the sockets between leaders, and an exchange over them that notices the dead and the late
connecting.py  how leaders get them: each two prove to each other that they know the job's secret
far.py         tensors in, tensors out: what groups/ calls
"""

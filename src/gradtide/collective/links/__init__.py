"""Links of our own between hosts: every collective as stages, one compiled call each; messages; schedules.

parts.py       what goes to and comes from each host in one exchange, as plain data
operations.py  the collectives of hosts as such data: one exchange each, whatever the number of hosts
place.py       where a rank is among hosts: which ranks of each host drive the wire
stages.py      the collectives of ranks as stages: hand inside the host, exchange between hosts, hand out
row_stages.py  the same for those of tensors with a row for each rank
links.py       the sockets between ranks of different hosts, and an exchange that notices the dead and the late
connecting.py  how ranks get them: each two prove to each other that they know the job's secret
running.py     runs stages, on tensors by their addresses
far.py         what goes between hosts outside of stages: texts, refusals, types that kernels can't add
transfers.py   streams of bytes over sockets between any two ranks, moved by one compiled call
rank_links.py  messages over them
wire.py        schedules over them, which get their links when they first need them
"""

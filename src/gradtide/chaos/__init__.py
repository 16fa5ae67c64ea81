"""Breaks a real store, or lets it come and go, for as long as you like, and counts what was lost: `gradtide chaos`.

crew.py               the processes that work meanwhile
drill.py              servers killed, stopped, cut off and more while workers push exact integers
drill_worker.py       one such worker
islands.py            a store whose processes are in networks of their own
machines.py           a store on four machines, with etcd
etcd_cluster.py       its etcd
machine_drill.py      the drill there: servers, coordinators, members of etcd, links and machines are struck
networks.py           such networks: cables that are pulled, flows that are lost without a word
membership_churn.py   servers and workers that come and go while others train in rounds
round_worker.py       one that stays
soak.py               long runs: training under a kill every 20 s, and on an overloaded machine
trainer.py            a worker of these
footprint.py          what processes take of this machine, and which are left
"""

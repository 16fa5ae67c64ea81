"""A job's nodes: the machines that its processes are on, as the head and each of them see it.

node.py        what the head wants of a node, wherever it is
local_node.py  this machine: the fork server and what it reports
forked.py      this machine, whose workers are forks of the program that asks: gradtide.launch
wire.py        what a head and its agents say to each other between machines
door.py        where agents and workers come in at the head, and who of them still answers
worker_lines.py the lines of workers to the registrar, and how long each may go on
stores.py      torch's stores, in which ranks of several machines find each other
fleet.py       a job on several nodes: which worker is where, and who takes the place of those whose node is lost
remote_node.py another machine, as the head sees it: its agent at the end of a connection
collecting.py  what workers write, on its way from an agent to the head
roles.py       processes of a node besides workers: servers, a coordinator
placement.py   where a job's workers go: pure decisions
result.py      what a function returned in a worker that is a fork
secret.py      the job's secret for processes that an agent starts, in memory
"""

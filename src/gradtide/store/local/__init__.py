"""The processes of a store: started on this machine, looked at and made more or fewer on any.

servers.py      local_servers: a store of this process, for as long as it wants one
roles.py        server and coordinator as processes
advertise.py    where a server is reached, and what it is called, if nobody says
forkserver.py   makes such processes by fork, and again when they die
starter.py      where a fork server is asked for more servers
status.py       how a store is, asked of each of its processes
figures.py      the same as totals for Prometheus, and the coordinator's /metrics
scaling.py      more or fewer servers for a store that is at work
"""

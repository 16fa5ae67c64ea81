"""How long a schedule will take.

resources.py         links and wires that ops compete for
sharing.py           how flows share them: max-min fair
simulate.py          when each op starts and ends, what each link carries
op_arrays.py         a list of ops as arrays
many_ops.py          when each of many ops starts and ends
compiled_flows.py    the same, compiled
sent.py              how much each process sends to each other
rings_and_trees.py   which rings or trees it is made of, and what each carries
servers_model.py     the same for parameter servers in very large clusters
exchange_model.py    and for collectives over direct links between hosts, by what a few have taken
less_often.py        a step of workers that meet at every step, every so many, or never
smaller_messages.py  a synchronisation with compressed gradients, and with whole ones
frugal_choice.py     a step with whole gradients, smaller messages, fewer rounds, or both, and which is worth it
unequal_speeds.py    a step of workers that are not equally fast, with equal parts of a batch and with parts by speed
"""

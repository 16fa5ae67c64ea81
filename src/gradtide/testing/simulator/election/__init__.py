"""Several coordinators on one register, on the virtual clock, in the code that real ones run.

register.py       one linearizable register with leases; what it is asked may be lost, late, or done unanswered
coordinators.py   the shells around them, and which of them each peer talks to
scenario.py       what goes wrong, by a seed
"""

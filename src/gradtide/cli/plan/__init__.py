"""`gradtide plan`.

command.py  which synchronisation is best on these links, and why
table.py    what it prints
sizes.py    which strategy wins from which size on
"""

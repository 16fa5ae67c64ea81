"""`gradtide plan`.

command.py  which synchronisation is best on these links, and why
table.py    what it prints
step.py     what meeting less often, and parts by speed, save in a whole step
smaller.py  what compressed gradients save of a synchronisation
sizes.py    which strategy wins from which size on
"""

"""`gradtide plan`, of a synchronisation, and `gradtide split`, of a whole model.

command.py     which synchronisation is best on these links, and why
completion.py  what a shell completes after it
table.py       what it prints
step.py        what meeting less often, and parts by speed, save in a whole step
smaller.py     what compressed gradients save of a synchronisation
sizes.py       which strategy wins from which size on
hosts.py       the time over the number of hosts
split.py       gradtide split: how to lay a model out over devices
"""

"""Coordinators that may die with their machines: one of several leads, and the journal is where all see it.

register.py        what they ask of that place: who leads, and the journal
leadership.py      pure: which one leads, and until when it can prove that
office.py          pure: one of several coordinators: it stands by, or leads
errands.py         questions to the register, off the coordinator's loop
etcd_place.py      etcd://h1:2379,h2:2379,h3:2379/job, from a user's words
etcd_members.py    one request to whichever member of etcd answers
etcd_register.py   who leads, and the journal, as two keys of etcd
"""

"""How devices are wired.

model.py     nodes and links as frozen data
"""

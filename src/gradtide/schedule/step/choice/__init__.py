"""What the search for a layout rests on.

states.py     whole, sliced or partial: what a way of cutting a unit costs in exchanges
ways.py       the best ways of a stage's units
wires.py      how fast devices compute and reach each other
figures.py    what a stage costs, from its shape or of all stages at once
intervals.py  the figures of every stage that a model can be cut into
sweep.py      the best chain of stages under a limit
bound.py      the time that no layout can beat
candidates.py layouts that do one thing alone, and interleaved ones
mixed.py      copies and shards one after the other on the same devices
memory_limits.py the least memory that a layout needs
wording.py    layouts and plans in plain words
"""

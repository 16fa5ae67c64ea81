"""A step is built: who computes what in which order, then what has to be sent, exchanged and summed in between.

checks.py     what a shape must be, or is refused for
rows.py       stages on the same devices are a row; what a row does is a list of turns
orders.py     gpipe, 1f1b, interleaved, zero-bubble: the turns of each row
depth_first.py 1f1b where a row has several blocks of stages
merge.py      the turns of all rows in one order that each row's follows
transfers.py  who sends which samples to whom where two stages meet
expand.py     every turn becomes tasks: exchanges, segments, messages
finish.py     sums of gradients, the norm, the updates
step.py       build_step does all of it
"""

from gradtide.schedule.step.build.orders import ORDERS
from gradtide.schedule.step.build.step import build_step

__all__ = ["ORDERS", "build_step"]

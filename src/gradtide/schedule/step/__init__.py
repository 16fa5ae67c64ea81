"""A whole training step of a model that is split, as data: built, proven, predicted, chosen. Never imports torch.

layout.py     who computes what: stages of layers, each with copies and shards
shape.py      what a step is made of
model.py      the step itself: tasks, and who takes them in which order
build/        a shape becomes a step
proof/        a step is proven right
predict/      how long a step takes
memory.py     how much memory each device needs
by_hand.py    a layout as a line of text
files/        layouts and steps as JSON and back
pictures.py   a step drawn, and as a timeline
costs.py      what a model costs, unit by unit
shaping.py    a layout and costs become a shape
score.py      how long a layout takes, in closed form
choice/       what the search rests on
search.py     all layouts, the best of them by score
planned.py    plan_split: the best few simulated, proven, compared and explained
"""

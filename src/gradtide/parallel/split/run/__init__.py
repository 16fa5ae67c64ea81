"""Runs a step of a split model: the same code on each device, over threads or over processes.

speaking/         how devices speak to each other
setting_up.py     what comes before the first step
shaping.py        the shape of a step of a model as it is cut
first_values.py   of a model on the meta device
agreeing.py       that all ranks want the same
batch.py          one batch, and what each part's loss counts
segments.py       a segment's forward and backward
rooms.py          what a device has of one stage and micro-batch
shard_talk.py     an exchange among the shards of a copy
held.py           parameters that a device holds, and their gradients
optimizer.py      the user's optimizer over what a device holds
programme.py      what a device does in a step, looked up once
walk.py           one device takes its tasks
watching.py       an event a task, for whoever listens
whole.py          whole states from everybody's parts, and back
engine.py         all of it: steps, evaluation, state
"""

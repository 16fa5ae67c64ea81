"""Model parallelism: a model traced, cut into stages and shards, and run on devices or processes, exactly.

units.py            a model as a chain of units
chain_values.py     what goes into a chain, through it and out of it, all in one place
forward_reads.py    what a forward reads besides its own numbers, so that a change is noticed
snapshot.py         what a model is besides its parameters' values, so that a change is noticed
trace/              a model made into a chain
layers/             how layers are cut into shards, a file a kind
cut/                a stage cut into the shards that devices run
profile/            what a chain costs, unit by unit, measured
meta.py             first values of a model on the meta device
planning.py         gradtide.split: traced, profiled, searched
torch_schedules.py  torch.distributed.pipelining's schedules as steps of ours, to be proven and compared
wrapped.py          the user's model and optimizer, and that they are still what devices know of them
run/                a step, on threads or processes
"""

"""A model made into a chain of units, and the chain compared with the model.

entry.py         trace: which way a model is taken
refuse.py        models that no chain is exact for, refused by name
inputs.py        an example batch as named tensors
leaves.py        layers that are taken as a whole
sequential.py    nn.Sequential: its layers are the units
symbolic.py      torch.fx: a graph of layers and functions, the same in training and in evaluation
exported.py      torch.export: the same from operations that were run
rewrite.py       functions that are layers, and operations in place that change a copy instead
graph.py         a graph made ready to be cut
graph_units.py   a graph cut into units
by_hand.py       submodules that the user named
names.py         parameters and buffers by one name each
check.py         a chain compared with its model on the example
mixing.py        samples that depend on others, on the example and in the real parts of a batch
gradients.py     a chain's gradients compared with its model's
random_watch.py  operations that draw random numbers, on the meta device
"""

from gradtide.parallel.split.trace.entry import trace
from gradtide.parallel.split.trace.leaves import keep_whole
from gradtide.parallel.split.trace.mixing import refuse_parts

__all__ = ["keep_whole", "refuse_parts", "trace"]

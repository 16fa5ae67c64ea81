"""How layers are cut into shards: one file a kind of layer.

registry.py        what a way to cut a layer says and does; `@layer` adds one
linear.py          Linear by columns, by rows, by both
conv.py            convolutions by output channels and by groups
embedding.py       Embedding by columns and by rows
elementwise.py     layers that follow what they read: activations, pooling, Flatten
functions.py       operations between layers
norms.py           batch, instance and group norm on slices of channels
response_norm.py   local response normalisation within groups of channels
local_response.py  local response normalisation across slices, and per tower
"""

from gradtide.parallel.split.layers import conv, elementwise, embedding, functions, linear, local_response, norms
from gradtide.parallel.split.layers.registry import Index, LayerPart, LayerWay, Slices, layer, layer_ways

KINDS = (conv, elementwise, embedding, functions, linear, local_response, norms)  # each registers its ways

__all__ = ["KINDS", "Index", "LayerPart", "LayerWay", "Slices", "layer", "layer_ways"]

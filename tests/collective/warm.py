"""Imported once by the process that ranks are forked from: they start with every kernel loaded."""

import numpy as np
import process_groups  # noqa: F401
import torch._dynamo  # noqa: F401  # DDP and optimizers import it when the first is made: 2 s in each rank
from cases import DTYPES, reductions_of

import gradtide.collective.c10d.creating  # noqa: F401
from gradtide.collective.host.reductions import reduction
from gradtide.compress import Form, as_compress, pack, powersgd, unpack
from gradtide.kernels import KERNELS

for kernel in (KERNELS.STEP, KERNELS.ALL_REDUCE, KERNELS.REDUCE, KERNELS.RAISE, KERNELS.SPIN, KERNELS.BEFORE_SLEEP):
    assert kernel.entry
for kernel in (KERNELS.HAND, KERNELS.EXCHANGE, KERNELS.RESUME_EXCHANGE, KERNELS.TRANSFER):
    assert kernel.entry
for dtype in DTYPES:
    for name in reductions_of(dtype):
        assert reduction(name, dtype).blocks is None or all(reduction(name, dtype).blocks)
for kernel in KERNELS.COMBINE.values():
    assert kernel.entry
for element in (np.float32, np.float64):  # else each worker of the first test that compresses compiles them for itself
    for codec in (as_compress(name).make() for name in ("int8", "onebit", "topk:0.5")):
        values, form = np.ones(64, element), Form(64, np.dtype(element), 1)
        unpack(codec, pack(codec, values, form, 0), form, np.empty_like(values))
    powersgd.orthonormalise(np.eye(2, dtype=element))
    powersgd.expand(*[np.ones((1, 4), element)] * 2, np.empty((4, 4), element), powersgd.SET)

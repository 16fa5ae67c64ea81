"""Imported once by the process that ranks are forked from: they start with every kernel loaded."""

import process_groups  # noqa: F401
import torch._dynamo  # noqa: F401  # DDP and optimizers import it when the first is made: 2 s in each rank
from cases import DTYPES, reductions_of

import gradtide.collective.c10d.creating  # noqa: F401
from gradtide.collective.host.reductions import reduction
from gradtide.kernels import KERNELS

for kernel in (KERNELS.STEP, KERNELS.ALL_REDUCE, KERNELS.REDUCE, KERNELS.RAISE, KERNELS.SPIN, KERNELS.BEFORE_SLEEP):
    assert kernel.entry
for kernel in (KERNELS.HAND, KERNELS.EXCHANGE, KERNELS.RESUME_EXCHANGE, KERNELS.TRANSFER):
    assert kernel.entry
for dtype in DTYPES:
    for name in reductions_of(dtype):
        assert reduction(name, dtype).blocks is None or all(reduction(name, dtype).blocks)

"""Imported once by the process that ranks are forked from: they start with every kernel loaded."""

import process_groups  # noqa: F401
from cases import DTYPES, reductions_of

import gradtide.collective.c10d.creating  # noqa: F401
from gradtide.collective.kernels import KERNELS
from gradtide.collective.reductions import reduction

for kernel in (KERNELS.STEP, KERNELS.ALL_REDUCE, KERNELS.REDUCE, KERNELS.RAISE, KERNELS.SPIN, KERNELS.BEFORE_SLEEP):
    assert kernel.entry
for dtype in DTYPES:
    for name in reductions_of(dtype):
        assert reduction(name, dtype).blocks is None or all(reduction(name, dtype).blocks)

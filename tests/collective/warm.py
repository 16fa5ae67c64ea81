"""Imported once by the process that ranks are forked from: they start with every kernel loaded."""

from cases import DTYPES

from gradtide.collective.kernels import KERNELS
from gradtide.collective.reductions import reduction

for kernel in (KERNELS.STEP, KERNELS.RAISE, KERNELS.SPIN, KERNELS.BEFORE_SLEEP):
    kernel[None]
for dtype in DTYPES:
    if (element := reduction("sum", dtype).element) is not None:
        for kernel in (KERNELS.STAGED, KERNELS.IN_PLACE, KERNELS.REDUCE):
            kernel[element]

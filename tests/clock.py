"""How long things may take: what is promised where a test has the machine to itself, and more beside other lanes.

What a test waits for ends, if the product fails, after minutes: so ten times a second is as good a proof that it does
not, and a machine that is busy with other tests keeps to it.
"""

import os

IN_LANES = "GRADTIDE_TEST_LANES"  # tests/lanes.py sets it


def at_most(seconds: float) -> float:
    return 10 * seconds if IN_LANES in os.environ else seconds

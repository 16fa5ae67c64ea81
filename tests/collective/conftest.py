import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the ranks' processes import cases by that name too

from cases import compile_kernels
from ranks import Ranks


@pytest.fixture(scope="session")
def ranks():
    """Five processes, kept for all tests that leave them as they were."""
    started = Ranks(5)
    started.run(compile_kernels, 1)  # once, in one process; the others find them in the cache
    yield started
    started.close()

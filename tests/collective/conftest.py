import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the ranks' processes import cases by that name too

from ranks import Ranks


@pytest.fixture(scope="session")
def ranks():
    """Five processes, kept for all tests that leave them as they were."""
    started = Ranks(5)
    yield started
    started.close()

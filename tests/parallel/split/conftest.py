import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
for folder in (HERE.parent.parent / "collective", HERE):
    sys.path.insert(0, str(folder))  # the devices' processes import ranks and split_runs by that name too

from ranks import Ranks  # noqa: E402


@pytest.fixture(scope="session")
def device_processes():
    """Four processes, kept for all tests that leave them as they were."""
    started = Ranks(4)
    yield started
    started.close()

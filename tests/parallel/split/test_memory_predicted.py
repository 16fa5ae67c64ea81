"""What a plan says of memory is what torch.profiler sees allocated, device by device, several steps in."""

import memory_runs as m
import pytest
import split_runs as runs

WAYS = {
    "one device": ("one", 4, "1f1b"),
    "gpipe": ("pipeline 2", 4, "gpipe"),
    "1f1b": ("pipeline 2", 4, "1f1b"),
    "computed again": ("again", 4, "1f1b"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", m.CASES)
def test_bytes_a_device_are_those_that_torch_allocates(device_processes, name, way):
    size = 1 if way == "one device" else 2
    seen = device_processes.run(m.measured, size, runs.new_name(), name, *WAYS[way])
    said = [one.total for one in m.predicted(name, *WAYS[way])]
    assert said == pytest.approx(seen, rel=0.1)

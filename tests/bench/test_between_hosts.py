import pytest

from gradtide.bench.between_hosts import CONTENDERS, OPERATIONS, HostsWire, bench_between_hosts
from gradtide.errors import ConfigError
from gradtide.testing.hosts import several_hosts


@pytest.fixture
def namespaces():
    try:
        with several_hosts(2, ""):
            pass
    except ConfigError as error:
        pytest.skip(str(error))


def test_every_contender_is_measured_at_every_operation_and_size(namespaces):
    figures = bench_between_hosts(HostsWire(2, 1000), OPERATIONS, [4096, 100_000], 1, lambda text: None)
    found = {(f.operation, f.size_bytes, f.name) for f in figures}
    assert found == {(o, s, n) for o in OPERATIONS for s in (4096, 100_000) for n in CONTENDERS}
    assert all(0 < f.seconds_min <= f.seconds <= f.seconds_max for f in figures)


@pytest.mark.quick
def test_what_can_t_be_measured_is_refused():
    with pytest.raises(ConfigError, match="no operation is called"):
        bench_between_hosts(HostsWire(), ["all_reduced"], [4096], 1, lambda text: None)
    with pytest.raises(ConfigError, match="2 to 8 hosts"):
        bench_between_hosts(HostsWire(1), ["all_reduce"], [4096], 1, lambda text: None)

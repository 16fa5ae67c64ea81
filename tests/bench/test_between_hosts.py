import pytest

from gradtide.bench.allreduce import find_mpi
from gradtide.bench.hosts.collectives import CONTENDERS, PREDICTED, HostsWire, bench_between_hosts
from gradtide.errors import ConfigError
from gradtide.testing.hosts import several_hosts


@pytest.fixture
def namespaces():
    try:
        with several_hosts(2, ""):
            pass
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_every_contender_is_measured_at_every_operation(namespaces):
    operations = ["all_reduce", "all_to_all"]
    mpis = [mpi for mpi in find_mpi() if mpi.name.startswith("Open MPI")]
    figures = bench_between_hosts(HostsWire(2, 1000, ranks=2), operations, [100_000], 1, mpis, lambda text: None)
    names = [*CONTENDERS, PREDICTED, *(mpi.name for mpi in mpis)]
    assert [(f.operation, f.size_bytes, f.name) for f in figures] == [
        (o, 100_000, n) for o in operations for n in names
    ]
    assert all(0 < f.seconds_min <= f.seconds <= f.seconds_max for f in figures)


@pytest.mark.quick
def test_what_can_t_be_measured_is_refused():
    with pytest.raises(ConfigError, match="no operation is called"):
        bench_between_hosts(HostsWire(), ["all_reduced"], [4096], 1, [], lambda text: None)
    with pytest.raises(ConfigError, match="2 to 8 hosts"):
        bench_between_hosts(HostsWire(1), ["all_reduce"], [4096], 1, [], lambda text: None)

import pytest
from cases import DTYPES, Case, check, reductions_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

OPERATIONS = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "ring",
)
SHAPES = st.one_of(
    st.just(()),
    st.lists(st.integers(0, 7), min_size=1, max_size=4).map(tuple),
    st.sampled_from([(1,), (1023,), (16_385,), (3, 21_847), (131_077,), (300_001,)]),
)


@st.composite
def _cases(draw, operation):
    dtype = draw(st.sampled_from(DTYPES))
    return Case(
        operation,
        draw(st.sampled_from(reductions_of(dtype))),
        dtype,
        draw(SHAPES),
        draw(st.sampled_from(["plain", "plain", "strided", "shared"])),
        draw(st.integers(0, 4)),
        draw(st.integers(0, 10_000)),
        draw(st.booleans()),
    )


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_rank_gets_bit_for_bit_what_plain_torch_computes(ranks, operation):
    @settings(
        max_examples=60,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(size=st.integers(1, 5), case=_cases(operation))
    def run(size, case):
        assert not any(ranks.run(check, size, case))

    run()

"""The even share: every thing has one owner, and no owner has more than a grain more than another."""

import numba
from hypothesis import given, settings
from hypothesis import strategies as st

from gradtide.even_share import even_share

COMPILED = numba.njit(even_share)
OWNERS, GRAINS = st.integers(1, 40), st.integers(1, 64)


@given(things=st.integers(0, 5000), owners=OWNERS, grain=GRAINS)
def test_every_thing_has_one_owner_and_shares_are_even_and_of_whole_grains(things, owners, grain):
    shares = [even_share(things, owner, owners, grain) for owner in range(owners)]
    assert [begin for begin, _ in shares] == [0, *(end for _, end in shares[:-1])]
    assert shares[-1][1] == things
    assert all(begin % grain == 0 or begin == things for begin, _ in shares)
    sizes = [-(-(end - begin) // grain) for begin, end in shares]  # in grains
    assert max(sizes) - min(sizes) <= 1


@given(things=st.integers(0, 1 << 50), owners=OWNERS)
def test_without_grains_it_is_the_cut_that_everybody_wrote_before(things, owners):
    for owner in range(owners):
        assert even_share(things, owner, owners) == (things * owner // owners, things * (owner + 1) // owners)


@settings(deadline=None)  # the first call compiles
@given(things=st.integers(0, 5000), owners=OWNERS, grain=GRAINS)
def test_the_compiled_cut_is_the_same(things, owners, grain):
    for owner in range(owners):
        assert COMPILED(things, owner, owners, grain) == even_share(things, owner, owners, grain)

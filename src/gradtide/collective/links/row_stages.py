"""The same for the collectives of tensors with a row for each rank."""

from collections.abc import Iterable, Sequence

from gradtide.collective.host.extents import NOTHING, Adding, Base, Extent
from gradtide.collective.host.handing import CopiedRow, Entry, Hand, ShownRow, SummedRow, TakenRow, trade
from gradtide.collective.links import operations
from gradtide.collective.links.operations import shares
from gradtide.collective.links.parts import Awaited, Exchange, LinkPart
from gradtide.collective.links.place import RankPlace, Stages, chunks, meet, pipelined, row_of, widest
from gradtide.collective.links.stages import barrier

__all__ = ["all_gather", "all_to_all", "gather", "reduce_scatter", "scatter", "small_all_to_all"]

_ALIGN_BYTES = 64


def all_gather(place: RankPlace, row_bytes: int) -> Stages:
    """The tensor is this rank's row; the output has all."""
    own, blocks, me = Extent(Base.TENSOR, 0, row_bytes), place.blocks(Base.OUT, row_bytes), place.host
    if not place.even:
        return _all_gather_blocks(place, row_bytes)
    mine = [row_of(block, place.local, row_bytes) for block in blocks]
    if place.here == 1:
        return [operations.all_gather(me, own, mine)]
    parts = []
    for number, (begin, end) in enumerate(chunks(place, row_bytes, sum(place.counts))):
        rows = [row.part(begin, end) if g != me else own.part(begin, end) for g, row in enumerate(mine)]
        entries: list[Entry] = [ShownRow(g, row) for g, row in enumerate(rows)]
        entries.append(CopiedRow(rows[me], mine[me].part(begin, end)))
        for j in place.others_here():
            theirs = [row_of(block, j, row_bytes).part(begin, end) for block in blocks]
            entries += [TakenRow(j, g, 0, row) for g, row in enumerate(theirs)]
        exchange = operations.all_gather(me, rows[me], rows)
        after: Stages = [Hand(place.hosts, end - begin, entries)]
        parts.append((meet(place) if number == 0 else [], exchange, after))
    return pipelined(parts)


def _all_gather_blocks(place: RankPlace, row_bytes: int) -> Stages:
    """Where some ranks do not drive: each host's rows are brought together first, and drivers take shares of those."""
    own, blocks, me = Extent(Base.TENSOR, 0, row_bytes), place.blocks(Base.OUT, row_bytes), place.host
    stages, cut, block = Stages(), [shares(block, place.drivers) for block in blocks], own
    if place.here > 1:
        block = Extent(Base.SCRATCH, 0, blocks[me].size_bytes)
        entries: list[Entry] = [TakenRow(j, 0, 0, row_of(block, j, row_bytes)) for j in place.others_here()]
        entries += [ShownRow(0, own), CopiedRow(own, row_of(block, place.local, row_bytes))]
        stages.append(Hand(1, row_bytes, entries))
    if place.drives:
        share = shares(block, place.drivers)[place.local]
        rows = [share if g == me else parts[place.local] for g, parts in enumerate(cut)]
        stages.append(operations.all_gather(me, share, rows))
    entries = [CopiedRow(block, blocks[me])]
    for g in (g for g in range(place.hosts) if g != me):
        entries += [ShownRow(g, cut[g][place.local])] if place.drives else []
        entries += [TakenRow(j, g, 0, share) for j, share in enumerate(cut[g]) if j != place.local]
    return [*stages, Hand(place.hosts, max(widest(parts) for parts in cut), entries)]


def gather(place: RankPlace, row_bytes: int, root: tuple[int, int]) -> Stages:
    """The tensor is this rank's row; the root's output has all. Where every rank drives."""
    own, blocks, (home, local) = Extent(Base.TENSOR, 0, row_bytes), place.blocks(Base.OUT, row_bytes), root
    if place.host != home:
        leaving = [own if g == home else NOTHING for g in range(place.hosts)]
        return [*meet(place), operations.all_to_all(place.host, leaving, [NOTHING] * place.hosts)]
    is_root = place.local == local
    came = [row_of(block, place.local, row_bytes) for block in blocks]
    if not is_root:
        came = [Extent(Base.SCRATCH, g * row_bytes, row_bytes) for g in range(place.hosts)]
    arriving = [NOTHING if g == home else row for g, row in enumerate(came)]
    exchange = operations.all_to_all(place.host, [NOTHING] * place.hosts, arriving)
    entries: list[Entry] = [ShownRow(g, own if g == home else row) for g, row in enumerate(came)]
    if is_root:
        entries = [CopiedRow(own, came[home])]
        for j in place.others_here():
            entries += [TakenRow(j, g, 0, row_of(block, j, row_bytes)) for g, block in enumerate(blocks)]
    return [*meet(place), exchange, Hand(place.hosts, row_bytes, entries)]


def scatter(place: RankPlace, row_bytes: int, root: tuple[int, int]) -> Stages:
    """The root's tensor has a row for each rank, the output is this rank's. Where every rank drives."""
    out, blocks, (home, local) = Extent(Base.OUT, 0, row_bytes), place.blocks(Base.TENSOR, row_bytes), root
    if place.host != home:
        arriving = [out if g == home else NOTHING for g in range(place.hosts)]
        return [*meet(place), operations.all_to_all(place.host, [NOTHING] * place.hosts, arriving)]
    entries: list[Entry] = []
    leaving = [row_of(block, place.local, row_bytes) for block in blocks]
    if place.local == local:
        for g, block in enumerate(blocks):
            entries += [ShownRow(g * place.here + j, row_of(block, j, row_bytes)) for j in place.others_here()]
    else:
        leaving = [Extent(Base.SCRATCH, g * row_bytes, row_bytes) for g in range(place.hosts)]
        entries += [TakenRow(local, g * place.here + place.local, 0, row) for g, row in enumerate(leaving)]
    arriving = [out if g == home else NOTHING for g in range(place.hosts)]
    first = [Hand(sum(place.counts), row_bytes, entries)] if place.here > 1 else []
    return [*first, operations.all_to_all(place.host, leaving, arriving)]


def reduce_scatter(place: RankPlace, row_bytes: int, inside: Adding, between: Adding) -> Stages:
    """The tensor has a row for each rank, the output is this rank's."""
    out, blocks = Extent(Base.OUT, 0, row_bytes), place.blocks(Base.TENSOR, row_bytes)
    if place.here == 1:
        return [operations.reduce_scatter(place.host, blocks, out, between)]
    if not place.even:
        return _reduce_scatter_blocks(place, row_bytes, inside, between)
    parts = []
    for number, (begin, end) in enumerate(found := chunks(place, row_bytes, sum(place.counts))):
        cut = [[row_of(block, j, row_bytes).part(begin, end) for j in range(place.here)] for block in blocks]
        adding, sums = _add_up_rows(place, cut, number % 2 * place.hosts * found[0][1], inside)
        parts.append(
            (Stages([adding]), operations.reduce_scatter(place.host, sums, out.part(begin, end), between), Stages())
        )
    return pipelined(parts)


def _reduce_scatter_blocks(place: RankPlace, row_bytes: int, inside: Adding, between: Adding) -> Stages:
    """Where some ranks do not drive: drivers take shares of each host's rows, which are handed out at the end."""
    blocks = place.blocks(Base.TENSOR, row_bytes)
    cut = [shares(block, place.drivers) for block in blocks]
    adding, sums = _add_up_rows(place, cut, 0, inside)
    stages, last, mine = Stages([adding]), list[Entry](), NOTHING
    if place.drives:
        mine = sums[place.host]
        stages.append(operations.reduce_scatter(place.host, sums, mine, between))
        last.append(ShownRow(0, mine))
    row = row_of(blocks[place.host], place.local, row_bytes)
    return [*stages, Hand(1, widest(cut[place.host]), [*last, *_take_row(place, cut[place.host], row, mine)])]


def _add_up_rows(
    place: RankPlace, cut: Sequence[Sequence[Extent]], begin: int, inside: Adding
) -> tuple[Hand, list[Extent]]:
    """Each driver's part of each host's rows, added up; and where in scratch memory they are then."""
    entries, sums = list[Entry](), list[Extent]()
    for g, parts in enumerate(cut):
        entries += [ShownRow(g * place.drivers + j, part) for j, part in enumerate(parts) if j != place.local]
        if place.drives:
            sums.append(Extent(Base.SCRATCH, begin, parts[place.local].size_bytes))
            entries.append(SummedRow(g * place.drivers + place.local, parts[place.local], sums[g]))
            begin += -(-sums[g].size_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
    return Hand(place.drivers * place.hosts, max(widest(parts) for parts in cut), entries, inside), sums


def _take_row(place: RankPlace, cut: Sequence[Extent], row: Extent, mine: Extent) -> Iterable[Entry]:
    """What lies of a row in each driver's share of its host's block. mine: where this driver has its share."""
    for j, share in enumerate(cut):
        begin = max(row.offset, share.offset)
        end = min(row.offset + row.size_bytes, share.offset + share.size_bytes)
        if end > begin:
            to = Extent(Base.OUT, begin - row.offset, end - begin)
            skip = begin - share.offset
            yield CopiedRow(mine.part(skip, skip + end - begin), to) if j == place.local else TakenRow(j, 0, skip, to)


def small_all_to_all(place: RankPlace, row_bytes: int) -> Stages:
    """From each rank to each, a row, by way of the rails: what ranks of a host have for a rank of another goes to the
    one of its number here, and with that one's over its rail. It is one exchange, but all of it goes through the slots.
    Where every rank drives."""
    blocks, size_bytes, entries = place.blocks(Base.TENSOR, row_bytes), place.here * row_bytes, list[Entry]()
    gathered = [Extent(Base.SCRATCH, g * size_bytes, size_bytes) for g in range(place.hosts)]
    for g, (block, rows) in enumerate(zip(blocks, gathered, strict=True)):
        own = row_of(block, place.local, row_bytes), row_of(rows, place.local, row_bytes)
        entries.append(CopiedRow(*own))
        for j in place.others_here():
            entries.append(ShownRow(g * place.here + j, row_of(block, j, row_bytes)))
            entries.append(TakenRow(j, g * place.here + place.local, 0, row_of(rows, j, row_bytes)))
    exchange = operations.all_to_all(place.host, gathered, place.blocks(Base.OUT, row_bytes))
    return [Hand(sum(place.counts), row_bytes, entries), exchange]


def all_to_all(
    place: RankPlace, leaving: Sequence[Extent], arriving: Sequence[Extent], here: Sequence[int], row_bytes: int
) -> Stages:
    """From each rank to each, in rank order: straight from one to the other. All have agreed on the sizes, or they are
    part of the signature. here: the ranks of this host; row_bytes: the most that goes between any two of them.

    Where hosts have several ranks, they all agree first on the rails: links between others are not cleaned up."""
    rank = here[place.local]
    if place.even and place.here == 1:
        return [operations.all_to_all(rank, leaving, arriving)]
    entries = trade(here, place.local, leaving, arriving)
    away = [other for other in range(len(leaving)) if other not in here]
    parts = [LinkPart(first=leaving[other], arriving=arriving[other]) for other in away]
    far = Exchange(0, parts, mesh=True, overlaps=True)
    return [*barrier(place), far, Hand(place.here, row_bytes, entries), Awaited()]

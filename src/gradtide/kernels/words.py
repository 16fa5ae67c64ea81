"""Where kernels and Python put the numbers that they tell each other, all of them int64. numba takes the fields of a
global named tuple for constants."""

from typing import NamedTuple

__all__ = [
    "BROKEN",
    "BUFFERS",
    "DONE",
    "LINE_BYTES",
    "MISMATCHED",
    "WAITING",
    "Deal",
    "ExchangePlan",
    "HandEntry",
    "HandKind",
    "HandPlan",
    "Head",
    "Line",
    "LinkRow",
    "Me",
    "Op",
    "Piece",
    "Plan",
    "Row",
    "Stream",
    "Transfer",
]

LINE_BYTES = 128  # two cache lines: prefetchers fetch them in pairs
BUFFERS = 4  # of a rank's slots; three are needed, see docs/collectives.md; a power of two is quicker
DONE, WAITING, MISMATCHED, BROKEN = 0, 1, 2, 3


class _Ops(NamedTuple):
    """What a reduction computes, as kernels know it."""

    SUM: int = 0
    MEAN: int = 1
    MIN: int = 2
    MAX: int = 3
    PRODUCT: int = 4
    BAND: int = 5
    BOR: int = 6
    BXOR: int = 7


class _CounterLine(NamedTuple):
    """A counter in shared memory: its value, which only its owner raises, and what its owner says at a meeting."""

    VALUE: int = 0
    WATCHED: int = 1  # whether somebody sleeps on it
    SIGNATURE: int = 2  # from here on each has BUFFERS words, one a buffer
    SEGMENT: int = 2 + BUFFERS
    OFFSET: int = 2 + 2 * BUFFERS
    CORE: int = 2 + 3 * BUFFERS  # where its owner ran when it raised it
    WORDS: int = 3 + 3 * BUFFERS


class _Me(NamedTuple):
    """The block that says who calls a kernel and how far it is."""

    COUNTERS: int = 0  # address of the counters
    RANK: int = 1
    SIZE: int = 2
    SEQUENCE: int = 3  # of the last meeting
    SPINS: int = 4
    YIELDS: int = 5
    SLOTS: int = 6  # address of the slots
    SLOT_BYTES: int = 7
    PIECE: int = 8  # where to resume
    PHASE: int = 9
    SPLIT_BYTES: int = 10  # pieces from this size on are split between the ranks
    PIECE_BYTES: int = 11
    AWAITED: int = 12  # the value that the counters are waited for to reach
    SEGMENTS: int = 13  # address of the rows of shared memory
    ROWS: int = 14  # how many there are
    IN_PLACE_BYTES: int = 15  # tensors in shared memory are reduced where they lie from this size on
    BEARS: int = 16  # until this meeting, to share a core with who is awaited
    SOURCES: int = 17  # from here on: one address a rank


class _Row(NamedTuple):
    """One memory that all ranks have mapped, with a part for each."""

    BEGIN: int = 0  # of this rank's part
    END: int = 1  # 0 when the row is free
    NUMBER: int = 2  # what all ranks call it
    FIRST: int = 3  # where rank 0's part begins
    PART_BYTES: int = 4
    WORDS: int = 5


class _Plan(NamedTuple):
    """What is the same at every all-reduce of one shape, type and reduction."""

    ME: int = 0
    COUNT: int = 1  # of elements
    ITEM: int = 2  # bytes of one
    SIGNATURE: int = 3
    COMBINE: int = 4  # address of the block that adds a rank
    LAST: int = 5  # of the one that adds the last rank
    WORDS: int = 6


class _HandKinds(NamedTuple):
    """What an entry of a hand plan is for."""

    SHOW: int = 0  # FROM is put into a row of this rank's slot
    SUM: int = 1  # a row of all ranks is added up, in rank order; this rank's own is at FROM
    TAKE: int = 2  # from a row of SOURCE's slot
    COPY: int = 3  # from this rank's own memory


class _HandEntry(NamedTuple):
    """One thing that a rank does when the ranks of a host hand each other what they have."""

    KIND: int = 0
    SOURCE: int = 1
    ROW: int = 2
    SKIP: int = 3  # where in the row it begins
    FROM_BASE: int = 4  # what the offset counts from: 1 the tensor, 2 the output, 3 the scratch memory
    FROM: int = 5
    TO_BASE: int = 6
    TO: int = 7
    BYTES: int = 8
    WORDS: int = 9


class _HandPlan(NamedTuple):
    """What ranks of a host hand each other, as one of them sees it."""

    ME: int = 0
    SIGNATURE: int = 1
    PIECES: int = 2  # one at least; as many on every rank
    PIECE_BYTES: int = 3  # of each row
    ENTRIES: int = 4  # how many
    COMBINE: int = 5  # address of the block that adds a rank
    LAST: int = 6  # of the one that adds the last rank
    ITEM: int = 7
    FIRST: int = 8  # from here on: the entries
    WORDS: int = 8


class _Head(NamedTuple):
    """What goes first on a link between hosts, at every operation."""

    SEQUENCE: int = 0  # of the operation on these links
    SIGNATURE: int = 1  # of what is asked for
    FIRST_BYTES: int = 2  # that follow in any case
    WORDS: int = 3


class _Deal(NamedTuple):
    """One exchange between hosts, or the stripe of it that goes over one flow, and how far it is."""

    LINKS: int = 0  # how many
    ROWS: int = 1  # address of a row for each link
    POLLS: int = 2  # address of a pollfd for each link
    ME: int = 3  # this host's number
    MINE: int = 4  # address of this host's share of the result
    MINE_BYTES: int = 5
    OWN: int = 6  # address of this host's contribution to it
    READY: int = 7  # bytes of the share that are
    COMBINE: int = 8  # address of the block that adds a host; 0 if nothing is added up
    LAST: int = 9  # of the one that adds the last host
    ITEM: int = 10  # bytes of an element
    DIVISOR: int = 11
    FOLLOWS: int = 12  # 1 + the link whose first part is this host's share; 0 if none
    OVERWRITES: int = 13  # whether the result goes where first parts leave from
    COPIES: int = 14  # whether this host's share is its contribution as it is
    HEARD: int = 15  # heads that are here
    REFUSED: int = 16  # and ask for something else
    MOVED: int = 17  # bytes, for who asks whether it goes on
    BROKEN_LINK: int = 18
    ERROR: int = 19  # its number
    STAGE_BYTES: int = 20  # of a link's stage
    GRAIN_BYTES: int = 21  # less is not worth adding up yet
    MOST_BYTES: int = 22  # one way, before the other has its turn
    SLEEP_MS: int = 23
    TURN_NS: int = 24  # after which Python looks around
    NEXT: int = 25  # address of the same of the next flow; 0 if this is the last
    WORDS: int = 26


class _ExchangePlan(NamedTuple):
    """What is the same at every exchange of one kind and size, as it is before addresses are known."""

    DEAL: int = 0  # address of the words that an exchange works on
    COUNT: int = 1  # of those words
    SEQUENCE: int = 2  # address of how many there were
    SIGNATURE: int = 3
    TENSOR_AT: int = 4  # address of the places of words that the tensor's address is added to
    TENSOR_COUNT: int = 5
    OUT_AT: int = 6  # and of those that the output's is
    OUT_COUNT: int = 7
    SCRATCH_AT: int = 8  # and of those that the scratch memory's is
    SCRATCH_COUNT: int = 9
    TEMPLATE: int = 10  # from here on: the words as they begin
    WORDS: int = 10


class _LinkRow(NamedTuple):
    """One link in an exchange."""

    DESCRIPTOR: int = 0
    HEAD: int = 1  # address of what we ask for
    HEARD: int = 2  # address of the room for what the other end asks for
    STAGE: int = 3  # address of the room for what is to be added up
    FIRST: int = 4  # address of the first part that leaves
    FIRST_BYTES: int = 5
    SECOND_BYTES: int = 6  # of this host's share, that leave when they are ready
    ARRIVING: int = 7  # address of where the other end's first part goes; 0: through the stage
    ARRIVING_BYTES: int = 8
    RESULT: int = 9  # address of where its share goes
    RESULT_BYTES: int = 10
    SENT: int = 11  # bytes, from the head on
    RECEIVED: int = 12
    IS_FULL: int = 13  # whether the kernel takes no more just now
    DIFFERS: int = 14  # whether it asks for something else
    WORDS: int = 15


class _Transfer(NamedTuple):
    """What moves over sockets in one go: several streams, each one way, and how far they are."""

    STREAMS: int = 0  # how many
    ROWS: int = 1  # address of a row for each stream
    POLLS: int = 2  # address of a pollfd for each stream
    AWAITED: int = 3  # the stream that is waited for; -1: all that leave must have left
    UNTIL: int = 4  # how many of its pieces must be over
    SLEEP_MS: int = 5
    TURN_NS: int = 6  # after which Python looks around
    STAGE_BYTES: int = 7  # of a stream's stage
    MOVED: int = 8  # bytes, for who asks whether it goes on
    BROKEN_STREAM: int = 9
    ERROR: int = 10  # its number
    WORDS: int = 11


class _Stream(NamedTuple):
    """One direction of a socket: pieces of memory that leave or arrive one after the other."""

    DESCRIPTOR: int = 0
    LEAVES: int = 1  # whether they do, or else arrive
    PIECES: int = 2  # address of the pieces
    COUNT: int = 3  # how many there are
    OVER: int = 4  # and how many have left or arrived
    MOVED: int = 5  # bytes of the next one
    STAGE: int = 6  # address of the room for what is to be added up
    STAGED: int = 7  # bytes in it
    WORDS: int = 8


class _Piece(NamedTuple):
    """Where bytes leave from or arrive."""

    ADDRESS: int = 0
    SIZE_BYTES: int = 1
    COMBINE: int = 2  # address of the block that adds what arrives to what is there; 0: it takes its place
    ITEM: int = 3  # bytes of an element, as that block knows it
    WORDS: int = 4


Op, Line, Me, Row, Plan = _Ops(), _CounterLine(), _Me(), _Row(), _Plan()
HandKind, HandEntry, HandPlan = _HandKinds(), _HandEntry(), _HandPlan()
Head, Deal, LinkRow, ExchangePlan = _Head(), _Deal(), _LinkRow(), _ExchangePlan()
Transfer, Stream, Piece = _Transfer(), _Stream(), _Piece()

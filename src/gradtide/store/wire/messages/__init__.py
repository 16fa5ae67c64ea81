"""Every message of the store: requests, replies, and what the coordinator says.

A message is a small tagged msgspec struct; tensors are never inside one. A message that has a payload is followed by
raw bytes, laid end to end in the order of its layout:

    Init          the pieces of `parts`, in order
    Push          the pieces of the layout, in order
    Pulled        the pieces of the one part of the layout whose shard it answers, in order
    Pushed        the same when the push said `pull`, else nothing
    Replicate     the values of `slots`, in order
    Snapshot      the same

`Piece.size_bytes` gives each length, so a shell can sendmsg from and recv_into the tensors' own memory; how the bytes
are cut into frames (at most one block each) is the transport's affair.

A **layout** says which pieces of which keys one request holds, shard by shard, for one server. Its name is a digest of
its contents (`layout_name`), so every client that moves the same keys shares one entry of the server's cache. `parts`
travels until the server has answered once, and again when it answers `Refused("layout")`.

Numbers: `epoch` is the table's; a request of another epoch than the server's is refused. `sequence` counts a client's
requests, over all shards, from 1. `after` lists for each part the latest earlier push of this client to that shard
that is still unanswered (0 for none; empty when all are 0): a shard that has not seen it refuses with "early", so no
reordering below can turn around what a client said. `round` counts steps from 1; 0 means outside of rounds.

parts.py     what messages are made of: keys, their pieces, and the layout of a request
requests.py  between clients and servers
members.py   with the coordinator, and for who looks from outside
replicas.py  between servers
"""

import msgspec

from gradtide import errors
from gradtide.store.wire.messages.members import (
    Absent,
    Beat,
    CaughtUp,
    Decree,
    Elsewhere,
    Gone,
    Happened,
    Health,
    Inspect,
    Inspected,
    Join,
    Lagging,
    Leave,
    Member,
    OpenRound,
    PeerState,
    Promise,
    Propose,
    Resize,
    Resized,
    Rival,
    ServerEntry,
    Source,
    Table,
    Welcome,
    new_token,
    too_few_servers,
)
from gradtide.store.wire.messages.parts import (
    NO_WORKER,
    Argument,
    KeySpec,
    Part,
    Piece,
    Slot,
    UpdateRule,
    Version,
    layout_name,
)
from gradtide.store.wire.messages.replicas import (
    BlockImage,
    Came,
    Configured,
    Created,
    Fenced,
    RecordImage,
    Replicate,
    Replicated,
    RoundsClosed,
    Settled,
    Snapshot,
    Step,
    Updated,
)
from gradtide.store.wire.messages.requests import (
    RETRYABLE,
    BeginCut,
    CollectCut,
    Configure,
    CutBegun,
    CutWritten,
    Init,
    Initialised,
    KeyInfo,
    Keys,
    Listed,
    Noted,
    Pull,
    Pulled,
    Push,
    Pushed,
    Reason,
    Refused,
)

__all__ = [
    "NO_WORKER", "RETRYABLE", "Absent", "Argument", "Beat", "BeginCut", "BlockImage", "Came", "CaughtUp", "CollectCut",
    "Configure", "Configured", "Created", "CutBegun", "CutWritten", "Decree", "Elsewhere", "Fenced", "Gone",
    "Happened", "Health", "Init", "Initialised", "Inspect", "Inspected", "Join", "KeyInfo", "KeySpec", "Keys",
    "Lagging", "Leave", "Listed",
    "Member", "Message", "Noted", "OpenRound", "Part", "PeerState", "Piece", "Promise", "Propose", "Pull", "Pulled",
    "Push", "Pushed", "Question", "Reason", "RecordImage", "Refused", "Replicate", "Replicated", "Reply", "Request",
    "Resize", "Resized", "Rival", "RoundsClosed", "ServerEntry", "ServerMessage", "Settled", "Slot", "Snapshot",
    "Source", "Step", "Table", "UpdateRule", "Updated", "Version", "Welcome", "decode", "decode_from", "encode",
    "find_request", "layout_name", "new_token", "too_few_servers",
]  # fmt: skip

Request = Init | Push | Pull | Configure | Keys
Question = BeginCut | CollectCut
Reply = Initialised | Pushed | Pulled | Noted | Refused | Listed | CutBegun | CutWritten
ServerMessage = Replicate | Replicated | Snapshot | Fenced
Message = (
    Init | Push | Pull | Configure | Keys | Initialised | Pushed | Pulled | Noted | Refused | Listed
    | Join | Leave | Beat | Welcome | Table | Propose | Promise | Decree | Gone | CaughtUp | Lagging
    | Replicate | Replicated | Snapshot | Fenced | Inspect | Inspected | Health | Resize | Resized
    | Elsewhere
    | BeginCut | CollectCut | CutBegun | CutWritten
)  # fmt: skip

_REQUEST_TAGS = tuple(kind.__struct_config__.tag for kind in (Init, Push, Pull, Configure, Keys, BeginCut, CollectCut))
_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)  # the last: lists in lists in lists
_HEAD = 5  # tag, epoch, client, incarnation, sequence
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The message as MessagePack, without its payload."""
    return _encoder.encode(message)


def decode(data: bytes | bytearray | memoryview) -> Message:
    """The message in `data`; raises msgspec.DecodeError or ValidationError when it is none."""
    return _decoder.decode(data)


def decode_from(sender: str, data: memoryview) -> Message:
    """The same, of what came over a wire; raises FrameError, with who sent it, when it is none."""
    try:
        return _decoder.decode(data)
    except _UNREADABLE:
        raise errors.FrameError(f"{sender} sent something that is no message of the store") from None


def find_request(data: memoryview) -> tuple[str, int, str] | None:
    """Of something that is nearly a request: whose, its sequence, and what is wrong with it; None: it is no such."""
    try:
        _decoder.decode(data)
        return None
    except _UNREADABLE as error:
        why = str(error)
    try:
        raw = msgspec.msgpack.decode(data)
    except _UNREADABLE:
        return None
    if not isinstance(raw, list) or len(raw) < _HEAD or raw[0] not in _REQUEST_TAGS:
        return None
    client, sequence = raw[2], raw[4]
    return (client, sequence, why) if isinstance(client, str) and type(sequence) is int else None

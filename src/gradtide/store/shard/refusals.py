"""What a shard says when it says no: one line each, who, what was expected, what to do."""

from gradtide.store.wire.messages import Configure, KeySpec, Member, Piece, Push, Reason, UpdateRule

__all__ = [
    "REMEMBERED",
    "TEXTS",
    "Refusal",
    "ahead",
    "beyond_block",
    "change_too_late",
    "change_without_rounds",
    "compressed_push_pull",
    "differs",
    "not_a_number",
    "not_encoded",
    "not_member",
    "other_values",
    "stale",
    "unknown_key",
    "wrong_size",
]

# A final no to a push is remembered like any other answer; the others may turn into a yes.
REMEMBERED: frozenset[Reason] = frozenset({"unknown_key", "mismatch", "not_member", "stale", "nan", "rule"})

TEXTS: dict[Reason, str] = {
    "early": "an earlier push of this client, or the decree it knows, has not arrived here yet",
    "forgotten": "this push is too old to tell whether it was applied; resend within the window",
    "incarnation": "this client has been started again, or was not heard of for long; connect again",
}


class Refusal(Exception):
    """The shard says no, and has changed nothing."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason: Reason = reason
        self.text = text


def unknown_key(key: str, client: str) -> Refusal:
    return Refusal("unknown_key", f"{client} asks for {key!r}, which nobody has initialised; call init first")


def wrong_size(piece: Piece, elements: int, client: str) -> Refusal:
    return Refusal(
        "mismatch",
        f"{client} pushes {piece.count} elements from {piece.start} of block {piece.block} of {piece.key!r}, which has "
        f"{elements}; push whole keys of the shape they were initialised with",
    )


def beyond_block(piece: Piece, elements: int, client: str) -> Refusal:
    return Refusal(
        "mismatch",
        f"{client} asks for elements {piece.start} to {piece.start + piece.count} of block {piece.block} of "
        f"{piece.key!r}, which has {elements}; ask within the key's shape",
    )


def not_a_number(key: str, client: str) -> Refusal:
    return Refusal("nan", f"{client} pushes NaN to {key!r}, which rejects it; nothing changed: skip this step")


def not_encoded(piece: Piece, client: str) -> Refusal:
    return Refusal("whole", f"{client} asks for a round of {piece.key!r} that is not kept encoded; pull it whole")


def compressed_push_pull(key: str, client: str) -> Refusal:
    return Refusal("rule", f"{client} pushes to {key!r} and pulls it in one request, but it is compressed; pull later")


def not_member(client: str, worker: int) -> Refusal:
    return Refusal(
        "not_member",
        f"{client} is not in the rounds as worker {worker}, so this did not count; connect with worker=; one that was "
        "struck off, because it was not heard of for too long, is in again from the next round that store.step names",
    )


def stale(key: str, closed: int, request: Push, member: Member) -> Refusal:
    return Refusal(
        "stale",
        f"worker {request.worker} pushed round {request.round} of {key!r}, but round {closed} is closed and it is in "
        f"the rounds from {member.from_round} on; pull, then push the next step",
    )


def ahead(key: str, closed: int, request: Push) -> Refusal:
    return Refusal(
        "busy",
        f"worker {request.worker} is at round {request.round} of {key!r}, and round {closed} is the last closed; "
        "pull before each step",
    )


def change_without_rounds(key: str) -> Refusal:
    return Refusal("rule", f"{key!r} is async and has no rounds; configure it without from_round")


def change_too_late(closed: int, request: Configure) -> Refusal:
    return Refusal(
        "stale",
        f"{request.client} changes {request.key!r} from round {request.from_round} on, but round {closed} is closed; "
        "name a later one",
    )


def other_values(key: str, client: str) -> Refusal:
    return Refusal(
        "mismatch",
        f"{client} initialises {key!r} with other values than it was first initialised with; seed all workers alike, "
        "or let one of them initialise",
    )


def differs(known: KeySpec, asked: KeySpec, client: str) -> Refusal:
    """Names the first field in which two specs of a key differ."""
    name = next(name for name in KeySpec.__struct_fields__ if getattr(known, name) != getattr(asked, name))
    first, now = _show(getattr(known, name)), _show(getattr(asked, name))
    return Refusal(
        "mismatch",
        f"{client} initialises {known.key!r} with {name} {now}, but it was first initialised with {first}; "
        "make them equal",
    )


def _show(value: object) -> str:
    if not isinstance(value, UpdateRule):
        return str(value)
    arguments = ", ".join(f"{name}={value!r}" for name, value in value.arguments.items())
    return f"{value.name}({arguments}) of the {value.reduce}"

"""Jobs whose workers die, come and go at drawn moments: what they are made of, and what each of them promises.

`draw(number)` gives a case for `job_script.py`, with the options of `gradtide run`. One worker lives on.
"""

import random
import re
from dataclasses import dataclass

from job_script import PER_EPOCH, PER_STEP

WAYS = ("shared", "copies", "auto", "codec", "bsp", "bsp that averages", "bounded:1", "local", "local over servers")
WEIGHTS = (3, 3, 2, 2, 3, 1, 1, 2, 1)
TOGETHER = ("shared", "copies", "auto", "codec")  # by collectives: what is lost with a worker comes again
EXACT_CODECS, CODECS = ("topk:1",), ("fp16", "bf16", "int8", "topk:0.3", "powersgd:1")
SERVED_CODECS = ("fp16", "int8", "topk:0.3", "onebit")
LAST = 11  # of 14 batches: who is started again later may find the others at the end


def over_servers(case):
    return "servers" in case["way"] or case["way"].startswith(("bsp", "bounded", "async"))


def draw(number):
    of = random.Random(number)
    way = of.choices(WAYS, WEIGHTS)[0]
    case = {"number": number, "way": way, "program": _program(of, way), "workers": of.choice([2, 3, 3])}
    if way.startswith("local"):
        outer = of.choice([None, None, {"lr": 0.7, "momentum": 0.9, "nesterov": True}])
        case["local"] = {"every": of.choice([1, 2, 4]), **({"outer": outer} if outer else {})}
        if way == "local" and of.random() < 0.3:
            case["local"]["after"] = of.choice([2, 5])
    again = case["workers"] == 2 or of.random() < 0.6
    if of.random() < 0.25:
        _scaled(of, case, again)
    else:
        _mortal(of, case, again)
    if over_servers(case):
        _over_servers(of, case)
    return case


def _over_servers(of, case):
    program = case["program"]
    if case["way"] != "bsp that averages" and of.random() < 0.7:
        program.pop("edits", None)  # which are refused
    if case["way"] == "bounded:1" and of.random() < 0.3:
        case["way"] = "async"
    if of.random() < 0.25:
        program["compress"] = of.choice([*EXACT_CODECS, *SERVED_CODECS])
        if program["compress"] == "onebit" and program["optimizer"].startswith("adam"):
            program["optimizer"] = "momentum"


def _program(of, way):
    program = {
        "optimizer": of.choice(["sgd", "momentum", "adam", "adamw"]),
        "loader": of.choice(["list", "dataset", "shuffled"]),
        "buffer": of.random() < 0.3,
        "evaluates": of.random() < 0.5,
        "saves": of.random() < 0.4,
        "edits": of.random() < 0.1,
        "autocast": of.random() < 0.2,
    }
    if of.random() < 0.5:
        program["schedule"] = of.choice([*PER_STEP, *PER_EPOCH])
    if of.random() < (0.4 if way in TOGETHER or way == "local" else 0.05):
        program["accumulates"] = of.choice([2, 3])
    if way in ("copies", "auto") and of.random() < 0.15:
        program["clip_norm"] = 0.05
    if way in TOGETHER and of.random() < 0.2:
        program["balance"] = True
    if way == "codec":
        program["compress"] = of.choice([*EXACT_CODECS * 3, *CODECS])
    if program.get("schedule") == "OneCycleLR" and program["optimizer"] == "sgd":  # it turns momentum
        program["optimizer"] = "momentum"
    return {name: value for name, value in program.items() if value}


def _mortal(of, case, again):
    """Some die, again and again where they are started again."""
    workers, survivor = case["workers"], of.randrange(case["workers"])
    mortal = of.sample([worker for worker in range(workers) if worker != survivor], workers - 1)
    times = [of.randint(1, 2), of.choice([0, 0, 1, 2])] if again else [1]
    case["deaths"] = [
        f"{worker}:{incarnation}:{_moment(of, case, incarnation)}"
        for worker, count in zip(mortal, times, strict=False)
        for incarnation in range(count)
    ]
    case["left"] = [worker for worker in range(workers) if again or worker != mortal[0]]
    case["options"] = ["--max-restarts", "6"] if again else ["--min-workers", str(workers - 1)]


def _scaled(of, case, again):
    """Worker 0 asks for others, or for fewer, and somebody dies about then."""
    workers = case["workers"]
    to = workers + 1 if of.random() < 0.6 else workers - 1
    at = of.randint(1, 7)
    case["scale"] = [f"0:0:end {at}:{to}"]
    mortal = of.choice(range(1, max(workers, to)))
    if mortal < workers:
        near = f"{of.choice(_places(case))} {at + of.randint(0, 2)}"
        case["deaths"] = [f"{mortal}:0:{near}"]
    else:
        case["deaths"] = [f"{mortal}:0:{_moment(of, case, 1)}"]
    case["left"] = None  # who is to go may have died, and another goes
    case["options"] = ["--max-workers", str(workers + 1), "--min-workers", "1"]
    case["options"] += ["--max-restarts", "6"] if again else []


def _places(case):
    """Of a moment in each batch."""
    return ["forward", "loss", "backward", "end"] + (["step"] if "accumulates" not in case["program"] else [])


def _moment(of, case, incarnation):
    if of.random() < (0.4 if incarnation else 0.12):
        return of.choice(["before", "wrapped"])
    program, rare = case["program"], ["inside", "epoch"]
    rare += ["evaluate"] if "evaluates" in program else []
    rare += ["save"] if "saves" in program else []
    rare += ["edit"] if "edits" in program else []
    if not incarnation and of.random() < 0.35:
        name = of.choice(rare)
        return f"{name} {of.randint(1, 9) if name == 'inside' else 1}"
    place = of.choice([*_places(case), "step"])
    last = 3 if incarnation else LAST
    if place == "step":
        last = max(1, last // program.get("accumulates", 1))
    return f"{place} {of.randint(1, last)}"


# --- what is promised ---


def is_exact(case):
    """What docs promise to be what one process gives, whoever dies."""
    if case["way"] == "codec":
        return case["program"]["compress"] in EXACT_CODECS
    return case["way"] in TOGETHER


def is_exact_on_what_was_given(case):
    """Over servers a batch that a worker did not live to finish counts without its samples."""
    exact = case["program"].get("compress") in (None, *EXACT_CODECS)
    return case["way"] in ("bsp", "bsp that averages") and exact


def is_alike(case):
    """Whether all who are left have the same values, bit for bit."""
    return case["way"] not in ("bounded:1", "async")


@dataclass(frozen=True)
class Reason:
    """A refusal that a job may end with."""

    name: str
    pattern: str
    deserved: object  # of the case


REASONS = (
    Reason(
        "an edit between the batches of a step",
        "between the batches of a step",
        lambda case: {"edits", "accumulates"} <= {*case["program"]},
    ),
    Reason(
        "an edit of the base that servers hold",
        "the servers hold the base",
        lambda case: case["way"] == "local over servers" and "edits" in case["program"],
    ),
    Reason(
        "a step over several batches, over servers",
        "each batch of gradtide.shard must be a",
        lambda case: over_servers(case) and "accumulates" in case["program"],
    ),
    Reason(
        "an order that workers over servers can't agree on",
        "shuffl",
        lambda case: over_servers(case) and case["program"].get("loader") == "shuffled",
    ),
    Reason(
        "an edit of what servers hold",
        "the servers hold the (parameters and step them|base that all workers begin each window with)",
        lambda case: over_servers(case) and case["way"] != "bsp that averages" and "edits" in case["program"],
    ),
)


def reason_of(case, output):
    for reason in REASONS:
        if re.search(reason.pattern, output) and reason.deserved(case):
            return reason.name
    return None


# --- what was drawn ---

WORDS = {
    **{way: lambda case, way=way: case["way"] == way for way in (*WAYS, "async")},
    **{
        name: lambda case, name=name: name in case["program"]
        for name in (
            *("accumulates", "balance", "clip_norm", "compress"),
            *("autocast", "buffer", "evaluates", "saves", "edits"),
        )
    },
    "schedule per step": lambda case: case["program"].get("schedule") in PER_STEP,
    "schedule per epoch": lambda case: case["program"].get("schedule") in PER_EPOCH,
    "scale with a kill": lambda case: "scale" in case,
    "rank 0 dies": lambda case: any(death.startswith("0:") for death in case["deaths"]),
    "twice in a row": lambda case: any(":1:" in death for death in case["deaths"]),
    **{
        f"dies at {place}": lambda case, place=place: any(f":{place}" in death for death in case["deaths"])
        for place in (
            *("before", "wrapped", "forward", "loss", "backward", "step", "inside", "end"),
            *("evaluate", "save", "edit", "epoch"),
        )
    },
    "2 workers": lambda case: case["workers"] == 2,
    "3 workers": lambda case: case["workers"] == 3,
}


def words_of(case):
    return [word for word, has in WORDS.items() if has(case)]

"""The head of a job on several machines, as a process: head_program.py JSON, with the secret on standard input.

JSON: host, nodes (names, or how many), workers, needed (or null), restarts, script, arguments.
"""

import json
import sys

from gradtide.launch.head import Head
from gradtide.launch.spec import Spec
from gradtide.launch.target import Target
from gradtide.transport.authenticate import Address
from gradtide.transport.keys import Credentials, parse_keys

asked = json.loads(sys.argv[1])
credentials = Credentials(parse_keys("standard input", sys.stdin.buffer.readline()))
spec = Spec(
    target=Target(asked["script"], tuple(asked["arguments"])),
    workers=asked["workers"],
    min_workers=asked.get("needed"),
    max_restarts=asked.get("restarts", 0),
    preload=asked.get("preload", ""),
)
with Head(spec, listen=Address(host=asked["host"]), credentials=credentials) as head:
    print(head.address, flush=True)
    head.expect(asked["nodes"])
    code = head.run({})
sys.exit(code)

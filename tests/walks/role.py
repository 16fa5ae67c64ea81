"""A server or coordinator whose walk is recorded: role.py FOLDER ROLE-AS-JSON."""

import sys
from pathlib import Path

import msgspec
import torch._dynamo  # noqa: F401 (which optimizers import: slow with a hook)
from recorder import Recorder

from gradtide.store.local.roles import Role, run_role

role = msgspec.json.decode(sys.argv[2], type=Role)
recorder = Recorder(Path(sys.argv[1]), role.name)
recorder.install()
run_role(role, tell=lambda address: print("listening", flush=True))
recorder.write()

"""A client that pushes once while everything is recorded."""

import json
import time
from pathlib import Path

import torch
from recorder import Recorder

import gradtide


def push_once(folder: Path, address: str) -> None:
    recorder = Recorder(folder, "client")
    recorder.install()
    with gradtide.connect(address) as store:
        store.init("w", torch.zeros(8), update=gradtide.update("sgd", lr=0.1))
        replicated = False
        while not replicated:  # until all connections are open, and the replica has caught up
            handle = store.push("w", torch.ones(8))
            handle.wait()
            replicated = handle.report.replicated
            time.sleep(0.0 if replicated else 0.05)  # it takes a lease's time: leave the processor to the servers
        for server in store.info("w").servers:
            recorder.wait_for_turns(folder, server)
        recorder.flag[0] = 1
        store.push("w", torch.ones(8), wait=True)
        recorder.flag[0] = 0
        primary = store.info("w").servers[0]
    recorder.write()
    (folder / "primary").write_text(json.dumps(primary))

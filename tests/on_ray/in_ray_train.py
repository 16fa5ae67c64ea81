"""A driver of Ray Train: in_ray_train.py ADDRESS FOLDER SERVERS KILL. Its last line says how far the workers' model is
from one process's after 50 steps, and what Ray knows. KILL: worker 1 dies once, in the middle of step 25."""

import json
import os
import signal
import sys
from pathlib import Path

import ray
import ray.train
import torch
from ray.train.torch import TorchTrainer

import gradtide
import gradtide.ray


def train(sync, checkpoints=None, emit=lambda event: None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
    inputs = torch.randn(400, 20, dtype=torch.float64)
    gradtide.fit(
        model, (inputs, inputs.sum(1, keepdim=True)), loss="mse", optimizer="Adam", lr=0.01, batch_size=40, epochs=5,
        sync=sync, seed=3, checkpoints=checkpoints, emit=emit,
    )  # fmt: skip
    return torch.cat([parameter.flatten() for parameter in model.parameters()]).detach()


def loop(config):
    rank = ray.train.get_context().get_world_rank()
    died = Path(config["folder"]) / "died"

    def die_once(event):
        if rank == 1 and getattr(event, "step", 0) == 25 and config["kill"] and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    sync = gradtide.Servers("bsp") if config["servers"] else "auto"
    found = train(sync, gradtide.ray.checkpoints(every=10), die_once)
    torch.save(found, f"{config['folder']}/{rank}.pt")
    Path(f"{config['folder']}/{rank}.host").write_text(ray.util.get_node_ip_address())


def main(address, folder, servers, kill):
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    trainer = TorchTrainer(
        loop,
        train_loop_config={"servers": servers, "folder": folder, "kill": kill},
        torch_config=gradtide.ray.GradtideConfig(servers=servers, replicas=min(1, servers // 2)),
        scaling_config=ray.train.ScalingConfig(num_workers=2, placement_strategy="SPREAD"),
        run_config=ray.train.RunConfig(
            storage_path=f"{folder}/storage",
            name="run",
            failure_config=ray.train.FailureConfig(max_failures=int(kill)),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
    )
    result = trainer.fit()
    alone = train("auto")
    workers = [torch.load(f"{folder}/{rank}.pt") for rank in range(2)]
    kept = sorted(path.name.rpartition("-")[0] for path in Path(f"{folder}/storage/run").glob("step-*"))
    found = {
        "far": max((worker - alone).abs().max().item() for worker in workers),
        "hosts": len({Path(f"{folder}/{rank}.host").read_text() for rank in range(2)}),
        "checkpoint": Path(result.checkpoint.path).name.rpartition("-")[0],
        "kept": kept,
        "died": Path(f"{folder}/died").exists(),
    }
    ray.shutdown()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "yes")

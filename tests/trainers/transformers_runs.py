"""Under a launcher: a tiny causal model with random weights, trained by transformers.Trainer as its users do.

transformers_runs.py FOLDER gradtide|gloo [options of TrainingArguments as JSON]: writes the weights to FOLDER."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import gradtide


def train(folder, options, resume=None):
    torch.manual_seed(3)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=40, num_key_value_heads=2, **sizes)).double()
    tokens = torch.randint(40, (32, 8), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False}
    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=2, learning_rate=0.01, seed=5, **quiet, **options
    )
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.train(resume_from_checkpoint=resume)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def main(folder, backend, options):
    if backend == "gradtide":
        gradtide.init()
    if options.pop("resume", False):
        own = folder / f"{backend}-run"
        train(own, options | {"max_steps": 4, "save_steps": 2, "save_strategy": "steps"})
        values = train(own, options, resume=str(own / "checkpoint-4"))
    else:
        values = train(folder / f"{backend}-run", {"save_strategy": "no"} | options)
    assert dist.get_backend() == backend, dist.get_backend()
    if dist.get_rank() == 0:
        torch.save(values, folder / f"{backend}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))

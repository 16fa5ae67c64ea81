"""Follow a run in Weights & Biases or in MLflow: each is a callback of a few lines. python examples/trackers.py wandb

Under `gradtide run --workers 2` one worker logs. Without a server: WANDB_MODE=offline; MLFLOW_TRACKING_URI=file:./runs
and MLFLOW_ALLOW_FILE_STORE=true.
"""

import importlib
import sys

import torch

import gradtide


class WandbLog:
    """Logs every epoch's figures; the options are those of wandb.init."""

    def __init__(self, **options):
        self.wandb, self.options, self.run = importlib.import_module("wandb"), options, None

    def __call__(self, event):
        if isinstance(event, gradtide.EpochEnd) and event.is_main:
            self.run = self.run or self.wandb.init(**self.options)
            self.run.log({"epoch": event.epoch, **event.values}, step=event.step)
        elif isinstance(event, gradtide.FitEnd) and self.run:
            self.run.finish(exit_code=int(event.failed))


class MLflowLog:
    """Logs every epoch's figures; the options are those of mlflow.start_run."""

    def __init__(self, **options):
        self.mlflow, self.options, self.run = importlib.import_module("mlflow"), options, None

    def __call__(self, event):
        if isinstance(event, gradtide.EpochEnd) and event.is_main:
            self.run = self.run or self.mlflow.start_run(**self.options)
            self.mlflow.log_metrics(event.values, step=event.step)
        elif isinstance(event, gradtide.FitEnd) and self.run:
            self.mlflow.end_run("FAILED" if event.failed else "FINISHED")


def main(tracker):
    log = {"wandb": lambda: WandbLog(project="digits"), "mlflow": lambda: MLflowLog(run_name="digits")}[tracker]()
    torch.manual_seed(0)
    inputs = torch.randn(600, 20)
    data = inputs, (inputs[:, :10].sum(1) > inputs[:, 10:].sum(1)).long()
    model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    history = gradtide.fit(model, data, validation=data, epochs=3, batch_size=50, lr=0.1, callbacks=[log])
    if gradtide.is_main():
        print(history)
    return history


if __name__ == "__main__":
    main(sys.argv[1])

"""What a reader of a page has: a model and data, files, a store. And what of a page is not run, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Run:
    """Blocks of Python of a page, by number, that are a program; and what is done before and after each of them.

    `each` does so with every statement: the block lists what could be written instead of each other.
    """

    blocks: tuple[int, ...]
    before: str = ""
    after: str = ""
    each: bool = False
    workers: int = 0
    servers: int = 0
    job: int = 0  # those with the same number run in one job
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Shown:
    """A file that the page shows: the block that begins with this, and what comes before it."""

    begins: str
    before: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """`files` are there before; `instead` is written for words of the page, in Python and in commands.

    In both {folder}, {ports[0]} and {store} stand for what is there: the page's folder, free ports, a store's address.
    """

    runs: tuple[Run, ...] = ()
    files: Mapping[str, "str | Shown"] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    before: str = ""  # Python that makes more of what is there
    prints: Mapping[str, str] = field(default_factory=dict)  # what is found in a command's output


MODEL = """
import torch, gradtide
from torch.nn import functional
torch.manual_seed(0)
images = torch.randn(64, 16)
labels = (images[:, :8].sum(1) > images[:, 8:].sum(1)).long()
def MyModel():
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
model = net = MyModel()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = images, labels
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=16)
loss_fn = functional.cross_entropy
"""
HELD_OUT = MODEL + "held_out_images, held_out_labels = images, labels\n"
TRAIN = """
if isinstance(model, gradtide.DataParallel):
    for x, y in gradtide.shard(loader):
        loss_fn(model(x), y).backward()
        model.step()
    model.close()
"""
SCRIPT = MODEL + "model = gradtide.DataParallel(model, optimizer)" + TRAIN
GLOO = (
    MODEL
    + """
from torch.nn.parallel import DistributedDataParallel
if not torch.distributed.is_initialized():
    torch.distributed.init_process_group("gloo")
"""
)
AGENTS = """
import subprocess, sys
import gradtide.transport.keys
gradtide.transport.keys.make_secret_file("job.secret")
agent = [sys.executable, "-m", "gradtide.launch.agent", "tcp:127.0.0.1:{ports[0]}", "--slots", "1"]
agents = [subprocess.Popen([*agent, "--secret-file", "job.secret", "--node", name]) for name in "ab"]
"""
SPLIT_BEFORE = (
    MODEL
    + """
first = MyModel()
model = gradtide.ModelParallel(first, torch.optim.SGD(first.parameters(), lr=0.1), split="auto")
"""
)
CHECKPOINT = (
    MODEL + "gradtide.fit(model, data, batch_size=16, epochs=1, checkpoints=gradtide.Checkpoints({!r}, every=2))"
)
WITH_STORE = (
    MODEL
    + """
count = globals().get("count", 0) + 1
value = images
store = globals().get("store") or gradtide.connect("{store}")
"""
)
LOCAL_STEPS = (
    MODEL
    + """
step, rank, outer = 50, gradtide.rank(), gradtide.update("sgd", lr=0.7)
model = gradtide.DataParallel(net, optimizer, gradtide.Local(50, outer))
"""
)
TRANSFER = """
def transfer(size_bytes, times):
    return [1e-6 + size_bytes / 1e9] * times
transfer_back = transfer
"""
MATRIX = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV2\t0-19\nGPU1\tNV2\t X \t0-19\n"

PAGES = {
    "README.md": Page(
        (
            Run((1, 2), MODEL, workers=2),
            Run((3,), "import torch, gradtide; grad = torch.ones(10_000_000)"),
        ),
        files={"train.py": Shown("import torch\n")},
        before=CHECKPOINT.format("runs/mine/checkpoints"),
        instead={"ADDRESS": "{store}"},
    ),
    "examples/README.md": Page(instead={"examples/digits.py": "'{root}/examples/digits.py' --epochs 1"}),
    "docs/c10d.md": Page(
        (
            Run(
                (0,),
                MODEL,
                "torch.distributed.all_reduce(images)",
                workers=2,
            ),
            Run((1,), GLOO, "torch.distributed.all_reduce(images, group=ours)", workers=2, job=1),
            Run((2,), GLOO, "loss_fn(model(images), labels).backward()", workers=2, job=1),
        )
    ),
    "docs/checkpoints.md": Page(
        (Run((0,), MODEL + "store = gradtide.connect('{store}')\nstore.init('w', torch.zeros(8))"),),
        instead={"--checkpoint-every 100": "--checkpoint-every 3", "every=100": "every=3"},
    ),
    "docs/collectives.md": Page(
        (
            Run(
                (0,),
                "import os, torch, gradtide\nrank, size, other = gradtide.rank(), gradtide.workers(), torch.ones(3)",
                "assert other.tolist() == [2.0, 2.0, 2.0]",
                workers=2,
            ),
        ),
        instead={'"my-job"': "os.environ['GRADTIDE_JOB'] + ' again'"},  # which another run of the tests would join
    ),
    "docs/dashboard.md": Page(
        files={"train.py": SCRIPT},
        instead={
            "gradtide train": "gradtide train --name NAME",
            "unix:/tmp/gradtide-x/coordinator": "{store}",
            "unix:/run/gradtide": "unix:{folder}",
            "/var/lib/gradtide": "{folder}",
            "/etc/prometheus": "{folder}",
            "9300": "{ports[0]}",
            "9400": "{ports[1]}",
        },
    ),
    "docs/first-hour.md": Page(
        (Run((0,)),),
        files={"train.py": Shown("import os\n")},
        instead={"200": "2"},
        prints={"gradtide run --workers 2 train.py": r"\[0\] epoch 4: 0\.[01]"},  # from 0.25
    ),
    "docs/index.md": Page(files={"train.py": Shown("import torch\n")}),
    "docs/fit.md": Page(
        (Run((0,), HELD_OUT),),
        files={"my_module.py": MODEL + "make_model = MyModel\ndef make_data(): return data"},
        instead={"--checkpoint-every 100": "--checkpoint-every 1"},
    ),
    "docs/frugal.md": Page(
        (
            Run((0, 4, 5, 6), WITH_STORE, TRAIN, each=True, workers=2, servers=1),
            Run((1,), LOCAL_STEPS, workers=2),
            Run((2,), MODEL + "data = images.repeat(200, 1), labels.repeat(200)", workers=2),  # 50 steps
            Run((3,), MODEL + "model = gradtide.DataParallel(net, optimizer)", workers=2),
        ),
        instead={
            'Servers("bsp")': 'Servers("bsp", name=str(count))',
            'Servers("async")': 'Servers("async", name=str(count))',
        },
    ),
    "docs/launch.md": Page(
        (Run((1,), AGENTS, "assert code == 0\nassert [agent.wait() for agent in agents] == [0, 0]"),),
        files={"train.py": Shown("import torch\n")},
        prints={"gradtide run --workers 4 train.py --lr 0.1": r"\[3\] rank 3 of 4: tensor\(\[4., 4., 4.\]\)"},
        instead={"head.example:7070": "127.0.0.1:{ports[0]}", "workers=8, min_workers=4": "workers=2, min_workers=1"},
    ),
    "docs/reliability.md": Page(
        (
            Run((0,), "import gradtide"),
            Run((1,), "import gradtide\nservers = gradtide.local_servers(2)", "servers.close()"),
        ),
        files={"script.py": SCRIPT},
        instead={"ADDRESS": "{store}"},
    ),
    "docs/split.md": Page(
        (
            Run((0,), MODEL + "x = images"),
            Run((1,), MODEL, workers=2),
            Run((2,), SPLIT_BEFORE, workers=4, slow=True),
        ),
    ),
    "docs/trace.md": Page(files={"train.py": SCRIPT}),
    "docs/store.md": Page(
        (Run((0,)), Run((3,), "import gradtide")),
        instead={"tcp:10.0.0.1:7000": "tcp:127.0.0.1:{ports[0]}", "tcp:10.0.0.2:7001": "tcp:127.0.0.1:{ports[1]}"},
    ),
    "docs/together.md": Page(
        (
            Run((0,), MODEL, workers=2),
            Run((1,), MODEL + "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)", workers=2),
        ),
        files={"train.py": SCRIPT},
    ),
    "docs/topologies.md": Page(
        (Run((0,), TRANSFER),),
        files={"topo.txt": MATRIX, "box.toml": Shown('name = "my-box"'), "topology.conf": Shown("SwitchName")},
        instead={"/etc/slurm": "{folder}"},
    ),
    "docs/trainers.md": Page((Run((0,), slow=True),), before=CHECKPOINT.format("ck")),  # Lightning loads for 3 s
    "docs/training.md": Page(
        (Run((2,), MODEL), Run((3,), MODEL + "my_sum = torch.nn.CrossEntropyLoss(reduction='sum')")),
        files={
            "fit.py": Shown("import gradtide\n\nhistory", HELD_OUT),
            "train.py": Shown("# train.py\n", MODEL),
        },
    ),
}

# Why commands (as fnmatch finds them) are parsed and not run.
NOT_RUN = {
    "docs/index.md: python train.py": "as in README.md, word for word",
    "*: gradtide bench *": "takes minutes; tests run them small, tests/bench most of them",
    "*: gradtide chaos*": "takes minutes, some as root; tests/testing runs small ones",
    "docs/launch.md: python -m gradtide.launch.agent *": "the program above it runs with two of them",
    "docs/four-machines.md: *": "needs four machines with etcd; tests/store/test_four_machines.py has them",
    "docs/ray.md: gradtide run *": "needs Ray's cluster; tests/on_ray/test_guide.py has one",
    "docs/reliability.md: gradtide coordinator *": "needs etcd; tests/store/test_four_machines.py has it",
    "docs/reliability.md: gradtide scale run-*": "the job has ended; tests/sync/test_growing.py scales one",
    "*: gradtide run --engine ray *": "needs Ray's cluster; tests/on_ray/test_guide.py has one",
    "*: torchrun --nnodes 2 *": "needs two machines; tests/launch/test_two_machines.py has them",
    "README.md: gradtide doctor --reach *": "needs two more machines; docs/first-hour.md has one without",
}
# Those that run with -m slow alone.
SLOW = {
    "*: gradtide split alexnet *": "20 s: times every layer",
    "*: gradtide plan superpod:*": "2 s and more, for 256 devices",
    "*: torchrun *": "as gradtide run beside it",
    "docs/dashboard.md: gradtide run *": "as the train before it",
    "examples/README.md: gradtide run *": "as tests/examples does by default",
    "docs/frugal.md: gradtide train *": "as in docs/training.md, with an option",
    "docs/planner.md: gradtide plan * --sizes *": "10 s: a plan for each size",
    "docs/planner.md: gradtide plan * --hosts *": "18 s: a plan for each number of hosts",
    "docs/planner.md: gradtide plan * --upgrade": "3 s: a plan for each kind of wire",
    "docs/together.md: gradtide run --workers 4 *": "as with two workers, but nobody dies here",
    "docs/training.md: gradtide run --workers 2 --servers 2 *": "as without servers: this script does not use them",
    "docs/topologies.md: gradtide plan *topology.conf *": "3 s for 256 devices",
    "docs/training.md: gradtide run --workers 2 fit.py": "as README.md's first example",
    "docs/training.md: gradtide train *": "as in docs/checkpoints.md and docs/dashboard.md",
}
# Those whose figures are of the machine that computed them.
MEASURED = ("docs/split.md: *",)
# Blocks of Python, by page and number, that another test runs.
ELSEWHERE = {
    ("docs/ray.md", 0): "tests/on_ray/test_guide.py",
    ("docs/store.md", 1): "tests/store/test_own_semirings.py",
    ("docs/store.md", 2): "tests/store/test_own_semirings.py",
}
# Commands that go on until they are told to end.
LASTING = ("coordinator", "dashboard", "restore", "serve")

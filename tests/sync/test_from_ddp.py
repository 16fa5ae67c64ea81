"""What a user of DDP meets: each row of docs/from-ddp.md names a test, and what no other file tests is tested here."""

import re
import warnings
from pathlib import Path

import programs
import pytest
import torch
import torch.distributed as dist
import training
from test_true_to_pytorch import REFUSED
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import gradtide
from gradtide.collective import Group
from gradtide.errors import ConfigError
from gradtide.sync import Job
from gradtide.sync.job import Elastic


def wrapped(model, job=None, **options):
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    return gradtide.DataParallel(model, rule, job=job, **options), rule


def test_gradients_that_were_zeroed_are_no_forgotten_step():
    """A generator's backward goes through the critic, whose gradients are thrown away."""
    critic, rule = wrapped(nn.Linear(2, 1))
    x = torch.ones(3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            critic(x).sum().backward()
            rule.zero_grad()
            critic(x).sum().backward()
            rule.step()
            rule.zero_grad()


def test_a_sync_batch_norm_that_would_not_synchronise_is_refused():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    with pytest.raises(
        ConfigError, match="1 is a SyncBatchNorm, which would quietly normalise by each worker's own part"
    ):
        wrapped(model, Job(0, 2))
    alone, _ = wrapped(model)
    alone(torch.randn(4, 2)).sum().backward()


def _train_as_under_ddp(rank, size, wrap):
    """A loader for each worker with its own samples; worker 0 validates and saves by itself, the others go on."""
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(23, 5, dtype=torch.float64, generator=draw), torch.randint(3, (23,), generator=draw)
    data = TensorDataset(x, y)
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()
    rule = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    model, best = wrap(net, rule), {}
    sampler = DistributedSampler(data, size, rank, seed=3)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        model.train()
        for a, b in loader:
            functional.cross_entropy(model(a), b).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            rule.step()
            rule.zero_grad()
        if rank == 0:
            asks_nobody = model if isinstance(model, gradtide.DataParallel) else net  # DDP's would wait for the others
            asks_nobody.eval()
            with torch.no_grad():
                asks_nobody(x)
            best = {name: value.clone() for name, value in net.state_dict().items()}
            net.train()
    return [p.detach().clone() for p in net.parameters()], best, [b.clone() for b in net.buffers()]


def ddp_and_gradtide(rank, size, name, folder):
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/{name}", size), rank=rank, world_size=size)
    try:
        wanted = _train_as_under_ddp(rank, size, lambda model, rule: nn.parallel.DistributedDataParallel(model))
    finally:
        dist.destroy_process_group()
    with Group.join(name, rank, size, timeout_s=30) as group:
        job = Job.of(group)
        found = _train_as_under_ddp(rank, size, lambda model, rule: gradtide.DataParallel(model, rule, job=job))
    return wanted, found


def test_a_program_with_a_distributed_sampler_gives_what_ddp_gives(workers, tmp_path):
    """Worker 0's batch norm counts, as under DDP; the others' has been used for one batch more since."""
    for rank, (wanted, found) in enumerate(workers.run(ddp_and_gradtide, 2, training.new_name(), str(tmp_path))):
        for a, b in zip(wanted[0], found[0], strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-12)
        assert wanted[1].keys() == found[1].keys()
        for name, value in wanted[1].items():
            assert torch.allclose(found[1][name], value, rtol=0, atol=1e-12), name
        assert bool(found[1]) == (rank == 0)


def test_two_models_at_once_over_the_same_servers_are_refused_with_what_helps(forks):
    with gradtide.local_servers(1, forks=forks) as servers:
        job = Job()
        first, _ = wrapped(nn.Linear(2, 1), job, sync=gradtide.Servers("bsp", servers.address, name="first"))
        second = gradtide.Servers("bsp", servers.address, name="second")
        with pytest.raises(
            ConfigError, match="close it, or put both into one module and wrap it with a list of optimizers"
        ):
            wrapped(nn.Linear(2, 1), job, sync=second)
        first.close()
        wrapped(nn.Linear(2, 1), job, sync=second)[0].close()


def test_there_are_no_communication_hooks():
    model, _ = wrapped(nn.Linear(2, 1))
    with pytest.raises(AttributeError, match="no attribute 'register_comm_hook'"):
        model.register_comm_hook(None, None)
    with pytest.raises(ConfigError, match="find_unused_parameters=; leave it out"):
        wrapped(nn.Linear(2, 1), find_unused_parameters=True)


def test_optimizer_step_is_refused_in_a_job_that_may_lose_workers():
    job = Job()
    model, rule = wrapped(nn.Linear(2, 1), job)
    job.elastic = Elastic("nowhere", "job", 0, generation=1)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ConfigError, match=r"call model.step\(\) instead of optimizer.step\(\) in a job that may lose"):
        rule.step()


# --- the page ---

ROOT = Path(__file__).parent.parent.parent
KNOWN = {**programs.PROGRAMS, **programs.SPECIAL, **training.CASES}


def rows():
    """Number, result, and what is named as shown by, of each row."""
    points, shown = (ROOT / "docs" / "from-ddp.md").read_text().split("## The test of each row")
    tests = {number: re.findall(r"`(\w+)`", names) for number, names in _cells(shown)}
    return [(int(number), result, tests.pop(number)) for number, _, _, result in _cells(points)]


def _cells(text):
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in re.findall(r"^\| \d.*", text, re.M)]


def test_every_row_of_the_page_names_tests_that_exist():
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [number for number, _, _ in rows()] == list(range(1, 41))
    for number, _, shown in rows():
        assert shown, number
        for name in shown:
            assert f"def {name}(" in sources if name.startswith("test_") else name in KNOWN, (number, name)


def test_the_page_says_of_every_program_whether_it_is_refused_and_in_which_words():
    for number, result, shown in rows():
        refusals = {line for name in shown for line in REFUSED.get(name, {}).values()}
        quoted = re.findall(r'"([^"]+)"', result)
        assert not refusals or "refused" in result, number
        for line in refusals:
            assert any(re.search(line, words) for words in quoted), (number, line)


def test_what_the_page_quotes_is_what_is_said():
    sources = "".join(path.read_text() for path in (ROOT / "src" / "gradtide").rglob("*.py"))
    said = re.sub(r'"\n\s*f?"', "", sources)  # strings that go on in the next line
    said = said.replace("{others[0]}", "1")
    for number, result, _ in rows():
        for words in re.findall(r'"([^"]+)"', result):
            assert words in said, (number, words)

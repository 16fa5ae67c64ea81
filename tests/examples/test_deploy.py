"""The files of examples/deploy: parsed, held against what gradtide and torchrun take, and run without their engines."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import get_args_parser

from documented import blocks
from gradtide.errors import ConfigError
from gradtide.testing import hosts
from gradtide.testing.hosts import ADDRESSES
from loaded_python import loaded_python
from test_documented import parse

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"
SBATCH = {"job-name", "nodes", "ntasks-per-node", "cpus-per-task", "time", "output", "requeue"}
DOCKER = {"ARG", "CMD", "COPY", "ENV", "FROM", "RUN", "USER", "WORKDIR"}
LIMIT_S = 120

# --- Slurm ---

SRUN = """#!/bin/sh
# Starts the command once on each node, as srun does, and ends as the first that failed.
[ "$1" = --kill-on-bad-exit=1 ] && shift
node=0
for host in $HOSTS; do
    ip netns exec $host env SLURM_NODEID=$node "$@" &
    started="$started $!" node=$((node + 1))
done
for pid in $started; do wait $pid || exit; done
"""
SCONTROL = f"""#!/bin/sh
[ "$*" = "show hostnames ab-[1-2]" ] && printf "%s\\n" {" ".join(ADDRESSES[:2])}
"""
PRINTS = """
import sys, torch, gradtide
group = gradtide.Group.from_environment()
sys.stdout.write(f"{group.all_reduce(torch.ones(1)).item()} lines of {sys.argv[1:]}\\n")
"""


@pytest.fixture
def two_hosts():
    with ExitStack() as stack:
        try:
            inside = stack.enter_context(hosts.two_hosts(""))
        except ConfigError as error:
            pytest.skip(str(error))
        yield [command[-1] for command in inside]


def write_program(path, text):
    path.write_text(text)
    path.chmod(0o700)


def test_the_batch_file_is_bash_and_asks_slurm_for_what_it_knows():
    subprocess.run(["bash", "-n", DEPLOY / "train.sbatch"], check=True)
    asked = re.findall(r"^#SBATCH --([\w-]+)", (DEPLOY / "train.sbatch").read_text(), re.MULTILINE)
    assert set(asked) == SBATCH


def test_the_batch_file_starts_a_script_with_its_arguments_on_every_node(two_hosts, tmp_path):
    write_program(tmp_path / "srun", SRUN)
    write_program(tmp_path / "scontrol", SCONTROL)
    write_program(tmp_path / "torchrun", f'#!/bin/sh\nexec {loaded_python()} -m torch.distributed.run "$@"\n')
    (tmp_path / "train.py").write_text(PRINTS)
    told = {"SLURM_JOB_NODELIST": "ab-[1-2]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "70123", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", DEPLOY / "train.sbatch", "train.py", "--name", "two words"], cwd=tmp_path, timeout=LIMIT_S,
        env=os.environ | told | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOSTS": " ".join(two_hosts)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2.0 lines of ['--name', 'two words']"] * 2


# --- Docker ---


def steps():
    """(instruction, what it says), of which a line may go on in the next."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    return [tuple(line.split(" ", 1)) for line in re.sub(r"\\\n\s*", "", text).splitlines() if line]


def test_the_image_is_made_of_what_the_repository_has():
    told = steps()
    assert {instruction for instruction, _ in told} == DOCKER
    for sources in (words.split()[:-1] for instruction, words in told if instruction == "COPY"):
        assert [name for name in sources if not (ROOT / name).exists()] == []
    (installs,) = (words for instruction, words in told if "pip install" in words and instruction == "RUN")
    assert "-c constraints.txt" in installs
    extras = next(words for instruction, words in told if words.startswith("EXTRAS="))
    assert set(extras.removeprefix("EXTRAS=").split(",")) <= known_extras()
    (command,) = (yaml.safe_load(words) for instruction, words in told if instruction == "CMD")
    parse(command[1:])


def known_extras():
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def built_by_hand():
    """A script of the shell that does each step: an empty environment of this Python is the base."""
    lines = ["set -e", f"cd {shlex.quote(str(ROOT))}", "context=$PWD", "user=root"]
    for instruction, words in steps():
        if instruction == "ENV":
            lines.append(f"export {words}")
        elif instruction == "ARG":  # which pip's own settings here are, too
            name, value = words.split("=")
            lines.append(f'export {name}="${{{name}-{value}}}"')
        elif instruction == "WORKDIR":
            lines += [f"mkdir -p {words}", f"cd {words}"]
        elif instruction == "COPY":
            *sources, target = words.split()
            kept = [f"{name}/." if (ROOT / name).is_dir() else name for name in sources]  # of a folder, what is in it
            lines += [f"mkdir -p {words}", f"cd {words}"]
        elif instruction == "COPY":
            *sources, target = words.split()
            kept = [
                shlex.quote(name) if len(sources) > 1 or (ROOT / name).is_file() else f"{name}/." for name in sources
            ]
            lines += [f"mkdir -p {target}", *(f'cp -r "$context"/{name} {target}' for name in kept)]
        elif instruction == "USER":
            lines.append(f"user={words}")
        elif instruction in ("RUN", "CMD"):
            command = shlex.join(yaml.safe_load(words)) if instruction == "CMD" else words
            lines.append(f"setpriv --reuid $user --regid $user --init-groups sh -ec {shlex.quote(command)}")
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_steps_of_the_image_make_one_that_trains(tmp_path):
    """In a root of its own, under which all of this machine lies: what the steps write is gone with it."""
    (tmp_path / "steps").write_text(built_by_hand())
    (tmp_path / "root").mkdir()
    around = f"""set -e
        mount -t tmpfs none "$0/root"; cd "$0/root"; mkdir up work all
        mount -t overlay overlay -o lowerdir=/,upperdir=up,workdir=work all
        for name in proc dev sys; do mount --rbind /$name all/$name; done
        chmod a+x all/root
        {sys.executable} -m venv all/base; sed -i "s|$PWD/all||" all/base/bin/*
        PATH=/base/bin:/usr/sbin:/usr/bin:/sbin:/bin exec chroot all sh "$0/steps" """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", around, tmp_path],
        capture_output=True, text=True, timeout=1200, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "2 workers" in done.stdout + done.stderr
    assert not Path("/opt/gradtide").exists()


# --- Kubernetes ---


def manifests():
    return [each for name in ("job", "servers") for each in yaml.safe_load_all((DEPLOY / f"{name}.yaml").read_text())]


def named(kind):
    return {each["metadata"]["name"]: each for each in manifests() if each["kind"] == kind}


def pods():
    """(the set or job that makes them, the pod, its container)"""
    made = [each for each in manifests() if each["kind"] in ("Job", "StatefulSet")]
    return [(each, pod, *pod["containers"]) for each in made for pod in [each["spec"]["template"]["spec"]]]


def names_of_pods():
    """As DNS has them, each with the ports at which it listens."""
    found = {}
    for made, pod, container in pods():
        spec, name = made["spec"], made["metadata"]["name"]
        service = spec.get("serviceName") or pod["subdomain"]
        chosen = named("Service")[service]["spec"]["selector"]
        labels = spec["template"].get("metadata", {}).get("labels", {"job-name": name})  # a job labels its pods itself
        assert chosen.items() <= labels.items()
        assert spec.get("selector", {"matchLabels": {}})["matchLabels"].items() <= labels.items()
        words = " ".join(container["command"])
        ports = set(re.findall(r"tcp:0.0.0.0:(\d+)|--master-port=(\d+)", words)[0]) - {""}
        assert {str(port["containerPort"]) for port in container.get("ports", [])} <= ports
        count = spec.get("replicas") or spec["completions"]
        found |= {f"{name}-{number}.{service}": ports for number in range(count)}
    return found


def test_what_pods_say_of_each_other_is_there():
    user = int(re.search(r"--uid (\d+)", (DEPLOY / "Dockerfile").read_text())[1])
    there, told = names_of_pods(), "\n".join((DEPLOY / f"{name}.yaml").read_text() for name in ("job", "servers"))
    lines = [line for line in told.splitlines() if not line.lstrip().startswith("#")]
    for name, port in re.findall(r"tcp:([a-z][\w.-]+):(\d+)", "\n".join(lines)):
        assert port in there[name]
    for made, pod, container in pods():
        assert set(pod["securityContext"].values()) == {user}
        claims = {each["metadata"]["name"] for each in made["spec"].get("volumeClaimTemplates", [])}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        folders = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert set(folders) == set(volumes) | claims
        for volume in (volume["secret"] for volume in volumes.values() if "secret" in volume):
            assert f"kubectl create secret generic {volume['secretName']} --from-file=" in told
        for file in re.findall(r"=(/[\w/.]+)", " ".join(container["command"])):
            assert os.path.dirname(file) in folders.values()
        assert {each["configMapRef"]["name"] for each in container.get("envFrom", [])} <= set(named("ConfigMap"))


def test_the_programs_of_pods_take_their_arguments():
    for made, _, container in pods():
        program, *words = container["command"]
        if program == "gradtide":
            parse(words)
            assert f"--servers={made['spec']['replicas']}" in words or words[0] == "coordinator"
            continue
        told = get_args_parser().parse_args([word.replace("$(JOB_COMPLETION_INDEX)", "1") for word in words])
        assert [made["spec"][name] for name in ("parallelism", "completions")] == [int(told.nnodes)] * 2
        assert (told.node_rank, f"{told.master_addr}") == (1, next(iter(names_of_pods())))
        assert (ROOT / told.training_script).exists()


class Pods:
    """Each in a network namespace of its own, where all have their names. What is mounted lies in the folder."""

    def __init__(self, inside, folder):
        self.folder, self.running = folder, []
        self.hosts = dict(zip(names_of_pods(), inside, strict=True))
        names = "".join(f"{address} {name}\n" for name, address in zip(self.hosts, ADDRESSES, strict=False))
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        for name, words in (("gradtide", "gradtide"), ("torchrun", "torch.distributed.run")):
            write_program(folder / name, f'#!/bin/sh\nexec {sys.executable} -m {words} "$@"\n')

    def start(self, pod, command, **variables):
        told = {"OMP_NUM_THREADS": "1", "PATH": f"{self.folder}:{os.environ['PATH']}", **variables}
        names = 'mount --bind hosts /etc/hosts && hostname "$0" && exec "$@"'
        named = [*self.hosts[pod], "unshare", "--mount", "--uts", "sh", "-c", names, pod.partition(".")[0]]
        process = subprocess.Popen(
            [*named, *map(self.here, command)], cwd=self.folder, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env=os.environ | {name: self.here(value) for name, value in told.items()},
        )  # fmt: skip
        self.running.append(process)
        return process

    def here(self, word):
        return re.sub("/etc/gradtide|/var/lib/gradtide", str(self.folder), word)

    def finish(self, pod, command, **variables):
        return said_by(self.start(pod, command, **variables))

    def close(self):
        for process in self.running:
            with process:
                process.kill()


def said_by(process):
    said, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, said
    return said


@pytest.fixture
def five_pods(tmp_path):
    with ExitStack() as stack:
        try:
            inside = stack.enter_context(hosts.several_hosts(5, ""))
        except ConfigError as error:
            pytest.skip(str(error))
        started = Pods(inside, tmp_path)
        stack.callback(started.close)
        yield started


@pytest.mark.slow
def test_the_pods_train_without_servers_and_over_them(five_pods, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (first,) = (block for block in blocks("docs/first-hour.md") if block.text.startswith("import os\n"))
    (tmp_path / "train.py").write_text(first.text)
    commands = {made["metadata"]["name"]: container["command"] for made, _, container in pods()}
    for line in re.findall(r"^# +(gradtide secret .*)$", (DEPLOY / "servers.yaml").read_text(), re.MULTILINE):
        five_pods.finish("train-0.train", line.split())
    coordinator = five_pods.start("coordinator-0.store", commands["coordinator"])
    assert "listens at" in coordinator.stdout.readline()
    servers = [five_pods.start(f"server-{number}.store", commands["server"]) for number in range(2)]
    for server in servers:
        assert "listens at" in server.stdout.readline()

    def job(*script, **variables):
        words = " ".join([*commands["train"][:-1], *(script or commands["train"][-1:])])
        indexed = [words.replace("$(JOB_COMPLETION_INDEX)", str(number)).split() for number in range(2)]
        started = [five_pods.start(f"train-{at}.train", command, **variables) for at, command in enumerate(indexed)]
        return [said_by(process) for process in started]

    assert "loss" in job()[0]
    store = named("ConfigMap")["store"]["data"]
    assert re.search(r"epoch 0: 0\.\d+", job("train.py", EPOCHS="1", **store)[0])
    ask = ["gradtide", "status", store["GRADTIDE_STORE"], "--secret-file", store["GRADTIDE_SECRET_FILE"]]
    assert "all is well" in five_pods.finish("train-0.train", ask)

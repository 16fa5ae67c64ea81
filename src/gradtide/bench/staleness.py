"""Time to accuracy through servers in bsp, bounded and async, when workers are not equally fast."""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from gradtide.bench import report
from gradtide.bench.peers.staleness import GOAL, WEATHERS, StalenessCase
from gradtide.environment import read_environment
from gradtide.errors import GradtideError
from gradtide.extras import require
from gradtide.launch import Launcher, Spec, Target
from gradtide.launch.output import Output
from gradtide.store.local.servers import local_servers
from gradtide.train.datasets.fashion_mnist import fashion_mnist_folder

__all__ = ["GOAL", "MODES", "TITLES", "StalenessResult", "bench_staleness", "draw", "keep", "table"]

MODES = ("bsp", "bounded:4", "async")
WORKERS, SERVERS = 2, 2
BATCH_SIZE, LR = 1024, 0.2
TITLES = {"calm": "nothing slows anybody", "slow": "worker 1 at a third of its speed", "stalls": "random stalls"}
_COLOURS = {"bsp": "#0072b2", "bounded:4": "#e69f00", "async": "#009e73"}


@dataclass(frozen=True, slots=True)
class StalenessResult:
    """One run: test accuracy over the seconds of training."""

    mode: str
    weather: str
    seed: int
    curve: Sequence[tuple[float, float]]

    @property
    def goal_s(self) -> float | None:
        """When the goal was reached for the first time."""
        return next((seconds for seconds, accuracy in self.curve if accuracy >= GOAL), None)


class _Silent(Output):
    """Workers' own lines, without what the launcher says about every job."""

    def say(self, text: str) -> None:
        pass


def bench_staleness(seeds: Sequence[int], steps: int, tell: Callable[[str], None]) -> Iterator[StalenessResult]:
    """Every mode in every weather; within a seed modes take turns, so that noise hits all."""
    data_dir = fashion_mnist_folder(None, read_environment())
    for weather in WEATHERS:
        for seed in seeds:
            for mode in MODES:
                tell(f"seed {seed}: {mode}, {TITLES[weather]}")
                yield StalenessResult(mode, weather, seed, _run(mode, weather, seed, steps, str(data_dir)))


def _run(mode: str, weather: str, seed: int, steps: int, data_dir: str) -> list[tuple[float, float]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradtide-bench-")))
        case = StalenessCase(mode, weather, seed, steps, BATCH_SIZE, LR, data_dir, str(folder / "curve.json"))
        target = Target("gradtide.bench.peers.staleness", (json.dumps(asdict(case)),), is_module=True)
        spec = Spec(target=target, workers=WORKERS, threads=1, preload="gradtide.parallel.preload")
        launcher = stack.enter_context(Launcher(spec, _Silent))
        store = stack.enter_context(local_servers(SERVERS)).address
        if launcher.run({"GRADTIDE_STORE": store}) != 0:
            raise GradtideError(f"a run of {mode} ({TITLES[weather]}) failed; what its workers said is above")
        return [(seconds, accuracy) for seconds, accuracy in json.loads(Path(case.result).read_text())]


def keep(path: Path, result: StalenessResult) -> list[StalenessResult]:
    """Adds a result to the file's, in the place of an older one of the same run; returns all."""
    lines = json.loads(path.read_text())["results"] if path.exists() else []
    older = [StalenessResult(line["mode"], line["weather"], line["seed"], line["curve"]) for line in lines]
    found = [other for other in older if _run_of(other) != _run_of(result)] + [result]
    report.write(path, found, after={"table": table(found)})
    return found


def _run_of(result: StalenessResult) -> tuple[str, str, int]:
    return result.mode, result.weather, result.seed


def table(results: Sequence[StalenessResult]) -> list[dict[str, Any]]:
    """A line a weather and mode: seconds to the goal, mean, least and most over the seeds."""
    lines = []
    for weather in WEATHERS:
        for mode in MODES:
            of_case = [result for result in results if (result.weather, result.mode) == (weather, mode)]
            times = [result.goal_s for result in of_case if result.goal_s is not None]
            line: dict[str, Any] = {"weather": weather, "mode": mode, "runs": len(of_case), "reached": len(times)}
            if times:
                line |= {"mean_s": mean(times), "min_s": min(times), "max_s": max(times)}
            lines.append(line)
    return lines


def draw(results: Sequence[StalenessResult], path: Path) -> None:
    """Test accuracy over time: a panel a weather, a line a run."""
    require("plot", "drawing")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    weathers = [weather for weather in WEATHERS if any(result.weather == weather for result in results)]
    size = 1 + 4 * len(weathers), 3.6
    figure, (panels,) = pyplot.subplots(
        1, len(weathers), figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    for axes, weather in zip(panels, weathers, strict=True):
        for mode in MODES:
            runs = [result for result in results if (result.weather, result.mode) == (weather, mode)]
            for number, run in enumerate(runs):
                seconds, accuracies = zip(*run.curve, strict=True)
                label = mode if number == 0 else None
                axes.plot(seconds, accuracies, color=_COLOURS[mode], label=label, linewidth=1, alpha=0.8)
        axes.axhline(GOAL, color="grey", linewidth=0.8, linestyle=":")
        axes.set(title=TITLES[weather], xlabel="seconds", ylim=(0.4, 0.9))
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("test accuracy")
    panels[0].legend(loc="lower right")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)

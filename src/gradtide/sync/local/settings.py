"""What a user says of local steps."""

from dataclasses import KW_ONLY, dataclass

from gradtide.errors import ConfigError
from gradtide.store import update
from gradtide.store.rules.updates import is_optimizer
from gradtide.store.wire.messages import UpdateRule
from gradtide.sync.servers.settings import Servers

__all__ = ["Local"]

_AVERAGING = update("sgd", lr=1.0)


@dataclass(frozen=True, slots=True)
class Local:
    """`DataParallel(model, optimizer, Local(50))`: workers step by themselves, and are averaged every 50 steps.

    `outer`, such as `gradtide.update("sgd", lr=0.7, momentum=0.9, nesterov=True)`, is an optimizer that takes what all
    workers have changed, on average, as its gradient (DiLoCo). The first `after` steps are taken together, as without.

    With `within="host"` the workers of a host take every step together, and only the hosts meet now and then.

    `over=Servers("bsp")`: servers hold the base, and the outer optimizer runs there. With `Servers("async")` nobody
    waits for anybody: what a worker changed is an outer step of its own. With `adapt=True` slow workers then take fewer
    steps before each, by their measured speed.
    """

    every: int
    outer: UpdateRule | None = None
    _: KW_ONLY
    after: int = 0
    within: str | None = None
    over: Servers | None = None
    adapt: bool = False

    def __post_init__(self) -> None:
        for name, value, least in (("every", self.every, 1), ("after", self.after, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"Local: {name}={value!r} makes no sense; give a number of steps, {least} or more")
        if self.outer is not None and not (isinstance(self.outer, UpdateRule) and is_optimizer(self.outer)):
            raise ConfigError(
                'Local: outer is an optimizer of torch by name, such as gradtide.update("sgd", lr=0.7, momentum=0.9)'
            )
        if self.outer is not None and self.outer.reduce != "mean":
            raise ConfigError("Local: outer takes the mean of what the workers changed; leave reduce= out")
        if self.within not in (None, "host"):
            raise ConfigError(f"Local: within={self.within!r} makes no sense; say within='host', or leave it out")
        if self.within is not None and self.over is not None:
            raise ConfigError("Local: over servers each worker meets by itself; leave within= or over= out")
        self._check_servers()

    def _check_servers(self) -> None:
        over = self.over
        if over is not None and not isinstance(over, Servers):
            raise ConfigError(f"Local: over={over!r} makes no sense; say over=gradtide.Servers('bsp'), or 'async'")
        if not isinstance(self.adapt, bool):
            raise ConfigError(f"Local: adapt={self.adapt!r} makes no sense; say True or False")
        if over is not None and over.consistency not in ("bsp", "async"):
            raise ConfigError(
                f"Local over Servers({over.mode!r}): a worker would go on from a base that its own last steps are not "
                "in yet; say 'bsp', or 'async'"
            )
        is_async = over is not None and over.mode == "async"
        if self.adapt and not is_async:
            raise ConfigError("Local: adapt=True is for workers that wait for nobody; say over=Servers('async')")
        if self.after and is_async:
            raise ConfigError("Local: steps taken together (after=) need rounds; say over=Servers('bsp')")
        if self.after and over is not None and over.resume:
            raise ConfigError("Local: after= is for a training that begins; leave it out with Servers(resume=True)")

    @property
    def rule(self) -> UpdateRule:
        """The outer optimizer, as an update rule; averaging, if there is none."""
        return _AVERAGING if self.outer is None else self.outer

"""hierarchical-halving, -direct, -rings, -tree: compositions over the grid of a cluster whose machines are alike.

As a builder each gives the whole list of ops; plans of large clusters never ask for it.
"""

from gradtide.schedule.classes.compose import COMPOSED, compose, tree
from gradtide.schedule.model import Schedule
from gradtide.schedule.request import Request, strategy


def _register(name: str) -> None:
    @strategy(name)
    def build(request: Request) -> Schedule:
        return compose(request, name).schedule.listed()


for _name in COMPOSED:
    _register(_name)

strategy("hierarchical-tree")(tree)

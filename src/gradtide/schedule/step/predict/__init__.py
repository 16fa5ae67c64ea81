"""How long a step takes: computing, and everything that is sent, on the wires of a topology.

flows.py     a step's tasks as flows that the simulator of schedules knows
relays.py    the way between two devices that no link joins
sums.py      the flows of a sum of gradients: the fastest strategy's
simulate.py  simulate_step runs them, and says who idled and what each link carried
"""

from gradtide.schedule.step.predict.simulate import StepSimulation, simulate_step

__all__ = ["StepSimulation", "simulate_step"]

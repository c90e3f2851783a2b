"""A tuner that measures nothing: of each layer, rows decide which of two ways is the faster."""

from __future__ import annotations

from typing import ClassVar

from quantdock.tuner import Measured, Timed

FAILS_AT = 1024  # rows that nothing can be measured with
STOPS_AT = 4096  # rows at which the user interrupts


class ToyTuner:
    """Keeps quantdock.tuner.Tuner; remembers what it was asked."""

    rows = (1, 64)
    asked: ClassVar[list] = []

    def __init__(self, platform):
        self.platform = platform

    def why_not(self, kernel, problem):
        return "" if problem.n > 100 else f"{kernel} has one way for so few"

    def plan(self, problems, rows, *, thorough, again):
        self.asked.append((list(problems), list(rows), thorough, again))
        return ToyRun(problems, rows, 0 if again else 1)

    def state(self):
        return f"{len(self.asked)} plans were made on [{self.platform}]"


class ToyRun:
    def __init__(self, problems, rows, num_known):
        self.cases = [(problem, m) for problem in problems for m in rows]
        self.num_cases, self.num_known, self.num_steps = len(self.cases), num_known, 1

    def measure(self, advance):
        for problem, m in self.cases:
            if m == STOPS_AT:
                raise KeyboardInterrupt
            advance(1)
            yield Measured(
                problem=problem,
                rows=m,
                before=None if m == FAILS_AT else Timed(way="[old]", us=10.0),
                after=None
                if m == FAILS_AT
                else Timed(way="new" if m > 1 else "[old]", us=5.0 if m > 1 else 10.0),
                num_tried=2,
                remarks=("[odd]: out of memory",) if m == FAILS_AT else (),
            )

"""The pressure on the processors while something is measured, and who makes it.

The bench runs in a process namespace of its own, so all processes that ``/proc`` has are the bench's.
``/proc/stat`` counts the whole machine. The difference is what others took: other programs, and other
virtual machines on the same processors ("steal")."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import time

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PROC = pathlib.Path("/proc")


@dataclasses.dataclass
class Pressure:
    wall_s: float
    own_s: float
    """Processor time of the bench and of all that it runs."""
    foreign_s: float
    foreign_percent: float
    """Of the time of all processors."""
    some_percent: float | None
    """How long some task waited for a processor, of the time: ours wait for each other, too. None where
    the kernel does not tell."""
    avg10: float | None
    """What the kernel says for the last ten seconds."""


class Watch:
    """Looks at its beginning, and when it is asked."""

    def __init__(self) -> None:
        self._began = self._look()

    def told(self) -> Pressure:
        wall, busy, own, waited, avg10 = (
            now if before is None or now is None or index == 4 else now - before
            for index, (before, now) in enumerate(zip(self._began, self._look(), strict=True))
        )
        assert wall is not None and busy is not None and own is not None
        foreign = max(0.0, busy - own)
        return Pressure(
            wall_s=wall,
            own_s=own,
            foreign_s=foreign,
            foreign_percent=100 * foreign / (wall * (os.cpu_count() or 1)),
            some_percent=None if waited is None else 100 * waited / wall,
            avg10=avg10,
        )

    @staticmethod
    def _look() -> tuple[float | None, ...]:
        return (time.monotonic(), busy_s(), own_s(), *waited())


def busy_s() -> float:
    """Time in which the processors did anything, since the machine started."""
    fields = (PROC / "stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S


def own_s() -> float:
    """Time of all processes of this namespace, and of those that they have waited for."""
    ticks = 0
    for process in PROC.glob("[0-9]*"):
        try:
            # The name of a process may have spaces and brackets.
            fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS_PER_S


def waited() -> tuple[float | None, float | None]:
    """How long some task has waited for a processor since the machine started, and the share of the last
    ten seconds in percent."""
    try:
        some = (PROC / "pressure" / "cpu").read_text().splitlines()[0].split()[1:]
    except OSError:
        return None, None
    told = dict(field.split("=") for field in some)
    return int(told["total"]) / 1e6, float(told["avg10"])

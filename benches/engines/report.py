"""What the runs say: a table, JSON, and what is wrong with them."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

from load import Measured
from pressure import Pressure
from systems import SYSTEMS, version


@dataclasses.dataclass
class Run:
    """A system once, with servers of its own."""

    system: str
    repetition: int
    failed: str | None = None
    """Why it has no figures."""
    start_s: float = 0.0
    measured: list[Measured] = dataclasses.field(default_factory=list)
    pressure: Pressure | None = None
    wrong_answers: int = 0
    fewer: int = 0
    """Prompts of which the decode computed more than the system leaves to it."""
    is_busy: bool = False
    is_thrown_away: bool = False

    def figures(self, name: str) -> list[float]:
        return [getattr(got, name) for got in self.measured]

    def median(self, name: str) -> float:
        return statistics.median(self.figures(name))

    def in_words(self) -> str:
        if self.failed is not None or self.pressure is None:
            return f"FAILED: {self.failed}"
        waited = self.pressure.some_percent
        told = [
            f"first token at the decode {self.median('first_ms'):.0f} ms",
            f"others took {self.pressure.foreign_percent:.0f} % of the processors",
            "no pressure is told"
            if waited is None
            else f"some task waited {waited:.0f} % of the time",
        ]
        if self.wrong_answers:
            told.append(f"{self.wrong_answers} WRONG ANSWERS")
        if self.fewer:
            told.append(
                f"fewer tokens transferred for {self.fewer} of {len(self.measured)} prompts"
            )
        if self.is_busy:
            told.append("thrown away" if self.is_thrown_away else "kept in spite of the others")
        return "; ".join(told)


def table(options: Any, runs: list[Run]) -> str:
    rows = [
        ["KV goes by", "first token at the decode, ms: least, median, most", "of the control's"]
        + [
            "from the prompt to that token, ms",
            "to the last token, ms",
            "of the prompt transferred",
        ]
        + ["processor s a prompt", "others took, %", "some task waited, %", "runs kept"]
    ]
    rows.append(["---"] * len(rows[0]))
    for name in options.systems:
        rows.append(row(options, name, runs))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def row(options: Any, name: str, runs: list[Run]) -> list[str]:
    title = ", ".join(filter(None, [SYSTEMS[name].title, version(SYSTEMS[name])]))
    own = kept(runs, name)
    tried = [run for run in runs if run.system == name]
    cells = [title]
    if own:
        first = [figure for run in own for figure in run.figures("first_ms")]
        prompts = len(first)
        cells.append(f"{min(first):.0f}, {statistics.median(first):.0f}, {max(first):.0f}")
        cells.append(span(ratios(runs, name), "{:.3f}") or "-")
        for figure in ("both_first_ms", "whole_ms"):
            cells.append(f"{statistics.median(sum((run.figures(figure) for run in own), [])):.0f}")
        computed = sum(got.computed_tokens for run in own for got in run.measured)
        cells.append(f"{options.tokens * prompts - computed} of {options.tokens * prompts}")
        pressures = [run.pressure for run in own if run.pressure is not None]
        cells.append(f"{sum(told.own_s for told in pressures) / prompts:.2f}")
        cells.append(span([told.foreign_percent for told in pressures], "{:.0f}"))
        waited = [told.some_percent for told in pressures if told.some_percent is not None]
        cells.append(span(waited, "{:.0f}") or "not told")
    else:
        cells += ["-"] * 8
    marks = [f"{len(own)} of {len(tried)}"]
    for what, count in [
        ("busy", sum(run.is_busy for run in own)),
        ("fewer", sum(run.fewer > 0 for run in own)),
        ("wrong", sum(run.wrong_answers > 0 for run in tried)),
        ("failed", sum(run.failed is not None for run in tried)),
    ]:
        if count:
            marks.append(f"{count} {what}")
    return [*cells, ", ".join(marks)]


def kept(runs: list[Run], name: str) -> list[Run]:
    own = [run for run in runs if run.system == name and run.failed is None]
    return [run for run in own if not run.is_thrown_away and not run.wrong_answers]


def ratios(runs: list[Run], name: str) -> list[float]:
    """The median of a run over that of the control in the same repetition."""
    controls = {run.repetition: run.median("first_ms") for run in kept(runs, "control")}
    own = [run for run in kept(runs, name) if run.repetition in controls]
    return [run.median("first_ms") / controls[run.repetition] for run in own]


def span(values: list[float], form: str) -> str:
    """The least and the greatest."""
    ends = [form.format(end(values)) for end in (min, max) if values]
    return " to ".join(dict.fromkeys(ends))


def problems(options: Any, runs: list[Run]) -> list[str]:
    """Why these figures are not to be used, one sentence each."""
    found = []
    for run in runs:
        which = f"{run.system}, repetition {run.repetition}"
        if run.failed is not None:
            found.append(f"{which}: {run.failed}; without it: --systems")
        if run.wrong_answers:
            found.append(f"{which}: {run.wrong_answers} answers are not those of a single server")
        if run.fewer and not run.is_thrown_away:
            found.append(
                f"{which}: the decode computed whole blocks of {run.fewer} of {len(run.measured)} prompts "
                "that the system was to transfer"
            )
    for name in options.systems:
        own = [run for run in runs if run.system == name]
        thrown = sum(run.is_thrown_away for run in own)
        if 2 * thrown > len(own):
            found.append(
                f"{name}: {thrown} of {len(own)} runs were thrown away, as others took more than "
                f"{options.foreign_limit:g} % of the processors: end what else runs, or give --keep-busy, "
                "which keeps and marks them"
            )
    return found


def as_json(options: Any, runs: list[Run]) -> dict[str, Any]:
    asked = {name: value for name, value in vars(options).items() if name not in ("json", "logs")}
    return {
        "options": asked,
        "peers": {name: version(SYSTEMS[name]) for name in options.systems},
        "runs": [dataclasses.asdict(run) for run in runs],
        "problems": problems(options, runs),
    }

"""What a rank counts, and what it reports to the scheduler."""

from __future__ import annotations

import logging

import rackline
from rackline.engines.attachment import Attachment, Renewal
from rackline.engines.reasons import Reasons, of_error
from rackline.vllm.messages import Report
from rackline.vllm.statistics import RacklineStats


class Results:
    """Of loads and saves."""

    def __init__(self, attachment: Attachment, logger: logging.Logger) -> None:
        self._attachment = attachment
        self.renewal = Renewal(attachment)
        """Of the sessions of this rank."""
        self.report = Report()
        self.stats = RacklineStats()
        # Its statistics are others' after a report.
        self.reasons = Reasons(logger, lambda name, amount: self.stats.count(name, amount))

    def why(self, error: rackline.Error, blocks: int) -> tuple[str, str | None]:
        """The reason that an error gives for ``blocks``, and its sentence: it is raised to nobody (VLLM-W6)."""
        if self._attachment.is_out(error, self.renewal.life):
            self.stats.count("not_attached_blocks", blocks)
            return "not_attached", None
        return of_error(error), str(error)

    def take_report(self) -> Report | None:
        report, self.report = self.report, Report(failures=self.report.failures)
        return report if report.loaded or report.saved else None

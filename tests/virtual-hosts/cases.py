"""The cases, in the order in which they run."""

from rack import Rack

import before_format
import death
import members
import objects


def run_all(rack: Rack) -> None:
    """Runs every case. One that needs what a failed one was to make is left out."""
    for case in before_format.CASES:
        rack.case(case)
    if not all([rack.case(case) for case in members.FORMAT]):
        return
    if not rack.case(members.attached_from_both):
        return
    for case in [*members.CASES, *objects.CASES]:
        rack.case(case)
    if rack.case(death.of_a_host):
        rack.case(death.of_the_managers_host)

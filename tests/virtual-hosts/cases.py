"""The cases, in the order in which they run."""

from rack import Rack

import before_format
import death
import declared
import drives
import members
import objects
import qualified


def run_all(rack: Rack) -> None:
    """Runs every case. One that needs what a failed one was to make is left out."""
    for case in before_format.CASES:
        rack.case(case)
    rack.locks = members.ARBITRATED
    if not rack.case(members.format_region) or not rack.case(members.attached_from_both):
        return
    for case in [*members.CASES, *objects.CASES, qualified.pair]:
        rack.case(case)
    deaths = [drives.power_is_cut, death.and_comes_back, declared.a_host, declared.the_managers_host]
    if not all(rack.case(case) for case in deaths) or not rack.case(members.all_leave):
        return
    rack.locks = members.BAKERY
    if not rack.case(members.format_region):
        return
    # Nobody grants locks, and no host stays in the region.
    for case in [*members.CASES, objects.named_roots]:
        rack.case(case)
    # For deaths somebody has to watch.
    if rack.case(members.attached_from_both):
        rack.case(objects.small_objects)
        rack.case(declared.a_host)

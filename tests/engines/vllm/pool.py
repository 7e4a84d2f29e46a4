"""What tests do to a pool from outside."""

from __future__ import annotations

from collections.abc import Callable

from region import Region

PAGE_BYTES = 4096
# A 32-bit float, little-endian: its highest byte is the last.
NUMBER_AT, NUMBER_BYTES = 76, 4


def damage(region: Region, only: set[int] | None = None) -> int:
    """Flips a bit in every page of every block, or in these pages alone, and returns in how many. It is one
    of the exponent of a number, so that an engine that computes with it computes nonsense."""
    return _change(region, lambda number: number[:-1] + bytes([number[-1] ^ 0x40]), only)


def written(region: Region) -> set[int]:
    """The pages that blocks have written."""
    with open(region.path, "rb") as memory:
        memory.seek(region.payload_offset)
        payload = memory.read(region.bytes - region.payload_offset)
    empty = bytes(PAGE_BYTES)
    return {
        region.payload_offset + page
        for page in range(0, len(payload), PAGE_BYTES)
        if payload[page : page + PAGE_BYTES] != empty
    }


def damage_to_nan(region: Region) -> int:
    """Puts bytes of ones, which are no number of any type, into every page of every block, and returns
    into how many."""
    return _change(region, lambda number: b"\xff" * NUMBER_BYTES)


def _change(
    region: Region, change: Callable[[bytes], bytes], only: set[int] | None = None
) -> int:
    """Nothing else lies behind the metadata when all that was ever allocated is blocks."""
    pages = 0
    with open(region.path, "r+b", buffering=0) as memory:
        for page in range(region.payload_offset, region.bytes, PAGE_BYTES):
            memory.seek(page + NUMBER_AT)
            number = memory.read(NUMBER_BYTES)
            if number[-1] != 0 and (only is None or page in only):
                memory.seek(page + NUMBER_AT)
                memory.write(change(number))
                pages += 1
    return pages

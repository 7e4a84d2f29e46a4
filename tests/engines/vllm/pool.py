"""What tests do to a pool from outside."""

from __future__ import annotations

from region import Region

PAGE_BYTES = 4096
# The highest byte of a 32-bit float, little-endian.
EXPONENT_AT = 79


def damage(region: Region) -> int:
    """Flips a bit in every page of every block, and returns in how many pages. It is one of the
    exponent of a number, so that whoever computes with it computes nonsense. Nothing else lies behind
    the metadata when all that was ever allocated is blocks."""
    pages = 0
    with open(region.path, "r+b", buffering=0) as memory:
        for page in range(region.payload_offset, region.bytes, PAGE_BYTES):
            memory.seek(page + EXPONENT_AT)
            byte = memory.read(1)[0]
            if byte != 0:
                memory.seek(page + EXPONENT_AT)
                memory.write(bytes([byte ^ 0x40]))
                pages += 1
    return pages

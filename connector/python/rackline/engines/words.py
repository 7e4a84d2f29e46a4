"""The identity of an engine's blocks in words: what has to be equal before two engines share blocks."""

from __future__ import annotations

import hashlib
from typing import Any

Words = dict[str, "str | int"]


def tenant_word(tenant: str) -> str:
    """Tells tenants apart without naming them: other users may read these words."""
    return hashlib.sha256(b"rackline tenant word" + tenant.encode()).hexdigest()[:16]


def difference(own: Words, other: dict[str, Any]) -> str | None:
    """The first word, in the order of ``own``, that ``other`` has with another value."""
    return next((name for name, value in own.items() if other.get(name, value) != value), None)

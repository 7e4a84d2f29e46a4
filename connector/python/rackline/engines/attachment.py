"""The attachment of a process, shared by the halves that live in it."""

from __future__ import annotations

import os
import threading
from typing import Any

import rackline
from rackline.engines.settings import PoolSettings, SettingsError

_lock = threading.Lock()
_Key = tuple[int, str, int]
_pools: dict[_Key, tuple[rackline.Pool, int]] = {}
_options: dict[_Key, dict[str, Any]] = {}
"""What the user set for the pool of that key."""
_by_layers: dict[_Key, bool] = {}
"""Whether it publishes by layers."""


class Attachment:
    """A share of this process's attachment to a pool; the last to be closed ends it."""

    def __init__(self, settings: PoolSettings, fetch_threads: int = 0) -> None:
        """``fetch_threads`` are those of the first share.

        Raises :class:`SettingsError` when the process is attached with other options, which hold for
        all that is in it."""
        self._key = (os.getpid(), settings.region, settings.node)
        with _lock:
            pool, shares = _pools.get(self._key, (None, 0))
            options = settings.pool_options()
            if pool is None:
                pool = rackline.Pool(
                    settings.region,
                    settings.node,
                    fetch_threads=fetch_threads,
                    **options,
                    publishes_by_layers=settings.publishes_by_layers,
                )
                _options[self._key] = options
                _by_layers[self._key] = settings.publishes_by_layers
            elif options != _options[self._key]:
                raise SettingsError(_difference(options, _options[self._key]))
            elif settings.publishes_by_layers and not _by_layers[self._key]:
                raise SettingsError(
                    "something else in this process is attached to the pool and does not save layer "
                    "by layer: set it to do so, too, or this one not to"
                )
            _pools[self._key] = (pool, shares + 1)
        self.pool = pool
        self._open = True

    def close(self) -> None:
        """Ends this share. Waits for nothing but where it is the last: then for all that was begun in
        the pool, by any share."""
        with _lock:
            if not self._open or self._key[0] != os.getpid():
                return
            self._open = False
            pool, shares = _pools.pop(self._key)
            if shares > 1:
                _pools[self._key] = (pool, shares - 1)
                return
            # Not beside the next one: a process attaches once.
            pool.close()


def _difference(asked: dict[str, Any], found: dict[str, Any]) -> str:
    differ = [name for name in asked if asked[name] != found[name]]
    said = ", ".join(f"{name} {found[name]!r} and not {asked[name]!r}" for name in differ)
    return (
        f"something else in this process is attached to the pool with {said}: a process has one "
        "attachment, so set the same for both"
    )

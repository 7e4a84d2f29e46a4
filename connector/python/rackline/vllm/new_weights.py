"""New weights in a running engine, under a name of their own.

- **VLLM-V11** After a reset of the caches blocks are shared again only under a name that the user gave to the new
  weights, and only once the engine itself has no KV of the old ones. Until then nothing is loaded or saved.

vLLM announces new weights with a reset of the connector's cache, and names nothing. The user writes the name to
a file (``weights_name_file``) before the reset. The name takes the place of ``model_id``: engines that were
started with that ``model_id`` share blocks with this one.
"""

from __future__ import annotations

import pathlib
from typing import Any

from rackline.engines.settings import SettingsError

NAME_LENGTH_MAX = 200


class WeightsNames:
    """What the weights of this engine are called."""

    def __init__(self, file: str, name: str) -> None:
        """``name`` is that of the weights that the engine starts with, if they have one."""
        self._file, self._name = file, name

    def next(self, given: str | None) -> str:
        """The name of the weights that the engine has now: ``given``, or what the file says. Raises
        :class:`SettingsError` when there is no new name."""
        name = given if given is not None else self._in_file()
        if not 0 < len(name) <= NAME_LENGTH_MAX:
            raise SettingsError(
                f"the weights' name has {len(name)} characters: give it 1 to {NAME_LENGTH_MAX}"
            )
        if name == self._name:
            raise SettingsError(
                f"the weights are still named {name!r}: write the name of the new weights before the reset"
            )
        return name

    def take(self, name: str) -> None:
        """The engine's weights have this name from now on."""
        self._name = name

    def _in_file(self) -> str:
        if not self._file:
            raise SettingsError(
                'the weights have no name: set "weights_name_file", and write the name of the new weights '
                "to that file before the reset"
            )
        try:
            return pathlib.Path(self._file).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise SettingsError(
                f'the file of "weights_name_file" cannot be read: {error}'
            ) from None


def has_old_kv(manager: Any) -> bool:
    """Whether the engine's own cache has KV from before its last reset, which fails while blocks are used."""
    pool = manager.block_pool
    used = pool.num_gpu_blocks - pool.get_num_free_blocks()
    # The null block is always used.
    return used > 1 or len(pool.cached_block_hash_to_block) > 0

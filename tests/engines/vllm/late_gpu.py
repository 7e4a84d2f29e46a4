"""The connector in an engine whose KV is on a GPU, as far as the connector knows: the CPU's tensors are
memory of the stand-in's GPU 0.

The engine computes on the CPU, at once; the work of a GPU is done later than it is launched. So what a
step has computed into blocks that are saved is taken out again, and given to the engine's stream to be
written; and into blocks that are loaded that stream has something else to write. It is done with both
before the next forward. A copy that does not come after the stream's work gets, or leaves behind, wrong
bytes.

No option of the connector leads here: the class is loaded by its name from this file."""

from __future__ import annotations

import contextlib
import ctypes
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

from cuda_driver import driver
from rackline.vllm import RacklineConnector
from rackline.vllm.device import Gpu

# The bytes of numbers that any model makes nonsense of.
NONSENSE = 0x41


class LateGpu(RacklineConnector):
    """The connector on such a GPU."""

    tells_the_right_stream = True
    """Whether it is the stream of the work that the connector is told."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._stream = driver().new_stream()
        self._told_stream = self._stream if self.tells_the_right_stream else driver().new_stream()
        self._caches: list[Any] = []

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._caches = list(kv_caches.values())
        for storage in {cache.untyped_storage() for cache in self._caches}:
            driver().has(storage.data_ptr(), storage.nbytes())
        with mock.patch("rackline.vllm.worker.device_of", lambda caches: Gpu(0)):
            super().register_kv_caches(kv_caches)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """A step begins."""
        if not self.tells_the_right_stream:
            # Copies that do not wait for the stream are over before it does anything.
            self._wait_for_transfers()
        driver().wait_for(self._stream)
        super().bind_connector_metadata(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        for job in self.step.loads:
            for address, length in self._places(job.block_ids):
                driver().write_later(self._stream, address, bytes([NONSENSE]) * length)
        with self._current_stream():
            super().start_load_kv(forward_context, **kwargs)
        if self.worker._settings.load == "sync":
            # Before the forward, which comes now.
            driver().wait_for(self._stream)

    def wait_for_save(self) -> None:
        for job in self.step.saves:
            for address, length in self._places(job.block_ids):
                computed = ctypes.string_at(address, length)
                ctypes.memset(address, NONSENSE, length)
                driver().write_later(self._stream, address, computed)
        with self._current_stream():
            super().wait_for_save()

    @contextlib.contextmanager
    def _current_stream(self) -> Iterator[None]:
        """What torch says on a GPU."""
        stream = types.SimpleNamespace(cuda_stream=self._told_stream)
        with mock.patch("torch.cuda.current_stream", lambda device: stream):
            yield

    def _places(self, block_ids: list[int]) -> Iterator[tuple[int, int]]:
        """Address and length of each layer's part of the blocks."""
        for block in block_ids:
            for cache in self._caches:
                part = cache[block]
                assert part.is_contiguous()
                yield part.data_ptr(), part.numel() * part.element_size()

    def _wait_for_transfers(self) -> None:
        worker = self.worker
        while worker._saving or worker._loading:
            worker._poll_saves()
            worker._poll_loads()


class WrongStream(LateGpu):
    """The same, when the copies are put behind a stream that has nothing to do."""

    tells_the_right_stream = False

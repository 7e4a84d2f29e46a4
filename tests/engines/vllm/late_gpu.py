"""The connector in an engine whose KV is on a GPU, as far as the connector knows: the CPU's tensors are
memory of the stand-in's GPU 0.

The engine computes on the CPU, at once; the work of a GPU is done later than it is launched. So what a
step has computed into blocks that are saved is taken out again, and given to the engine's stream to be
written: behind the forward, or where it is saved layer by layer behind each layer. It is done with that
before the next forward. And into blocks that are loaded something else is written: before the forward of a
synchronous load; of an asynchronous one at the end of the last step whose output the scheduler had when it
gave the blocks (VLLM-W10). A copy that does not come after that gets, or leaves behind, wrong bytes.

No option of the connector leads here: the class is loaded by its name from this file."""

from __future__ import annotations

import contextlib
import ctypes
import types
from collections.abc import Iterator
from typing import Any, ClassVar
from unittest import mock

from cuda_driver import driver
from rackline.vllm import RacklineConnector
from rackline.vllm.device import Gpu
from rackline.vllm.layout import clear_blocks
from rackline.vllm.positions import Positions

# The bytes of numbers that any model makes nonsense of.
NONSENSE = 0x41


class LateDevice(Gpu):
    """Each position of its stream is a stream of its own, so that work may be pending there and not behind it."""

    def __init__(self, stream: int) -> None:
        super().__init__(0)
        self._stream = stream
        self._positions: list[int] = []
        """Where the steps began, from the first."""

    def position(self) -> int:
        self._positions.append(driver().new_stream())
        return self._positions[-1]

    def stream_at(self, position: int) -> int | None:
        return position

    def write_behind_step(self, step: int, address: int, content: bytes) -> None:
        """Work that the step was launched with, and that is not done."""
        driver().write_later(self._positions[step], address, content)

    def pass_on(self, step: int) -> None:
        """All later work comes after that."""
        for later in (*self._positions[step + 1 :], self._stream):
            driver().come_after(later, self._positions[step])


class NoOrder(LateDevice):
    def stream_at(self, position: int) -> int | None:
        return driver().new_stream()


class OneStepEarlier(LateDevice):
    def stream_at(self, position: int) -> int | None:
        number = self._positions.index(position)
        return self._positions[number - 1] if number > 0 else driver().new_stream()


class LateGpu(RacklineConnector):
    """The connector on such a GPU."""

    tells_the_right_stream = True
    """Whether it is the stream of the work that the connector is told."""
    device = LateDevice

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._stream = driver().new_stream()
        self._told_stream = self._stream if self.tells_the_right_stream else driver().new_stream()
        self._late_device = self.device(self._stream)
        self._caches: dict[str, Any] = {}
        self._late: set[str] = set()
        """Layers of the step whose work is with the stream."""

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._caches = kv_caches
        for storage in {cache.untyped_storage() for cache in kv_caches.values()}:
            driver().has(storage.data_ptr(), storage.nbytes())
        with mock.patch("rackline.vllm.worker.device_of", lambda caches: self._late_device):
            super().register_kv_caches(kv_caches)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """A step begins."""
        if not self.tells_the_right_stream:
            # Copies that do not wait for the stream are over before it does anything.
            self._wait_for_transfers()
        driver().wait_for(self._stream)
        self._late.clear()
        super().bind_connector_metadata(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        loads = [load for job in self.step.loads for load in job.groups]
        sync = self.worker._settings.load == "sync"
        for load in loads:
            for _, address, length in self._places(load.block_ids):
                nonsense = bytes([NONSENSE]) * length
                if sync:
                    driver().write_later(self._stream, address, nonsense)
                else:
                    self._late_device.write_behind_step(self.step.known, address, nonsense)
        if loads and not sync:
            self._late_device.pass_on(self.step.known)
            self._forward_is_launched()
        with self._current_stream():
            super().start_load_kv(forward_context, **kwargs)
        if sync:
            if not self.tells_the_right_stream:
                self.worker._loads.wait_for_layer(self.worker._layers.last())
            # Before the forward, which comes now.
            driver().wait_for(self._stream)

    def _forward_is_launched(self) -> None:
        """That of a step with asynchronous loads."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        if self.worker._settings.publishes_by_layers:
            self._compute_late([layer_name])
        with self._current_stream():
            super().save_kv_layer(layer_name, kv_layer, attn_metadata, **kwargs)

    def wait_for_save(self) -> None:
        self._compute_late([name for name in self._caches if name not in self._late])
        with self._current_stream():
            super().wait_for_save()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        with self._current_stream():
            return super().get_finished(finished_req_ids)

    def shutdown(self) -> None:
        super().shutdown()
        # The engine's memory is not written to when it is somebody else's.
        driver().wait_for(self._stream)

    def _compute_late(self, names: list[str]) -> None:
        """What these layers have computed of what the step saves is computed later."""
        self._late.update(names)
        for job in self.step.saves:
            for name, address, length in self._places(job.block_ids):
                if name in names:
                    computed = ctypes.string_at(address, length)
                    ctypes.memset(address, NONSENSE, length)
                    driver().write_later(self._stream, address, computed)

    @contextlib.contextmanager
    def _current_stream(self) -> Iterator[None]:
        """What torch says on a GPU, where it clears blocks behind what the stream has to do."""
        stream = types.SimpleNamespace(cuda_stream=self._told_stream)

        def clear(*arguments: Any) -> None:
            driver().wait_for(self._stream)
            clear_blocks(*arguments)

        with (
            mock.patch("torch.cuda.current_stream", lambda device: stream),
            mock.patch("rackline.vllm.parts.clear_blocks", clear),
        ):
            yield

    def _places(self, block_ids: list[int]) -> Iterator[tuple[str, int, int]]:
        """Address and length of each layer's part of the blocks, and the layer."""
        for block in block_ids:
            for name, cache in self._caches.items():
                part = cache[block]
                assert part.is_contiguous()
                yield name, part.data_ptr(), part.numel() * part.element_size()

    def _wait_for_transfers(self) -> None:
        worker = self.worker
        while worker._saving or worker._loads._loading:
            worker._poll_saves()
            worker._loads.poll()


class WrongStream(LateGpu):
    """The same, when the copies are put behind a stream that has nothing to do."""

    tells_the_right_stream = False
    device = NoOrder


class WatchedGpu(LateGpu):
    """The same, with forwards that nobody may wait for before a load is done. So loads are waited for."""

    waited: ClassVar[list[bool]] = []
    """Of each step with loads, whether the loads came after its forward."""
    under_way: ClassVar[list[int]] = []
    """And how many steps were under way."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._forward = ctypes.create_string_buffer(1)
        driver().has(ctypes.addressof(self._forward), 1)

    def _forward_is_launched(self) -> None:
        self._forward.raw = b"-"
        driver().write_later(self._stream, ctypes.addressof(self._forward), b"+")

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        super().start_load_kv(forward_context, **kwargs)
        if self.step.loads:
            while self.worker._loads._loading:
                self.worker._loads.poll()
            self.waited.append(self._forward.raw == b"+")
            self.under_way.append(self.step.number - self.step.known)


class EarlierPosition(WatchedGpu):
    """The same, when loads come after one step less than they should."""

    device = OneStepEarlier


class NewestPosition(WatchedGpu):
    """The same, when loads come after all that was launched."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        with mock.patch.object(Positions, "of_load", lambda own, step, device: device.stream()):
            super().start_load_kv(forward_context, **kwargs)


class CapturedStream(LateGpu):
    """The same, when the stream is captured while the second layer says that it is computed."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        captured = ".1." in layer_name
        with driver().capturing(self._stream) if captured else contextlib.nullcontext():
            super().save_kv_layer(layer_name, kv_layer, attn_metadata, **kwargs)

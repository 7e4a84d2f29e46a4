"""Where the engine's KV is, and how copies come after what the engine does with it.

On a GPU the engine's kernels are launched, not finished, when it asks for a copy: what a copy must come
after is told by the stream that they were given to."""

from __future__ import annotations

import logging
from typing import Any, Protocol

import rackline
from rackline.engines.settings import SettingsError
from rackline.vllm.cpu_layout import Piece, check_pieces, token_pieces
from rackline.vllm.layout import machine
from rackline.vllm.short_blocks import plain_piece
from rackline.vllm.statistics import RacklineStats

logger = logging.getLogger(__name__)


class Device(Protocol):
    gpu: int | None
    """Number of the GPU, as CUDA counts in this process; ``None`` for the CPU."""

    def open(self, pool: rackline.Pool) -> None:
        """Makes it ready for copies to and from the pool."""

    def kernels(self, vllm_config: Any, kv_caches: dict[str, Any]) -> str:
        """In words, what decides besides shape and order where the elements of a block are."""

    def pieces(self, vllm_config: Any, name: str, cache: Any, tokens: int) -> list[Piece]:
        """Where so many tokens are inside a head of a longer block of the cache of a layer."""

    def stream(self) -> int | None:
        """The stream that the engine gives its work to now; ``None`` on a CPU, which has done it."""

    def position(self) -> Any:
        """How far the engine's stream is filled now."""

    def stream_at(self, position: Any) -> int | None:
        """A stream that is done when the engine's stream has come to that position."""

    def count(self, stats: RacklineStats) -> None:
        """Adds what was copied since the last time."""


class Cpu:
    gpu: int | None = None

    def open(self, pool: rackline.Pool) -> None:
        pass

    def kernels(self, vllm_config: Any, kv_caches: dict[str, Any]) -> str:
        return machine()

    def pieces(self, vllm_config: Any, name: str, cache: Any, tokens: int) -> list[Piece]:
        layer = vllm_config.compilation_config.static_forward_context[name]
        # Only vLLM's own attention for CPUs tells its order.
        isa = getattr(layer, "isa", "of another attention backend")
        dtype, kv_dtype = vllm_config.model_config.dtype, vllm_config.cache_config.cache_dtype
        _, _, block_tokens, content = cache.shape
        pieces = token_pieces(isa, content // 2, block_tokens, tokens, cache.element_size())
        check_pieces(pieces, isa, dtype, kv_dtype, cache, tokens)
        return pieces

    def stream(self) -> int | None:
        return None

    def position(self) -> Any:
        return None

    def stream_at(self, position: Any) -> int | None:
        return None

    def count(self, stats: RacklineStats) -> None:
        pass


class Gpu:
    """An NVIDIA GPU."""

    def __init__(self, number: int) -> None:
        self.gpu: int | None = number
        self._opened: rackline.Gpu | None = None
        self._behind: Any = None
        """A stream that is given nothing but to wait."""
        self._counted: dict[str, int] = {}

    def open(self, pool: rackline.Pool) -> None:
        """Has the pool registered with the driver, piece by piece as it is used, or here where the process
        says so: minutes for a large one."""
        self._opened = opened = pool.gpu(self.gpu)
        # The first piece of the pool was registered by then.
        self._counted = dict.fromkeys(opened.figures(), 0)
        if opened.bounced_because is None:
            logger.info("Rackline: GPU %d copies: the pool is %s", self.gpu, opened.reach)
        else:
            logger.warning(
                "Rackline: GPU %d does not reach the pool directly: every block is copied once more by the "
                "CPU, through a buffer. The driver's reason: %s",
                self.gpu,
                opened.bounced_because,
            )
        if opened.summed_by_cpu_because is not None:
            logger.warning(
                "Rackline: the CPU computes the checksums of GPU %d's blocks: bytes that change between the "
                "GPU and the pool are not noticed, and transfers take longer. The reason: %s",
                self.gpu,
                opened.summed_by_cpu_because,
            )

    def kernels(self, vllm_config: Any, kv_caches: dict[str, Any]) -> str:
        # They agree on more than tensors say, such as which half of an element is K.
        layers = vllm_config.compilation_config.static_forward_context
        backends = {layers[name].get_attn_backend().get_name() for name in kv_caches}
        return " ".join(["cuda", *sorted(backends)])

    def pieces(self, vllm_config: Any, name: str, cache: Any, tokens: int) -> list[Piece]:
        return plain_piece(cache, tokens)

    def stream(self) -> int | None:
        import torch

        return torch.cuda.current_stream(self.gpu).cuda_stream

    def position(self) -> Any:
        import torch

        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.gpu))
        return event

    def stream_at(self, position: Any) -> int | None:
        import torch

        if self._behind is None:
            self._behind = torch.cuda.Stream(self.gpu)
        # A later position is not before an earlier one, so one stream serves all.
        self._behind.wait_event(position)
        return self._behind.cuda_stream

    def count(self, stats: RacklineStats) -> None:
        figures = self._opened.figures()
        more = {name: figures[name] - self._counted[name] for name in figures}
        self._counted = figures
        stats.count("gpu_bytes", more["stored_bytes"] + more["loaded_bytes"])
        stats.count("gpu_bounced_bytes", more["bounced_bytes"])
        stats.count("gpu_summed_bytes", more["gpu_summed_bytes"])
        stats.count("gpu_failed_blocks", more["failed_payloads"])
        stats.count("gpu_registrations", more["registrations"])
        stats.count("gpu_unregistrations", more["unregistrations"])
        stats.count("gpu_refused_registrations", more["refused_registrations"])
        stats.count("gpu_registrations_over_limit", more["registrations_over_limit"])
        stats.count("gpu_registering_us", more["registering_ns"] // 1000)


def device_of(kv_caches: dict[str, Any]) -> Device:
    """The one device of the caches of all layers."""
    devices = {cache.device for cache in kv_caches.values()}
    if len(devices) != 1:
        names = ", ".join(sorted(str(device) for device in devices)) or "none"
        raise SettingsError(f"the KV caches of the layers are not on one device, but on {names}")
    device = devices.pop()
    if device.type == "cpu":
        return Cpu()
    import torch

    if device.type != "cuda" or torch.version.hip is not None:
        raise SettingsError(
            f"the KV cache is on {device}{' (ROCm)' if device.type == 'cuda' else ''}: this connector "
            "copies from and to memory of the CPU and of NVIDIA GPUs only"
        )
    return Gpu(torch.cuda.current_device() if device.index is None else device.index)

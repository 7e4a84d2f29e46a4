"""Engines that differ in ranks and in blocks at once share KV: their caches as vLLM allocates them, the CPU's
written by vLLM's kernels, and a real pool. Every byte of the loading engine is compared."""

from __future__ import annotations

import dataclasses
import random
import types
import unittest
from typing import Any
from unittest import mock

import rackline
import torch
from rackline.vllm.device import Cpu
from rackline.vllm.identity import Identity
from rackline.vllm.messages import GroupLoad, SaveJob
from rackline.vllm.parts import Part, parts_of
from rackline.vllm.short_blocks import plain_piece
from region import Region
from test_heads import engine as configuration
from test_heads import settings
from vllm import _custom_ops as ops
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    create_kv_cache_views,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

HEADS, LAYERS = 8, 2
NAMES = [f"layers.{number}" for number in range(LAYERS)]


@dataclasses.dataclass(frozen=True)
class Shape:
    """What an engine differs in from others that it shares with."""

    ranks: int
    block_tokens: int
    kernel_tokens: int = 0
    """Of a block of the kernels, where those are shorter."""
    layout: str = "LBHNC"
    isa: str = ""
    """The order of the CPU's kernels; nothing for the order on a GPU."""


class PlainOrder(Cpu):
    """The CPU's memory, in the order that kernels of GPUs have."""

    def kernels(self, vllm_config: Any, kv_caches: dict[str, Any]) -> str:
        return "cuda FLASH_ATTN"

    def pieces(self, vllm_config: Any, name: str, cache: Any, tokens: int) -> Any:
        return plain_piece(cache, tokens)


class Engine:
    """The ranks of an engine of this shape, for ``kv``: ``[layer, token, head, content]``."""

    def __init__(self, shape: Shape, kv: torch.Tensor, stored_tokens: int, seed: int) -> None:
        self.shape, self._kv, self._stored = shape, kv, stored_tokens
        needed = -(-kv.shape[1] // shape.block_tokens)
        self._blocks = needed + 2
        self._ids = random.Random(seed).sample(range(self._blocks), needed)
        self.caches = [self._allocated() for _ in range(shape.ranks)]
        self.parts = [self._part(rank) for rank in range(shape.ranks)]

    def _spec(self) -> FullAttentionSpec:
        content, dtype = self._kv.shape[3], self._kv.dtype
        local = max(1, HEADS // self.shape.ranks)
        return FullAttentionSpec(
            block_size=self.shape.block_tokens,
            num_kv_heads=local,
            head_size=content // 2,
            dtype=dtype,
        )

    def _allocated(self) -> dict[str, torch.Tensor]:
        """The caches of a rank, as vLLM's views of one allocation."""
        spec, blocks = self._spec(), self._blocks
        page, layout = spec.page_size_bytes, KVCacheLayout[self.shape.layout]
        outermost_layers = layout.is_layer_compact
        inner = page // spec.num_kv_heads if layout is KVCacheLayout.BHLNC else page
        tensor = KVCacheTensor(
            size=LAYERS * blocks * page,
            layers=NAMES,
            layer_stride=page * blocks if outermost_layers else inner,
            block_stride=page if outermost_layers else LAYERS * page,
        )
        buffer = torch.zeros(tensor.size, dtype=torch.int8)
        kernel = self.shape.kernel_tokens or None
        views = create_kv_cache_views(buffer, spec, blocks, layout, tensor, kernel)
        return dict(zip(NAMES, views, strict=True))

    def _part(self, rank: int) -> Part:
        config = configuration(self.shape.ranks, rank, HEADS)
        config.model_config.dtype = self._kv.dtype
        config.cache_config = types.SimpleNamespace(
            block_size=self.shape.block_tokens, prefix_match_unit=None, cache_dtype="auto"
        )
        layers = {name: types.SimpleNamespace(isa=self.shape.isa) for name in NAMES}
        config.compilation_config = types.SimpleNamespace(static_forward_context=layers)
        caches = KVCacheConfig(self._blocks, [], [KVCacheGroupSpec(NAMES, self._spec())])
        told = settings(head_groups=HEADS, stored_block_tokens=self._stored)
        device = Cpu() if self.shape.isa else PlainOrder()
        with mock.patch("rackline.vllm.parts.identity_of", identity):
            (part,) = parts_of(config, caches, told, device, self.caches[rank]).values()
        return part

    def heads(self, rank: int) -> slice:
        first = rank * HEADS // self.shape.ranks
        return slice(first, first + max(1, HEADS // self.shape.ranks))

    def write(self, caches: dict[str, torch.Tensor], rank: int, count: int) -> None:
        """The first tokens, by the rank's kernels."""
        token = torch.arange(count)
        own = self.shape.block_tokens
        blocks = torch.tensor(self._ids)[token // own]
        for cache, kv in zip(caches.values(), self._kv, strict=True):
            kv = kv[:count, self.heads(rank)]
            if self.shape.isa:
                # As `CPUAttentionBackendImpl.do_kv_cache_update`.
                views = cache.view(len(cache), cache.shape[1], 2 * cache.shape[2], -1)
                keys, values = (half.contiguous() for half in kv.chunk(2, dim=2))
                slots = blocks * own + token % own
                told = (keys, values, *views.chunk(2, dim=2), slots, self.shape.isa)
                ops.cpu_attn_reshape_and_cache(*told)
            else:
                kernel = cache.shape[2]
                cache[blocks * (own // kernel) + token % own // kernel, :, token % kernel] = kv

    def numbers(self, count: int) -> list[int]:
        """Of its stored blocks in memory, in the order of the prompt."""
        steps = self.parts[0].steps
        return [self._ids[number // steps] * steps + number % steps for number in range(count)]

    def publish(self, hashes: list[bytes]) -> None:
        job = SaveJob(1, "one", 0, b"".join(hashes), 0, self.numbers(len(hashes)))
        for rank, part in enumerate(self.parts):
            self.write(self.caches[rank], rank, self._kv.shape[1])
            if part.stores:
                assert set(part.publish(job, None).wait().of_blocks()) == {"published"}

    def fetch(self, hashes: list[bytes], by_layers: bool = False) -> int:
        """Returns how many blocks every rank has."""
        valid = []
        for part in self.parts:
            handles = {}
            for share in part.shares:
                prefix = share.session.lookup(b"".join(hashes), hold=True).wait()
                if len(prefix) < len(hashes):
                    return len(prefix)
                handles[share.identity.place] = prefix.keyless_handles()
            load = GroupLoad(0, b"".join(hashes), handles, self.numbers(len(hashes)))
            valid.append(part.fetch(load, None, by_layers).wait().valid_blocks)
        return min(valid)

    def differing_ranks(self, count: int) -> list[int]:
        """Ranks whose memory is not as if they had computed the first tokens, and nothing else."""
        differing = []
        for rank, caches in enumerate(self.caches):
            right = self._allocated()
            self.write(right, rank, count)
            same = (torch.equal(caches[name], right[name]) for name in NAMES)
            differing += [] if all(same) else [rank]
        return differing


def identity(config: Any, caches: Any, given: Any, layout: str, length: int, group: Any, heads: Any):
    """As the connector's, of a model without files."""
    return Identity(
        model="the same", engine="vllm", block_tokens=group.block_tokens, dtype=layout,
        block_bytes=length, layers=LAYERS, head_dim=group.policy.layer.head_size,
        kv_heads=heads.of_model, heads=heads.numbers.start, head_groups=heads.groups,
    )  # fmt: skip


class UnequalLayouts(unittest.TestCase):
    def setUp(self) -> None:
        region = self.enterContext(Region("64MiB", "4KiB"))
        self.pool = self.enterContext(rackline.Pool(region.path, 0))
        self.rounds = 0

    def share(
        self, saving: Shape, loading: Shape, stored_tokens: int, blocks: int, kv: torch.Tensor
    ) -> tuple[Engine, int]:
        """The engine that loaded, and how many blocks it has. The prompt has ``blocks`` stored blocks, and
        two more tokens."""
        own = kv[:, : blocks * stored_tokens + 2]
        first = Engine(saving, own, stored_tokens, seed=1)
        second = Engine(loading, own, stored_tokens, seed=2)
        for each in (first, second):
            for part in each.parts:
                part.open(self.pool, settings())
        # Others than those of rounds before.
        self.rounds += 1
        hashes = [bytes([self.rounds, number]) * 16 for number in range(blocks)]
        first.publish(hashes)
        return second, second.fetch(hashes, by_layers=self.rounds % 2 == 0)

    def check(
        self, saving: Shape, loading: Shape, stored_tokens: int, blocks: int, kv: torch.Tensor
    ) -> None:
        with self.subTest(saving=saving, loading=loading, blocks=blocks):
            engine, found = self.share(saving, loading, stored_tokens, blocks, kv)
            self.assertEqual(found, blocks)
            self.assertEqual(engine.differing_ranks(blocks * stored_tokens), [])

    def kv(self, tokens: int, content: int, dtype: torch.dtype) -> torch.Tensor:
        dice = torch.Generator().manual_seed(tokens)
        return torch.randn(LAYERS, tokens, HEADS, content, generator=dice).to(dtype)

    def test_ranks_and_blocks_of_any_size_on_gpus(self) -> None:
        kv = self.kv(200, 6, torch.float16)
        for saving, loading, stored, blocks in [
            (Shape(8, 64), Shape(2, 16), 16, 7),
            (Shape(2, 16), Shape(8, 64, layout="BLHNC"), 16, 7),
            (Shape(1, 64, layout="BHLNC"), Shape(4, 16), 16, 9),
            (Shape(4, 64, kernel_tokens=16), Shape(1, 32, kernel_tokens=16), 32, 5),
            (Shape(4, 16), Shape(1, 64, kernel_tokens=32), 16, 6),
            (Shape(16, 64), Shape(8, 32), 32, 3),
            (Shape(8, 32), Shape(16, 64, kernel_tokens=32), 16, 5),
            (Shape(2, 48), Shape(2, 32), 16, 8),
        ]:
            self.check(saving, loading, stored, blocks, kv)

    def test_ranks_and_blocks_of_any_size_on_cpus(self) -> None:
        orders = [("vec", torch.float32), ("amx", torch.bfloat16)]
        for number, (saving, loading, blocks) in enumerate(
            [
                ((8, 64), (2, 32), 5),
                ((2, 32), (8, 64), 5),
                ((1, 128), (4, 64), 7),
                ((4, 32), (1, 128), 9),
                ((8, 96), (4, 128), 10),
                ((4, 128), (8, 96), 9),
                ((16, 64), (1, 96), 7),
            ]
        ):
            isa, dtype = orders[number % 2]
            kv = self.kv(330, 2 * 32, dtype)
            self.check(Shape(*saving, isa=isa), Shape(*loading, isa=isa), 32, blocks, kv)

    def test_another_order_of_the_kernels_would_show(self) -> None:
        """The control of the others: bytes of the one order, read in the other."""
        kv = self.kv(140, 2 * 32, torch.bfloat16)
        saving, loading = Shape(2, 128, isa="vec"), Shape(4, 64, isa="amx")
        engine, found = self.share(saving, loading, 32, 4, kv)
        # The words of an engine on a CPU tell the instruction set, which is one on this machine.
        self.assertEqual(found, 4)
        self.assertEqual(engine.differing_ranks(128), [0, 1, 2, 3])

    def test_engines_whose_stored_blocks_differ_find_nothing(self) -> None:
        kv = self.kv(140, 6, torch.float16)
        hashes = [bytes([200, number]) * 16 for number in range(2)]
        told = [(64, 32), (16, 32), (64, 16)]
        engines = [Engine(Shape(2, 64, kernel), kv, stored, seed=3) for kernel, stored in told]
        for each in engines:
            for part in each.parts:
                part.open(self.pool, settings())
        engines[0].publish(hashes)
        self.assertEqual([each.fetch(hashes) for each in engines], [2, 0, 0])


if __name__ == "__main__":
    unittest.main()

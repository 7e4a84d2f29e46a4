"""Which layout vLLM is asked for, what it answers, and in how many pieces blocks lie then: with vLLM's own allocation,
on tensors of the CPU. No engine on a GPU was seen with these layouts."""

from __future__ import annotations

import types
import unittest
from collections.abc import Iterator
from typing import Any
from unittest import mock

import models
import rackline
import torch
from cuda_driver import driver, mode
from rackline.vllm.asked_layout import asked_layout
from rackline.vllm.device import Gpu
from rackline.vllm.identity import Identity
from rackline.vllm.messages import GroupLoad, SaveJob
from rackline.vllm.parts import Part, parts_of
from region import Region
from test_failed_loads import GIVEN
from test_heads import engine, settings
from test_refusals import configured
from vllm.config import KVTransferConfig
from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import allocate_kv_cache

LAYERS, HEADS, TOKENS, HEAD = 4, 8, 16, 64
NAMES = [f"layers.{number}" for number in range(LAYERS)]
BLOCKS = 6
# What backends have, the first one first: any layout, FlashInfer on Blackwell, the CPU's.
ANY = [layout.name for layout in get_supported_kv_cache_layouts([])]
BLACKWELL, CPU = ["LBHNC", "BLHNC"], ["LBHNC"]


def configuration(ranks: int, *, mla: bool = False, **given: Any) -> Any:
    """vLLM's, of an engine whose model has equal layers, with these settings of the connector."""
    config = engine(ranks, 0, HEADS)
    told = {"num_key_value_heads": HEADS, "head_dim": HEAD}
    config.model_config = types.SimpleNamespace(
        use_mla=mla,
        is_hybrid=False,
        dtype=torch.float16,
        model_arch_config=types.SimpleNamespace(per_layer_overrides=None),
        hf_text_config=types.SimpleNamespace(to_dict=lambda: told),
        get_head_size=lambda: HEAD,
        get_total_num_kv_heads=lambda: HEADS,
        get_num_kv_heads=lambda parallel: 1 if mla else max(1, HEADS // ranks),
        get_num_layers=lambda parallel: LAYERS,
    )
    config.told = told
    config.cache_config = types.SimpleNamespace(
        block_size=TOKENS,
        user_specified_block_size=False,
        cache_dtype="auto",
        kv_cache_dtype_skip_layers=[],
        kv_cache_layout=None,
        num_gpu_blocks_override=None,
        prefix_match_unit=None,
        enable_prefix_caching=True,
        prefix_cache_retention_interval=None,
    )
    config.attention_config = types.SimpleNamespace(hisparse_config=None)
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="RacklineConnector",
        kv_connector_module_path="rackline.vllm",
        kv_role="kv_both",
        kv_connector_extra_config={**GIVEN, "blocks_together": True, **given},
    )
    return config


def spec(config: Any) -> Any:
    """Of each layer."""
    heads = config.model_config.get_num_kv_heads(config.parallel_config)
    told = dict(block_size=TOKENS, num_kv_heads=heads, head_size=HEAD, dtype=torch.float16)
    return MLAAttentionSpec(**told) if config.model_config.use_mla else FullAttentionSpec(**told)


def identity(config: Any, caches: Any, given: Any, layout: str, length: int, group: Any, heads: Any):
    """As the connector's, of a model without files."""
    return Identity(
        model="the same", engine="vllm", block_tokens=group.block_tokens, dtype=layout,
        block_bytes=length, layers=LAYERS, head_dim=HEAD, kv_heads=heads.of_model,
        heads=heads.numbers.start, head_groups=heads.groups,
    )  # fmt: skip


class OnGpu(Gpu):
    def kernels(self, vllm_config: Any, kv_caches: dict[str, Any]) -> str:
        return "cuda FLASH_ATTN"


class Rank:
    """The first rank of an engine whose caches vLLM has allocated in this layout."""

    def __init__(self, layout: str, ranks: int, windows: bool = False, **given: Any) -> None:
        """With ``windows`` every other layer has one, and blocks of its own in the same memory."""
        config = configuration(ranks, **given)
        groups = [KVCacheGroupSpec(NAMES, spec(config))]
        if windows:
            told = dict(block_size=TOKENS, num_kv_heads=1, head_size=HEAD, dtype=torch.float16)
            window = SlidingWindowSpec(**told, sliding_window=4 * TOKENS)
            groups = [KVCacheGroupSpec(NAMES[::2], spec(config)), KVCacheGroupSpec(NAMES[1::2], window)]
        resolved = KVCacheLayout[layout]
        config.cache_config.get_resolved_kv_cache_layout = lambda: resolved
        page = groups[0].kv_cache_spec.page_size_bytes
        memory = len(groups[0].layer_names) * BLOCKS * page
        caches = get_kv_cache_config_from_groups(config, groups, memory)
        assert caches.num_blocks == BLOCKS
        kernels = [TOKENS] * len(groups)
        self.caches = allocate_kv_cache(caches, torch.device("cpu"), resolved, kernels)
        storage = next(iter(self.caches.values())).untyped_storage()
        driver().has(storage.data_ptr(), storage.nbytes())
        given.pop("mla", None)
        made, self._cuts = rackline.BlockMemory, []

        def make(parts: list[tuple[int, int, int]], *more: Any, **options: Any) -> Any:
            each = len(parts) // options["cuts"]
            self._cuts += [parts[start : start + each] for start in range(0, len(parts), each)]
            return made(parts, *more, **options)

        with (
            mock.patch("rackline.vllm.parts.identity_of", identity),
            mock.patch("rackline.BlockMemory", make),
        ):
            self.part: Part = parts_of(config, caches, settings(**given), OnGpu(0), self.caches)[0]

    def pieces(self) -> list[int]:
        """Of each stored block: in how many pieces it lies."""
        return [
            1 + sum(before[0] + before[2] != after[0] for before, after in zip(cut, cut[1:]))
            for cut in self._cuts
        ]

    def fill(self) -> None:
        dice = torch.Generator().manual_seed(1)
        for cache in self.caches.values():
            cache.copy_(torch.randn(cache.shape, generator=dice))

    def publish(self, blocks: list[int]) -> set[str]:
        hashes = b"".join(bytes([block + 1]) * 32 for block in blocks)
        job = SaveJob(1, "one", 0, hashes, 0, blocks)
        return set(self.part.publish(job, driver().new_stream()).wait().of_blocks())

    def fetch(self, blocks: list[int]) -> int:
        hashes = b"".join(bytes([block + 1]) * 32 for block in blocks)
        handles = {}
        for share in self.part.shares:
            prefix = share.session.lookup(hashes, hold=True).wait()
            if len(prefix) < len(blocks):
                return len(prefix)
            handles[share.identity.place] = prefix.keyless_handles()
        load = GroupLoad(0, hashes, handles, blocks)
        return self.part.fetch(load, driver().new_stream(), False).wait().valid_blocks


class Asked(unittest.TestCase):
    def setUp(self) -> None:
        self.enterContext(mock.patch("vllm.platforms.current_platform.is_cuda", lambda: True))

    def test_blocks_lie_in_as_few_pieces_as_their_content_allows(self) -> None:
        for ranks, given, expected in [
            (8, {}, "BLHNC"),
            (16, {}, "BLHNC"),
            (1, {"head_groups": 8}, "BHLNC"),
            (2, {"head_groups": 8}, "BHLNC"),
            (1, {"head_groups": 1}, "BLHNC"),
            (4, {"head_groups": 4}, "BLHNC"),
            # Of a head group with some of a rank's heads each layer is a piece.
            (1, {"head_groups": 4}, "LBHNC"),
            # By default: head groups of four heads, as short as these blocks are.
            (1, {}, "LBHNC"),
            (2, {}, "BLHNC"),
            (2, {"head_groups": "ranks"}, "BLNHC"),
            (2, {"mla": True}, "BLHNC"),
            (2, {"mla": True, "head_groups": "ranks"}, "BLHNC"),
        ]:
            with self.subTest(ranks=ranks, **given):
                self.assertEqual(asked_layout(configuration(ranks, **given)), expected)

    def test_layers_lie_apart_where_nothing_is_gained_or_nothing_is_certain(self) -> None:
        def changed(place: str, **values: Any) -> Any:
            def change(config: Any) -> None:
                vars(getattr(config, place)).update(values)

            return change

        def says(**keys: Any) -> Any:
            return lambda config: config.told.update(keys)

        def drafts(config: Any) -> None:
            draft = types.SimpleNamespace(use_eagle=lambda: True, draft_model_config=object())
            config.speculative_config = draft

        apart = [
            ("layers are saved one by one", {"layerwise": "save"}, None),
            ("the user does not ask for it", {"blocks_together": False}, None),
            ("shorter blocks are stored", {"stored_block_tokens": 8}, None),
            ("kernels may divide blocks", {}, changed("cache_config", block_size=128, user_specified_block_size=True)),
            ("layers have other types", {}, changed("cache_config", kv_cache_dtype_skip_layers=["0"])),
            ("states", {}, changed("model_config", is_hybrid=True)),
            ("other heads in a layer", {}, says(swa_num_key_value_heads=4)),
            ("longer heads in a layer", {}, says(global_head_dim=512)),
            ("a draft in the blocks", {}, drafts),
        ]
        overrides = types.SimpleNamespace(per_layer_overrides=[{}, {"head_size": 256}])
        apart.append(("layers differ", {}, changed("model_config", model_arch_config=overrides)))
        for why, given, change in apart:
            for by_ranks, expected in [({}, "LBHNC"), ({"head_groups": "ranks"}, None)]:
                with self.subTest(why, **by_ranks):
                    config = configuration(8, **given, **by_ranks)
                    if change is not None:
                        change(config)
                    self.assertEqual(asked_layout(config), expected)
        indexed = configuration(8, mla=True)
        self.assertEqual(asked_layout(indexed), "BLHNC")
        indexed.told.update(index_topk=2048)
        self.assertIsNone(asked_layout(indexed))
        own = configuration(8)
        vars(own.cache_config).update(block_size=64, user_specified_block_size=True)
        self.assertEqual(asked_layout(own), "BLHNC")
        with mock.patch("vllm.platforms.current_platform.is_cuda", lambda: False):
            self.assertEqual(asked_layout(configuration(8)), "LBHNC")
            self.assertIsNone(asked_layout(configuration(8, mla=True)))

    def test_what_vllm_itself_says_of_models(self) -> None:
        transfer = configuration(1).kv_transfer_config
        drafts = {"model": models.eagle(), "method": "eagle", "num_speculative_tokens": 2}
        for model, options, expected in [
            (models.tiny, {}, "BLHNC"),
            (models.tiny, {"block_size": 128}, "LBHNC"),
            (models.tiny, {"speculative_config": drafts}, "LBHNC"),
            (models.latent, {"block_size": 16}, "BLHNC"),
            (models.chunked, {}, "BLHNC"),
            (models.linear, {}, "LBHNC"),
        ]:
            with self.subTest(model=model.__name__, **options):
                with mock.patch("vllm.platforms.current_platform.is_cuda", lambda: False):
                    config = configured(model(), kv_transfer_config=transfer, **options)
                self.assertEqual(asked_layout(config), expected)

    def test_what_vllm_answers(self) -> None:
        """A backend that lacks the layout has its own first one, as without the connector: with the heads of a
        block apart on Blackwell and on a CPU."""
        for ranks, given, supported, expected in [
            (8, {}, ANY, "BLHNC"),
            (8, {}, BLACKWELL, "BLHNC"),
            (8, {}, CPU, "LBHNC"),
            (1, {"head_groups": 8}, ANY, "BHLNC"),
            (1, {"head_groups": 8}, BLACKWELL, "LBHNC"),
            (2, {"head_groups": "ranks"}, ANY, "BLNHC"),
            (2, {"head_groups": "ranks"}, BLACKWELL, "LBHNC"),
            (2, {"mla": True}, ANY, "BLHNC"),
        ]:
            with self.subTest(ranks=ranks, supported=supported, **given):
                config = configuration(ranks, **given)
                layout = resolve_kv_cache_layout(config, [supported] * ranks, [spec(config)])
                self.assertEqual(layout.name, expected)


class Pieces(unittest.TestCase):
    """Of blocks that vLLM allocated."""

    def shapes(self) -> Iterator[tuple[str, str, int, dict[str, Any], int]]:
        """The layout before, the one that is asked for, ranks, settings, and stored blocks of a block."""
        yield "LBHNC", "BLHNC", 8, {}, 1
        yield "LBHNC", "BHLNC", 1, {"head_groups": 8}, 8
        yield "LBHNC", "BLHNC", 1, {"head_groups": 1}, 1
        yield "LBHNC", "BLHNC", 4, {"head_groups": 4}, 1
        yield "LBNHC", "BLNHC", 2, {"head_groups": "ranks"}, 1
        yield "LBNHC", "BLHNC", 2, {"mla": True}, 1
        # A backend that packs heads, or a model whose heads are not certain.
        yield "LBHNC", "BHLNC", 1, {"head_groups": "ranks"}, 1

    def test_a_stored_block_is_one_piece_instead_of_one_for_each_layer(self) -> None:
        for before, asked, ranks, given, stored in self.shapes():
            with self.subTest(before=before, asked=asked, ranks=ranks, **given):
                self.assertEqual(Rank(before, ranks, **given).pieces(), [LAYERS] * stored)
                whole = [HEADS * LAYERS] if (asked, stored) == ("BHLNC", 1) else [1] * stored
                self.assertEqual(Rank(asked, ranks, **given).pieces(), whole)

    def test_so_it_is_in_each_of_several_groups(self) -> None:
        self.assertEqual(Rank("LBHNC", 8, windows=True).pieces(), [LAYERS // 2] * 2)
        self.assertEqual(Rank("BLHNC", 8, windows=True).pieces(), [1] * 2)

    def test_engines_of_both_layouts_share_blocks(self) -> None:
        """The words of their layouts are equal, and so are the bytes."""
        for before, asked, ranks, given, _ in self.shapes():
            for saving, loading in ((before, asked), (asked, before)):
                with self.subTest(saving=saving, loading=loading, ranks=ranks, **given):
                    self.share(Rank(saving, ranks, **given), Rank(loading, ranks, **given))

    def share(self, first: Rank, second: Rank) -> None:
        self.assertEqual(first.part.identity, second.part.identity)
        first.fill()
        with Region("16MiB", "4KiB") as region, rackline.Pool(region.path, 0) as pool:
            pool.gpu(0)
            for rank in (first, second):
                rank.part.open(pool, settings())
            blocks = list(range(BLOCKS))
            self.assertEqual(first.publish(blocks), {"published"})
            self.assertEqual(second.fetch(blocks), BLOCKS)
            for name in NAMES:
                self.assertTrue(torch.equal(first.caches[name], second.caches[name]))

    def test_a_gpu_copies_a_block_at_once(self) -> None:
        """The stand-in's driver takes no batches. Where a block is one piece it is asked for none."""
        for layout, outcome in (("BLHNC", "published"), ("LBHNC", "copy")):
            with self.subTest(layout), Region("16MiB", "4KiB") as region:
                rank = Rank(layout, 8)
                rank.fill()
                with rackline.Pool(region.path, 0) as pool:
                    pool.gpu(0)
                    rank.part.open(pool, settings())
                    with mode("fail:cuMemcpyBatchAsync:1"):
                        self.assertEqual(rank.publish([2]), {outcome})


if __name__ == "__main__":
    unittest.main()

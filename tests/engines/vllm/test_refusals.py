"""What is refused at start, and what makes blocks those of another engine: by vLLM's own configuration,
without an engine."""

from __future__ import annotations

import dataclasses
import types
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from models import latent, tiny
from rackline.engines.settings import SettingsError
from rackline.vllm.groups import Groups
from rackline.vllm.heads import Heads
from rackline.vllm.identity import configuration_digest, identity_of
from rackline.vllm.layout import blocks_in_memory
from rackline.vllm.settings import Settings, check_engine
from vllm.config import KVTransferConfig
from vllm.config.compilation import CUDAGraphMode
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

GIVEN = {"region": "/dev/shm/none", "node": 0}
HEADS = dict(block_size=32, num_kv_heads=2, head_size=64, dtype=torch.float32)
FULL = FullAttentionSpec(**HEADS)
WINDOW = SlidingWindowSpec(**HEADS, sliding_window=64)
STATE = dict(block_size=32, shapes=((4, 64), (8, 8)), dtypes=(torch.float32, torch.float32))


def configured(model: str | None = None, **options: Any) -> Any:
    """vLLM's configuration of an engine with the connector."""
    transfer = KVTransferConfig(
        kv_connector="RacklineConnector", kv_connector_module_path="rackline.vllm", kv_role="kv_both"
    )
    told = dict(skip_tokenizer_init=True, async_scheduling=False, block_size=32)
    arguments = EngineArgs(
        model or tiny(), **{**told, "kv_transfer_config": transfer, **options}
    )
    return arguments.create_engine_config()


def caches(*specs: Any) -> Any:
    groups = [KVCacheGroupSpec([f"layers.{number}"], spec) for number, spec in enumerate(specs)]
    return KVCacheConfig(8, [], groups)


class Layouts(unittest.TestCase):
    def test_the_number_of_blocks_is_not_part_of_the_layout(self) -> None:
        """Also where a kernel has two blocks of its own in one of the engine's."""

        def words(blocks: int, pieces: int, apart: bool = False) -> str:
            shape = (blocks * pieces, 16, 2, 32)
            cache = torch.zeros(2, *shape) if apart else torch.zeros(shape)
            return blocks_in_memory({"layers.0.attn": cache}, blocks)[1]

        for pieces in (1, 2):
            for apart in (False, True):
                with self.subTest(pieces=pieces, apart=apart):
                    said = {words(blocks, pieces, apart) for blocks in (6, 10, 16, 32)}
                    self.assertEqual(len(said), 1, said)
        self.assertEqual(len({words(6, 1), words(6, 2), words(6, 1, True), words(6, 2, True)}), 4)

    def test_which_layers_are_quantized_is_part_of_the_layout(self) -> None:
        """With ``--kv-cache-dtype-skip-layers`` blocks of the same length have other contents."""

        def words(*dtypes: torch.dtype) -> str:
            layers = {
                f"layers.{number}.attn": torch.zeros((6, 16, 2, 32), dtype=dtype)
                for number, dtype in enumerate(dtypes)
            }
            return blocks_in_memory(layers, 6)[1]

        wide, narrow = torch.float16, torch.uint8
        said = [words(wide, narrow, narrow), words(narrow, wide, narrow), words(narrow, narrow, wide)]
        said += [words(narrow, narrow, narrow), words(wide, wide, wide)]
        self.assertEqual(len(set(said)), len(said), said)


class Refusals(unittest.TestCase):
    def check(self, config: Any = None, *specs: Any, **settings: Any) -> None:
        given = Settings.of({**GIVEN, **settings})
        check_engine(configured() if config is None else config, caches(*(specs or [FULL])), given)

    def assert_refused(self, text: str, *arguments: Any, **settings: Any) -> None:
        with self.assertRaisesRegex(SettingsError, text):
            self.check(*arguments, **settings)

    def test_what_is_served(self) -> None:
        self.check()
        self.check(None, dataclasses.replace(FULL, sliding_window=64))
        self.check(None, dataclasses.replace(FULL, attention_chunk_size=64))
        self.check(configured(enable_prefix_caching=False))
        for settings in [dict(load="sync"), dict(load="sync", layerwise="both")]:
            self.check(None, **settings)

    def test_engines(self) -> None:
        def with_parallel(**sizes: int) -> Any:
            told = dict(decode_context_parallel_size=1, pipeline_parallel_size=1) | sizes
            changed = dict(parallel_config=types.SimpleNamespace(**told), max_concurrent_batches=1)
            return types.SimpleNamespace(**{**vars(configured()), **changed})

        for sizes, text in [
            (dict(decode_context_parallel_size=2), "decode context parallelism"),
            (dict(prefill_context_parallel_size=2), "prefill context parallelism"),
        ]:
            self.assert_refused(text, with_parallel(**sizes))
        self.check(with_parallel(pipeline_parallel_size=2))
        by_layers = dict(load="sync", layerwise="both")
        micro = with_parallel(use_ubatching=True)
        self.assert_refused("micro-batches", micro, **by_layers)
        self.check(with_parallel(use_ubatching=True), load="sync", layerwise="load")
        drafts = configured(
            speculative_config=dict(method="draft_model", model=tiny(), num_speculative_tokens=2)
        )
        self.assert_refused("speculative decoding", drafts, **by_layers)
        self.check(drafts)
        of_stages = with_parallel(pipeline_parallel_size=2)
        of_stages.speculative_config = drafts.speculative_config
        of_stages.use_v2_model_runner = False
        self.assert_refused("tells only the last stage", of_stages)
        of_stages.use_v2_model_runner = True
        self.check(of_stages)
        quantized = configured()
        quantized.model_config.quantization = "fp8"
        self.assert_refused("quantized", quantized, **by_layers)
        self.check(quantized, load="sync", layerwise="save")
        for graphs, cut in [("FULL", False), ("FULL_AND_PIECEWISE", False), ("PIECEWISE", True)]:
            on_gpu = configured()
            on_gpu.device_config.device_type = "cuda"
            on_gpu.compilation_config.cudagraph_mode = CUDAGraphMode[graphs]
            self.check(on_gpu)
            for layerwise, load in [("load", "sync"), ("save", "async"), ("both", "sync")]:
                by_each = dict(layerwise=layerwise, load=load)
                if cut:
                    self.check(on_gpu, **by_each)
                else:
                    self.assert_refused("set cudagraph_mode to PIECEWISE", on_gpu, **by_each)
        ahead = types.SimpleNamespace(**vars(configured()), max_concurrent_batches=2)
        self.assert_refused("schedules steps ahead", ahead, load="sync")
        self.check(ahead)
        self.assert_refused("random seed", configured(prefix_caching_hash_algo="xxhash"))
        adapters = configured(enable_lora=True)
        self.assert_refused("LoRA", adapters)
        self.check(adapters, lora_same_everywhere=True)
        changing = configured()
        changing.weight_transfer_config = object()
        self.assert_refused("change its weights while it runs", changing)

    def test_what_a_model_keeps(self) -> None:
        class Derived(FullAttentionSpec):
            pass

        state = MambaSpec(**STATE, mamba_cache_mode="align")
        chunk = ChunkedLocalAttentionSpec(**HEADS, attention_chunk_size=64)
        latent_window = SlidingWindowMLASpec(**HEADS, sliding_window=64)
        for served in [(WINDOW,), (state,), (FULL, WINDOW), (FULL, chunk), (WINDOW, FULL, state)]:
            self.check(None, *served)
            self.assert_refused("synchronous load failed", None, *served, load="sync")
            by_layers = dict(layerwise="save")
            self.assert_refused("Layers are loaded and saved one by one", None, *served, **by_layers)
        self.check(None, MLAAttentionSpec(**{**HEADS, "num_kv_heads": 1}), latent_window)
        self.assert_refused("Derived", None, Derived(**HEADS))
        self.assert_refused("Derived", None, WINDOW, Derived(**HEADS))
        self.assert_refused("not causal", None, dataclasses.replace(FULL, non_causal=True))
        ring = CircularBufferSpec(**HEADS)
        self.assert_refused("CircularBufferSpec", None, FULL, ring)
        replayed = dataclasses.replace(latent_window, bounded_replay=True)
        self.assert_refused("SlidingWindowMLASpec", None, FULL, replayed)
        self.assert_refused("enable-prefix-caching", None, FULL, MambaSpec(**STATE))
        drafts = dataclasses.replace(state, num_speculative_blocks=2)
        self.assert_refused("states of drafts", None, FULL, drafts)
        mixed = UniformTypeKVCacheSpecs(block_size=32, kv_cache_specs={"a": FULL, "b": WINDOW})
        self.assert_refused("keep different tokens", None, mixed)

    def test_engines_that_cannot_go_on_behind_cached_blocks(self) -> None:
        pooling = dict(runner="pooling", convert="embed")
        mean = configured(**pooling, pooler_config=dict(pooling_type="MEAN"))
        self.assert_refused("all tokens in one step", mean)
        self.check(configured(**pooling, pooler_config=dict(pooling_type="LAST")))
        bare = configured(latent(), attention_backend="CPU_MLA")
        bare.cache_config.enable_prefix_caching = False
        compressed = MLAAttentionSpec(**{**HEADS, "num_kv_heads": 1})
        self.assert_refused("MLA attention", bare, compressed)
        off = configured(enable_prefix_caching=False)
        with mock.patch("vllm.envs.VLLM_BATCH_INVARIANT", True, create=True):
            self.assert_refused("VLLM_BATCH_INVARIANT", off)
            self.check()

    def test_images_that_are_told_apart_by_a_number(self) -> None:
        def with_images(cache_gb: float, **options: Any) -> Any:
            config = configured(**options)
            images = types.SimpleNamespace(mm_processor_cache_gb=cache_gb)
            config.model_config.multimodal_config = images
            return config

        self.assert_refused("numbers images", with_images(0, enable_prefix_caching=False))
        self.check(with_images(0))
        self.check(with_images(4, enable_prefix_caching=False))

    def test_settings(self) -> None:
        for wrong, text in [
            (dict(node=65536), "65535 at most"),
            (dict(load="later"), '"async" or "sync"'),
            (dict(layerwise="yes"), '"off", "load", "save" or "both"'),
            (dict(layerwise="load"), 'set "load" to "sync"'),
            (dict(hold_ms=1), "at least 1000"),
            (dict(lookup_timeout_ms="1"), "not of type int"),
            (dict(lookup_wait_ms=-1), "too small"),
            (dict(nodes=1), "unknown settings"),
            (dict(head_groups="heads"), '"auto", "ranks" or a number from 1'),
            (dict(head_groups=0), '"auto", "ranks" or a number from 1'),
            (dict(head_groups=2.5), '"auto", "ranks" or a number from 1'),
            (dict(head_groups=129, event_records=True), "128 at most"),
        ]:
            with self.subTest(wrong), self.assertRaisesRegex(SettingsError, text):
                Settings.of({**GIVEN, **wrong})


class Identities(unittest.TestCase):
    def fingerprint(self, change: Callable[[Any], None] = lambda _: None, **options: Any) -> str:
        config = configured(**options)
        change(config)
        settings = Settings.of({**GIVEN, "model_id": "the same"})
        (group,) = Groups.of(config, caches(FULL), 0).groups
        heads = Heads.of_rank(config, FULL, 2, "no cache is there")
        identity = identity_of(config, caches(FULL), settings, "rows", 1 << 16, group, heads)
        return identity.model_of_session().fingerprint

    def test_is_the_same_for_equal_engines(self) -> None:
        same = [
            {},
            # Neither what only sets how much fits, nor what only sets when it is computed.
            dict(max_model_len=512),
            dict(max_num_batched_tokens=256),
            dict(gpu_memory_utilization=0.5),
            dict(seed=7),
        ]
        self.assertEqual(len({self.fingerprint(**options) for options in same}), 1)

    def test_is_another_for_other_bytes(self) -> None:
        """Whatever name the user gave the weights."""
        yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=512, rope_theta=1e4)
        longrope = dict(
            rope_type="longrope", short_factor=[1.0] * 32, long_factor=[2.0] * 32,
            original_max_position_embeddings=512, rope_theta=1e4,
        )  # fmt: skip
        longest = dict(hf_overrides=dict(rope_parameters=longrope))
        of_kinds = dict(full_attention=longrope, sliding_attention=longrope)
        longest_of_kinds = dict(hf_overrides=dict(rope_parameters=of_kinds))

        def quantized(config: Any) -> None:
            config.model_config.quantization = "fp8"

        def images(**options: Any) -> Callable[[Any], None]:
            def change(config: Any) -> None:
                config.model_config.multimodal_config = types.SimpleNamespace(**options)

            return change

        def loader(config: Any) -> None:
            config.load_config.model_loader_extra_config = {"tensorizer_uri": "s3://elsewhere"}

        others: list[tuple[Callable[[Any], None], dict[str, Any]]] = [
            (lambda _: None, options)
            for options in [
                {},
                dict(hf_overrides=dict(rope_parameters=yarn)),
                {**longest, "max_model_len": 512},
                {**longest, "max_model_len": 1024},
                {**longest_of_kinds, "max_model_len": 512},
                {**longest_of_kinds, "max_model_len": 1024},
                dict(model_impl="transformers"),
                dict(hf_overrides=dict(rms_norm_eps=1e-6)),
                dict(dtype="float32"),
                dict(kv_cache_dtype="fp8_e5m2"),
                dict(prefix_caching_hash_algo="sha256_cbor"),
                dict(load_format="dummy"),
                dict(load_format="dummy", seed=7),
                dict(load_format="pt"),
                dict(speculative_config=dict(method="draft_model", model=tiny(), num_speculative_tokens=2)),
            ]
        ]
        others += [(quantized, {}), (loader, {})]
        others += [(images(mm_processor_kwargs={"size": 1}), {}), (images(video_pruning_rate=0.5), {})]
        found = [self.fingerprint(change, **options) for change, options in others]
        self.assertEqual(len(set(found)), len(others), found)

    def test_parts_of_a_model_are_apart(self) -> None:
        """The same bytes in another group, of other layers or with another window are other blocks."""
        config, settings = configured(), Settings.of({**GIVEN, "model_id": "the same"})

        def fingerprints(*specs: Any, stages: int = 1) -> list[str]:
            config.parallel_config.pipeline_parallel_size = stages
            given, found = caches(*specs), []
            for group in Groups.of(config, given, 0).groups:
                heads = Heads.of_rank(config, group.policy.layer, 2, "no cache is there")
                identity = identity_of(config, given, settings, "rows", 1 << 16, group, heads)
                found.append(identity.model_of_session().fingerprint)
            return found

        wider = dataclasses.replace(WINDOW, sliding_window=128)
        state = MambaSpec(**STATE, mamba_cache_mode="align")
        found = [
            *fingerprints(FULL), *fingerprints(FULL, stages=2), *fingerprints(WINDOW, WINDOW),
            *fingerprints(wider), *fingerprints(state),
            *fingerprints(dataclasses.replace(state, shapes=((8, 32), (8, 8)))),
        ]  # fmt: skip
        self.assertEqual(len(set(found)), len(found), found)

    def test_tells_where_a_model_was_loaded_from_from_what_it_is(self) -> None:
        config = configured()
        before = configuration_digest(config)
        config.model_config.hf_config._name_or_path = "/elsewhere"
        self.assertEqual(configuration_digest(config), before)


if __name__ == "__main__":
    unittest.main()

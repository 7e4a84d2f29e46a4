"""Which heads a rank has, and that ranks of any number share blocks by them: the rules, and the bytes in a
pool, without an engine."""

from __future__ import annotations

import dataclasses
import math
import mmap
import random
import types
import unittest
from collections.abc import Iterator
from typing import Any
from unittest import mock

import rackline
import torch
from rackline.engines.settings import SettingsError
from rackline.vllm.connector import RacklineConnector
from rackline.vllm.device import Cpu
from rackline.vllm.heads import (
    SHORTEST_BYTES,
    Heads,
    head_groups_of,
    heads_each,
    heads_of,
    heads_of_model,
)
from rackline.vllm.identity import Identity
from rackline.vllm.messages import GroupLoad, SaveJob
from rackline.vllm.parts import Part, parts_of
from rackline.vllm.settings import Settings
from region import Region
from test_failed_loads import ENGINE, GIVEN
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

BLOCKS, TOKENS, HEAD = 6, 4, 2
SIZES = (1, 2, 4, 8, 16, 32)


def engine(ranks: int, rank: int = 0, heads: int = 1, **configuration: Any) -> Any:
    """vLLM's configuration of a rank, of a model with so many KV heads."""
    told = {"num_key_value_heads": heads, "rope_parameters": {"factor": 2}, **configuration}
    model = types.SimpleNamespace(
        get_total_num_kv_heads=lambda: heads,
        model_arch_config=types.SimpleNamespace(per_layer_overrides=None),
        hf_text_config=types.SimpleNamespace(to_dict=lambda: told),
    )
    parallel = types.SimpleNamespace(
        tensor_parallel_size=ranks,
        pipeline_parallel_size=1,
        decode_context_parallel_size=1,
        rank=rank,
    )
    return types.SimpleNamespace(
        **{
            **vars(ENGINE),
            "model_config": model,
            "parallel_config": parallel,
            "speculative_config": None,
        }
    )


def layer(heads: int, **more: Any) -> FullAttentionSpec:
    told = dict(block_size=TOKENS, num_kv_heads=heads, head_size=HEAD, dtype=torch.float32)
    return FullAttentionSpec(**{**told, **more})


def local(of_model: int, ranks: int) -> int:
    """Heads of a rank, as vLLM divides them."""
    return max(1, of_model // ranks)


def settings(**more: Any) -> Settings:
    return Settings.of({**GIVEN, **more})


def cache(heads: int, pieces: int = 1) -> torch.Tensor:
    return torch.zeros(BLOCKS * pieces, heads, TOKENS // pieces, 2 * HEAD)


class Rules(unittest.TestCase):
    def heads(self, of_model: int, ranks: int, rank: int, groups: int) -> Heads:
        have = local(of_model, ranks)
        config = engine(ranks, rank, of_model)
        told = settings(head_groups=groups)
        return heads_of(config, layer(have), told, {"layers.0": cache(have)}, BLOCKS)

    def test_ranks_of_any_number_have_the_same_head_groups(self) -> None:
        """Each stored once; those of a rank are the heads that vLLM gives it."""
        fits = [(of, ranks) for of in (1, 2, 3, 4, 8, 10, 16, 40) for ranks in SIZES]
        for of_model, ranks in fits:
            if max(of_model, ranks) % min(of_model, ranks):
                continue  # vLLM refuses it.
            for groups in (each for each in range(1, of_model + 1) if of_model % each == 0):
                with self.subTest(of_model=of_model, ranks=ranks, groups=groups):
                    self.check(of_model, ranks, groups)

    def check(self, of_model: int, ranks: int, groups: int) -> None:
        have, each = local(of_model, ranks), of_model // groups
        stored: list[int] = []
        for rank in range(ranks):
            found = self.heads(of_model, ranks, rank, groups)
            self.assertTrue(found.divided)
            self.assertEqual(found.of_model, of_model)
            if have % each:
                # The heads of the ranks, one group for those that have the same.
                self.assertEqual((found.each, found.groups), (have, of_model // have))
            else:
                self.assertEqual((found.each, found.groups), (each, groups))
            first = rank * of_model // ranks
            self.assertEqual(found.numbers.start * found.each, first)
            self.assertEqual(len(found.numbers) * found.each, have)
            stored += found.numbers if found.stores else []
        self.assertEqual(stored, list(range(found.groups)))

    def test_the_number_of_head_groups_by_default(self) -> None:
        """It depends on the model and the length of its blocks, and not on the ranks."""
        long = SHORTEST_BYTES
        for of_model, head_bytes, groups in [
            (1, 1, 1), (2, long, 2), (3, 1, 3), (4, long, 4), (8, long, 8), (8, 10 * long, 8),
            (10, long, 2), (16, long // 2, 8), (40, long, 8), (5, long, 5), (9, long, 1),
            # As short as that: half as many, and again.
            (8, long - 1, 4), (8, 3 * long // 4, 4), (8, long // 4, 2), (8, 1, 1), (2, long // 2, 1),
            (16, long // 4, 4),
        ]:  # fmt: skip
            for ranks in SIZES:
                if ranks > of_model or of_model % ranks:
                    continue
                with self.subTest(of_model=of_model, head_bytes=head_bytes, ranks=ranks):
                    found = head_groups_of(of_model, "auto", head_bytes)
                    self.assertEqual(found, groups)
                    have, each = of_model // ranks, of_model // groups
                    own = heads_each(of_model, have, groups)
                    self.assertEqual(own, have if have % each else each)

    def test_layers_that_share_a_cache_count_once(self) -> None:
        """Of two layers a head has just enough bytes for two head groups."""
        tokens = SHORTEST_BYTES // 2 // (2 * HEAD * 4)
        one, other = (torch.zeros(BLOCKS, 2, tokens, 2 * HEAD) for _ in range(2))
        spec = layer(2, block_size=tokens)
        for caches, groups in [
            ({"layers.0": one, "layers.1": other}, 2),
            ({"layers.0": one, "layers.1": one}, 1),
        ]:
            found = heads_of(engine(1), spec, settings(), caches, BLOCKS)
            self.assertEqual(found.groups, groups)

    def test_a_number_that_does_not_divide_the_heads_is_refused(self) -> None:
        with self.assertRaisesRegex(SettingsError, "set a number that divides 8"):
            head_groups_of(8, "3", SHORTEST_BYTES)

    def test_blocks_that_are_not_divided(self) -> None:
        whole = {"layers.0": cache(2)}
        tokens_first = torch.zeros(BLOCKS, TOKENS, 2, 2 * HEAD).transpose(1, 2)
        state = MambaSpec(
            block_size=TOKENS, shapes=((4, 8),), dtypes=(torch.float32,), mamba_cache_mode="align"
        )
        unequal = UniformTypeKVCacheSpecs(
            block_size=TOKENS, kv_cache_specs={"layers.0": layer(2), "layers.1": layer(4)}
        )
        of_both = {"layers.0": cache(2), "layers.1": cache(4)}
        for why, spec, caches, more in [
            ('"ranks"', layer(2), whole, {"head_groups": "ranks"}),
            ("packs heads", layer(2, num_head_slots=2), whole, {}),
            ("bytes of each token", layer(2, kv_quant_mode=KVQuantMode.NVFP4), whole, {}),
            ("different numbers of KV heads", unequal, of_both, {}),
            ("states", state, whole, {}),
            ("no layout", layer(2), {"layers.0": tokens_first}, {}),
            ("no layout", layer(2), {"layers.0": torch.zeros(2, BLOCKS, 2, TOKENS, HEAD)}, {}),
            ("no layout", layer(2), {"layers.0": cache(4)}, {}),
        ]:
            with self.subTest(why):
                found = heads_of(engine(4, 3, 8), spec, settings(**more), caches, BLOCKS)
                self.assertIn(why, found.why_undivided)
                self.assertEqual((found.divided, found.groups, found.numbers), (False, 4, range(3, 4)))
                self.assertTrue(found.stores)

    def test_latent_blocks_are_those_of_all_ranks(self) -> None:
        told = dict(block_size=TOKENS, num_kv_heads=1, head_size=8, dtype=torch.float32)
        for rank in range(2):
            found = heads_of(
                engine(2, rank), MLAAttentionSpec(**told), settings(), {"layers.0": cache(1)}, BLOCKS
            )
            self.assertEqual((found.groups, found.numbers, found.stores), (1, range(1), rank == 0))
            self.assertEqual((found.divided, found.why_undivided), (False, ""))

    def test_a_head_is_taken_for_that_of_another_rank_where_that_is_certain(self) -> None:
        """VLLM-H2: a rank with one head of a layer may have one of as many as there are ranks."""
        one = [layer(1)]
        overrides = types.SimpleNamespace(per_layer_overrides=[{}, {"total_num_kv_heads": 8}])
        self.assertEqual(heads_of_model(engine(8, heads=4), one), 4)
        # No count of heads.
        falcon = dict(multi_query=True, num_kv_heads=None, kv_head_bias=False)
        self.assertEqual(heads_of_model(engine(8, heads=4, **falcon), one), 4)
        # As MiMo's, with other heads in its windows.
        mimo = {"swa_num_key_value_heads": 8}
        others = [
            {"nested": {"layers": [{"num_kv_heads": 2}]}},
            {"num_attention_groups": [4, 8]},
            {"attn_config": {"kv_n_heads": 8}},
            {"block_configs": [{"attention": {"n_heads_in_group": 8}}]},
        ]
        for told in [mimo, *others]:
            with self.subTest(told):
                self.assertIsNone(heads_of_model(engine(8, heads=4, **told), one))
                # Each rank has another head, or vLLM would tell of two heads with half as many ranks.
                self.assertEqual(heads_of_model(engine(4, heads=4, **told), one), 4)
                self.assertEqual(heads_of_model(engine(2, heads=4, **told), [layer(2)]), 4)
        config = engine(8, heads=4)
        config.model_config.model_arch_config = overrides
        self.assertIsNone(heads_of_model(config, one))
        # The layers say it themselves.
        self.assertEqual(heads_of_model(engine(8, heads=4, **mimo), [layer(1, max_tp_shards=4)]), 4)
        # With more heads than ranks each had several.
        self.assertIsNone(heads_of_model(engine(8, heads=16), one))
        self.assertIsNone(heads_of_model(engine(8, heads=3), one))

    def test_a_draft_with_other_heads_leaves_ranks_apart(self) -> None:
        for of_draft, ranks_of_draft, expected in [(4, 8, 4), (2, 8, None), (4, 1, None)]:
            with self.subTest(of_draft=of_draft, ranks_of_draft=ranks_of_draft):
                config = engine(8, heads=4)
                config.speculative_config = types.SimpleNamespace(
                    use_eagle=lambda: True,
                    draft_model_config=engine(1, heads=of_draft).model_config,
                    draft_parallel_config=types.SimpleNamespace(
                        tensor_parallel_size=ranks_of_draft
                    ),
                )
                self.assertEqual(heads_of_model(config, [layer(1)]), expected)
        config.parallel_config.tensor_parallel_size = 2
        self.assertIsNone(heads_of_model(config, [layer(2)]))


class Asked(unittest.TestCase):
    """What the connector asks vLLM for."""

    def layout(self, mla: bool = False, **given: Any) -> str | None:
        config = types.SimpleNamespace(
            model_config=types.SimpleNamespace(use_mla=mla),
            kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config={**GIVEN, **given}),
        )
        return RacklineConnector.get_required_kvcache_layout(config)

    def test_heads_lie_apart_in_the_layout_that_vllm_is_asked_for(self) -> None:
        for given in ({}, {"head_groups": 4}, {"head_groups": "auto"}):
            told = KVCacheLayout[self.layout(**given)]
            # Heads outside of tokens, and tokens outside of their content.
            self.assertEqual(told.stride_order[-3:], (2, 3, 4))
        self.assertIsNone(self.layout(head_groups="ranks"))
        self.assertIsNone(self.layout(mla=True))


class Engine:
    """The ranks of an engine, with the KV of a model that all engines have."""

    def __init__(
        self, ranks: int, logical: torch.Tensor, *, pieces: int, block_outermost: bool, seed: int,
        **more: Any,
    ) -> None:  # fmt: skip
        self._ids = random.Random(seed).sample(range(BLOCKS), BLOCKS)
        self._logical = logical
        layers, _, heads, _, _ = logical.shape
        have = local(heads, ranks)
        self.caches: list[dict[str, torch.Tensor]] = []
        self.parts: list[Part] = []
        names = [f"layers.{number}" for number in range(layers)]
        group = KVCacheGroupSpec(names, layer(have))
        for rank in range(ranks):
            shape = (have, TOKENS // pieces, 2 * HEAD)
            if block_outermost:
                # All layers of a block together. vLLM divides no such blocks.
                assert pieces == 1
                memory = torch.zeros(BLOCKS, layers, *shape).transpose(0, 1)
            else:
                memory = torch.zeros(layers, BLOCKS * pieces, *shape)
            caches = dict(zip(names, memory, strict=True))
            config = engine(ranks, rank, heads)
            with mock.patch("rackline.vllm.parts.identity_of", identity):
                (part,) = parts_of(
                    config, KVCacheConfig(BLOCKS, [], [group]), settings(**more), Cpu(), caches
                ).values()
            self.caches.append(caches)
            self.parts.append(part)

    def heads(self, rank: int) -> slice:
        of_model, ranks = self._logical.shape[2], len(self.parts)
        first = rank * of_model // ranks
        return slice(first, first + local(of_model, ranks))

    def tensors(self, rank: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """For each layer and block what the rank has, and what the model has of its heads, as
        ``[heads, tokens, content]``."""
        for number, cache in enumerate(self.caches[rank].values()):
            blocks = cache.unflatten(0, (BLOCKS, -1))
            for block, place in enumerate(self._ids):
                # Kernel blocks behind one another have the tokens of the block.
                yield (
                    blocks[place].transpose(0, 1).flatten(1, 2),
                    self._logical[number, block, self.heads(rank)],
                )

    def fill(self) -> None:
        for rank, caches in enumerate(self.caches):
            for number, cache in enumerate(caches.values()):
                blocks = cache.unflatten(0, (BLOCKS, -1))
                pieces = blocks.shape[1]
                for block, place in enumerate(self._ids):
                    own = self._logical[number, block, self.heads(rank)]
                    blocks[place] = own.unflatten(1, (pieces, -1)).transpose(0, 1)

    def open(self, pool: rackline.Pool) -> None:
        for part in self.parts:
            part.open(pool, settings())

    def publish(self, hashes: list[bytes]) -> None:
        job = SaveJob(1, "one", 0, b"".join(hashes), 0, self._ids)
        for part in self.parts:
            if part.stores:
                assert set(part.publish(job, None).wait().of_blocks()) == {"published"}

    def fetch(self, hashes: list[bytes]) -> int:
        """Returns how many blocks the worst rank has."""
        return min(self.fetch_rank(part, hashes) for part in self.parts)

    def fetch_rank(self, part: Part, hashes: list[bytes]) -> int:
        """Returns how many blocks a rank has."""
        handles = {}
        for share in part.shares:
            prefix = share.session.lookup(b"".join(hashes), hold=True).wait()
            if len(prefix) < len(hashes):
                return len(prefix)
            handles[share.identity.place] = prefix.keyless_handles()
        load = GroupLoad(0, b"".join(hashes), handles, self._ids)
        return part.fetch(load, None, by_layers=False).wait().valid_blocks


def identity(config: Any, caches: Any, given: Any, layout: str, length: int, group: Any, heads: Any):
    """As the connector's, of a model without files."""
    return Identity(
        model="the same", engine="vllm", block_tokens=TOKENS, dtype=layout, block_bytes=length,
        layers=2, head_dim=HEAD, kv_heads=heads.of_model, heads=heads.numbers.start,
        head_groups=0 if heads.why_undivided else heads.groups,
        ranks=heads.groups if heads.why_undivided else 0,
    )  # fmt: skip


class Sharing(unittest.TestCase):
    def setUp(self) -> None:
        self.region = self.enterContext(Region("16MiB", "4KiB"))
        self.pool = self.enterContext(rackline.Pool(self.region.path, 0))
        self.hashes = [bytes([number]) * 32 for number in range(1, BLOCKS + 1)]

    def share(self, of_model: int, saving: int, loading: int, **more: Any) -> int:
        """Blocks that engines of so many ranks share; their bytes are compared."""
        dice = torch.Generator().manual_seed(1)
        logical = torch.rand(2, BLOCKS, of_model, TOKENS, 2 * HEAD, generator=dice)
        first = Engine(saving, logical, seed=1, **more)
        second = Engine(loading, logical, seed=2, **more)
        for each in (first, second):
            each.open(self.pool)
        first.fill()
        first.publish(self.hashes)
        found = second.fetch(self.hashes)
        # A later one of the same test finds none of these.
        self.hashes = [bytes([each[0] + BLOCKS]) * 32 for each in self.hashes]
        if found == BLOCKS:
            for rank in range(loading):
                for own, right in second.tensors(rank):
                    self.assertTrue(torch.equal(own, right))
        return found

    def test_engines_of_any_size_share_blocks(self) -> None:
        """VLLM-H1, in each order of memory, with kernel blocks as long as the engine's and shorter."""
        sizes = [(8, 2), (2, 8), (1, 4), (4, 1), (16, 8), (8, 16), (1, 16)]
        for number, (saving, loading) in enumerate(sizes):
            pieces, block_outermost = [(1, False), (1, True), (2, False), (4, False)][number % 4]
            with self.subTest(saving=saving, loading=loading, pieces=pieces):
                told = dict(pieces=pieces, block_outermost=block_outermost, head_groups=8)
                self.assertEqual(self.share(8, saving, loading, **told), BLOCKS)

    def test_a_damaged_head_ends_the_prefix_of_the_ranks_that_have_it(self) -> None:
        dice = torch.Generator().manual_seed(2)
        logical = torch.rand(2, BLOCKS, 8, TOKENS, 2 * HEAD, generator=dice)
        told = dict(pieces=1, block_outermost=False, head_groups=8)
        first, second = Engine(1, logical, seed=1, **told), Engine(4, logical, seed=2, **told)
        for each in (first, second):
            each.open(self.pool)
        first.fill()
        first.publish(self.hashes)
        damaged = logical[0, 3, 5].numpy().tobytes()
        with open(self.region.path, "r+b") as memory, mmap.mmap(memory.fileno(), 0) as pool:
            at = pool.find(damaged)
            self.assertEqual((at > 0, pool.find(damaged, at + 1)), (True, -1))
            pool[at] ^= 1
        valid = [second.fetch_rank(part, self.hashes) for part in second.parts]
        self.assertEqual(valid, [BLOCKS, BLOCKS, 3, BLOCKS])

    def test_head_groups_of_several_heads(self) -> None:
        told = dict(pieces=2, block_outermost=False, head_groups=2)
        self.assertEqual(self.share(8, 2, 1, **told), BLOCKS)

    def test_ranks_that_have_parts_of_head_groups_share_with_their_like(self) -> None:
        told = dict(pieces=1, block_outermost=False, head_groups=2)
        with self.assertLogs("rackline.vllm.parts", "WARNING") as log:
            self.assertEqual(self.share(8, 4, 2, **told), 0)
        self.assertIn('Set "head_groups" to 4 on all engines', log.output[0])
        with self.assertLogs("rackline.vllm.parts", "WARNING"):
            self.assertEqual(self.share(8, 4, 4, **told), BLOCKS)

    def test_ranks_share_with_their_like_when_told_so(self) -> None:
        told = dict(pieces=1, block_outermost=False, head_groups="ranks")
        with self.assertNoLogs("rackline.vllm.parts"):
            self.assertEqual(self.share(8, 4, 4, **told), BLOCKS)
        self.assertEqual(self.share(8, 4, 2, **told), 0)


class Identities(unittest.TestCase):
    def test_words_are_the_same_for_all_numbers_of_ranks(self) -> None:
        words = []
        for ranks in (1, 2, 8):
            found = Heads(8, 1, 8, range(0, 8 // ranks), True)
            told = identity(None, None, None, "rows", 1, None, found)
            words.append(told.words("a"))
            self.assertEqual(told.places, 8)
        self.assertEqual(words, words[:1] * 3)
        self.assertNotIn("ranks", words[0])

    def test_words_of_ranks_that_store_their_own_name_the_setting(self) -> None:
        found = Heads(2, 2, 4, range(1, 2), True, divided=False, why_undivided="because")
        told = identity(None, None, None, "rows", 1, None, found).words("a")
        self.assertEqual((told["head_groups"], told["ranks"]), ("ranks", 4))

    def test_head_groups_have_keys_of_their_own(self) -> None:
        one = identity(None, None, None, "rows", 1, None, Heads(8, 1, 8, range(8), True))
        all_of_them = [dataclasses.replace(one, heads=number) for number in range(8)]
        found = {each.model_of_session().fingerprint for each in all_of_them}
        self.assertEqual(len(found), 8)
        self.assertEqual(math.prod(each.place.heads + 1 for each in all_of_them), math.factorial(8))


if __name__ == "__main__":
    unittest.main()

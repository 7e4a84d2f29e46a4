"""Block and sequence hashes as the routers of NVIDIA Dynamo compute them, for the tests of kv-cache.

Needs the package ai-dynamo-runtime 1.6.1 (pip install --no-deps is enough) for the block hashes,
and cargo for the crate dynamo-tokens 1.6.1, which chains them:

    python kv-cache/vectors/dynamo_block_hashes.py > kv-cache/vectors/dynamo_block_hashes.json

Everything is fixed, so the same versions write the same file.
"""

import importlib.metadata
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from dynamo._core import compute_block_hash_for_seq

TOKENS_VERSION = "1.6.1"

MANIFEST = f"""
[package]
name = "chain"
edition = "2021"

[dependencies]
dynamo-tokens = "={TOKENS_VERSION}"
"""

# Reads a parent and a block hash a line, writes the sequence hash.
PROGRAM = """
fn main() {
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (parent, block) = line.split_once(' ').unwrap();
        let (parent, block) = (parent.parse().unwrap(), block.parse().unwrap());
        println!("{}", dynamo_tokens::compute_next_sequence_hash(parent, block));
    }
}
"""


class Chain:
    """The crate's own chaining, in a process that is asked line by line."""

    def __init__(self, folder: pathlib.Path):
        (folder / "src").mkdir()
        (folder / "Cargo.toml").write_text(MANIFEST)
        (folder / "src" / "main.rs").write_text(PROGRAM)
        self.command = ["cargo", "run", "--quiet", "--manifest-path", str(folder / "Cargo.toml")]
        subprocess.run(self.command, input="", check=True, text=True)

    def sequence(self, blocks: list[int]) -> list[int]:
        sequence = blocks[:1]
        for block in blocks[1:]:
            line = f"{sequence[-1]} {block}\n"
            run = subprocess.run(self.command, input=line, capture_output=True, check=True, text=True)
            sequence.append(int(run.stdout))
        return sequence


def tokens(seed: int, count: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(2**32) for _ in range(count)]


def case(name, token_ids, block_tokens, namespace=None, lora=None, items=()):
    """`items` are lists of hashes of multimodal objects, one list a block."""
    infos = [
        {"mm_objects": [{"mm_hash": one, "offsets": [[0, 1]]} for one in block]} if block else None
        for block in items
    ]
    blocks = compute_block_hash_for_seq(
        token_ids, block_tokens, infos or None, lora, None, namespace
    )
    return {
        "name": name,
        "block_tokens": block_tokens,
        "tokens": token_ids,
        "namespace": namespace,
        "lora": lora,
        "items": [list(block) for block in items],
        "blocks": blocks,
    }


def cases():
    prompt = tokens(1, 100)
    for block_tokens in (1, 16, 32, 64, 100, 128):
        yield case(f"{block_tokens} tokens a block", prompt, block_tokens)
    yield case("long blocks", tokens(2, 1100), 512)
    yield case("LoRA", prompt, 16, lora="sql-adapter")
    yield case("namespace", prompt, 16, namespace="tenant-a")
    yield case("namespace and LoRA", prompt, 16, namespace="tenant-a", lora="sql-adapter")
    yield case("names that are equal", prompt, 16, namespace="same", lora="same")
    yield case("empty names", prompt, 16, namespace="", lora="")
    largest = 2**64 - 1
    yield case("images", prompt, 16, items=[[], [7], [largest, 3, 12], []])
    yield case("images and LoRA", prompt, 16, lora="sql-adapter", items=[[5]])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        chain = Chain(pathlib.Path(folder))
        written = [one | {"sequence": chain.sequence(one["blocks"])} for one in cases()]
    head = {
        "library": "ai-dynamo-runtime",
        "version": importlib.metadata.version("ai-dynamo-runtime"),
        "chained_by": f"dynamo-tokens {TOKENS_VERSION}",
        "script": "kv-cache/vectors/dynamo_block_hashes.py",
        "cases": [],
    }
    # A case a line.
    lines = ",\n".join("  " + json.dumps(one) for one in written)
    text = json.dumps(head, indent=1)
    sys.stdout.write(text.replace('"cases": []', f'"cases": [\n{lines}\n ]') + "\n")


if __name__ == "__main__":
    main()

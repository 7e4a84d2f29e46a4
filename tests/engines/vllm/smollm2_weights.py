"""Turns the GGUF file of SmolLM2 into what vLLM loads: safetensors, configuration, tokenizer."""

from __future__ import annotations

import json
import pathlib

NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def convert(source: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes the model in ``source`` to ``folder``."""
    import numpy as np
    import torch
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    reader = GGUFReader(source)

    def field(key: str):
        found = reader.fields.get(key)
        return None if found is None else found.contents()

    heads, kv_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    hidden = field("llama.embedding_length")

    def unpermuted(weight, count: int):
        # The file has the rows of Q and K in the order of its own rotation of positions.
        half = weight.shape[0] // count // 2
        rows = weight.reshape(count, half, 2, *weight.shape[1:])
        return rows.swapaxes(1, 2).reshape(weight.shape)

    weights = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name = WHOLE.get(tensor.name)
        if name is None:
            _, layer, part, _ = tensor.name.split(".")
            name = f"model.layers.{layer}.{NAMES[part]}.weight"
            if part == "attn_q":
                weight = unpermuted(weight, heads)
            elif part == "attn_k":
                weight = unpermuted(weight, kv_heads)
        weights[name] = torch.from_numpy(np.ascontiguousarray(weight)).to(torch.bfloat16)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokens = field("tokenizer.ggml.tokens")
    config = dict(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        vocab_size=len(tokens),
        hidden_size=hidden,
        intermediate_size=field("llama.feed_forward_length"),
        num_hidden_layers=field("llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        hidden_act="silu",
        max_position_embeddings=field("llama.context_length"),
        rms_norm_eps=float(np.float32(field("llama.attention.layer_norm_rms_epsilon"))),
        rope_theta=float(field("llama.rope.freq_base") or 10000.0),
        tie_word_embeddings="lm_head.weight" not in weights,
        bos_token_id=field("tokenizer.ggml.bos_token_id"),
        eos_token_id=field("tokenizer.ggml.eos_token_id"),
        pad_token_id=field("tokenizer.ggml.padding_token_id"),
        torch_dtype="bfloat16",
        attention_bias=False,
        mlp_bias=False,
    )
    (folder / "config.json").write_text(json.dumps(config))
    _tokenizer(field, tokens, folder)


def _tokenizer(field, tokens: list[str], folder: pathlib.Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    merges = [tuple(merge.split(" ", 1)) for merge in field("tokenizer.ggml.merges")]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = field("tokenizer.ggml.token_type")
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    about = dict(
        tokenizer_class="PreTrainedTokenizerFast",
        bos_token=tokens[field("tokenizer.ggml.bos_token_id")],
        eos_token=tokens[field("tokenizer.ggml.eos_token_id")],
        model_max_length=field("llama.context_length"),
        chat_template=field("tokenizer.chat_template"),
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(about))

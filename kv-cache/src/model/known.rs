//! The geometry of public models, from their configuration files.

use super::Attention;

/// A public model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownModel {
    /// Its name, without the publisher's.
    pub name: &'static str,
    /// Layers with KV. All of them count in full, those with a sliding window too.
    pub layers: u32,
    /// What a layer keeps of a token.
    pub attention: Attention,
}

const fn heads(name: &'static str, layers: u32, kv_heads: u32, head_dim: u32) -> KnownModel {
    KnownModel { name, layers, attention: Attention::Heads { kv_heads, head_dim } }
}

/// MLA keeps the compressed KV and, beside it, the part of the key that carries the position.
const fn latent(name: &'static str, layers: u32, compressed: u32, position: u32) -> KnownModel {
    KnownModel { name, layers, attention: Attention::Latent { elements: compressed + position } }
}

/// Public models, by family.
pub const KNOWN_MODELS: &[KnownModel] = &[
    latent("DeepSeek-R1", 61, 512, 64),
    latent("DeepSeek-V2-Lite", 27, 512, 64),
    latent("DeepSeek-V3", 61, 512, 64),
    heads("gemma-2-9b", 42, 8, 256),
    heads("gemma-3-27b", 62, 16, 128),
    heads("gpt-oss-20b", 24, 8, 64),
    heads("gpt-oss-120b", 36, 8, 64),
    latent("Kimi-K2", 61, 512, 64),
    heads("Llama-3.1-8B", 32, 8, 128),
    heads("Llama-3.1-70B", 80, 8, 128),
    heads("Llama-3.1-405B", 126, 8, 128),
    heads("Llama-3.2-1B", 16, 8, 64),
    heads("Llama-3.2-3B", 28, 8, 128),
    heads("Llama-3.3-70B", 80, 8, 128),
    heads("Mistral-7B-v0.3", 32, 8, 128),
    heads("Mistral-Large-2407", 88, 8, 128),
    heads("Mistral-Small-24B-2501", 40, 8, 128),
    heads("Mixtral-8x7B-v0.1", 32, 8, 128),
    heads("Mixtral-8x22B-v0.1", 56, 8, 128),
    heads("phi-4", 40, 10, 128),
    heads("Qwen2.5-0.5B", 24, 2, 64),
    heads("Qwen2.5-7B", 28, 4, 128),
    heads("Qwen2.5-14B", 48, 8, 128),
    heads("Qwen2.5-32B", 64, 8, 128),
    heads("Qwen2.5-72B", 80, 8, 128),
    heads("Qwen3-0.6B", 28, 8, 128),
    heads("Qwen3-4B", 36, 8, 128),
    heads("Qwen3-8B", 36, 8, 128),
    heads("Qwen3-14B", 40, 8, 128),
    heads("Qwen3-32B", 64, 8, 128),
    heads("Qwen3-30B-A3B", 48, 4, 128),
    heads("Qwen3-235B-A22B", 94, 4, 128),
    heads("SmolLM2-135M", 30, 3, 64),
    heads("SmolLM2-360M", 32, 5, 64),
    heads("SmolLM2-1.7B", 24, 32, 64),
];

/// The model that `name` names: a publisher before it, an `-Instruct` after it and the case of its
/// letters do not matter.
#[must_use]
pub fn known_model(name: &str) -> Option<&'static KnownModel> {
    let name = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    let base = name.strip_suffix("-instruct").or_else(|| name.strip_suffix("-it"));
    let is = |model: &&KnownModel| {
        let known = model.name.to_ascii_lowercase();
        known == name || Some(&*known) == base
    };
    KNOWN_MODELS.iter().find(is)
}

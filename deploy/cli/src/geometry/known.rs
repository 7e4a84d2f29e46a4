//! The geometry of public models, from their configuration files.

use kv_cache::Attention;

/// A public model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KnownModel {
    /// Its name, without the publisher's.
    pub(super) name: &'static str,
    /// Layers with KV. All of them count in full, those with a sliding window too.
    pub(super) layers: u32,
    /// What a layer keeps of a token.
    pub(super) attention: Attention,
}

const fn heads(name: &'static str, layers: u32, kv_heads: u32, head_dim: u32) -> KnownModel {
    KnownModel { name, layers, attention: Attention::Heads { kv_heads, head_dim } }
}

/// MLA keeps the compressed KV and, beside it, the part of the key that carries the position.
const fn latent(name: &'static str, layers: u32, compressed: u32, position: u32) -> KnownModel {
    KnownModel { name, layers, attention: Attention::Latent { elements: compressed + position } }
}

/// Public models, by family.
pub(super) const KNOWN_MODELS: &[KnownModel] = &[
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
pub(super) fn known_model(name: &str) -> Option<&'static KnownModel> {
    let name = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    let base = name.strip_suffix("-instruct").or_else(|| name.strip_suffix("-it"));
    let is = |model: &&KnownModel| {
        let known = model.name.to_ascii_lowercase();
        known == name || Some(&*known) == base
    };
    KNOWN_MODELS.iter().find(is)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use kv_cache::{Dtype, KvGeometry};

    use super::*;

    /// Computed by hand from the configuration files, at two bytes an element.
    #[test]
    fn bytes_of_a_token_of_well_known_models() {
        for (name, bytes) in [
            ("DeepSeek-R1", 70_272),
            ("DeepSeek-V2-Lite", 31_104),
            ("DeepSeek-V3", 70_272),
            ("gemma-2-9b", 344_064),
            ("gemma-3-27b", 507_904),
            ("gpt-oss-20b", 49_152),
            ("gpt-oss-120b", 73_728),
            ("Kimi-K2", 70_272),
            ("Llama-3.1-8B", 131_072),
            ("Llama-3.1-70B", 327_680),
            ("Llama-3.1-405B", 516_096),
            ("Llama-3.2-1B", 32_768),
            ("Llama-3.2-3B", 114_688),
            ("Llama-3.3-70B", 327_680),
            ("Mistral-7B-v0.3", 131_072),
            ("Mistral-Large-2407", 360_448),
            ("Mistral-Small-24B-2501", 163_840),
            ("Mixtral-8x7B-v0.1", 131_072),
            ("Mixtral-8x22B-v0.1", 229_376),
            ("phi-4", 204_800),
            ("Qwen2.5-0.5B", 12_288),
            ("Qwen2.5-7B", 57_344),
            ("Qwen2.5-14B", 196_608),
            ("Qwen2.5-32B", 262_144),
            ("Qwen2.5-72B", 327_680),
            ("Qwen3-0.6B", 114_688),
            ("Qwen3-4B", 147_456),
            ("Qwen3-8B", 147_456),
            ("Qwen3-14B", 163_840),
            ("Qwen3-32B", 262_144),
            ("Qwen3-30B-A3B", 98_304),
            ("Qwen3-235B-A22B", 192_512),
            ("SmolLM2-135M", 23_040),
            ("SmolLM2-360M", 40_960),
            ("SmolLM2-1.7B", 196_608),
        ] {
            let known = known_model(name).unwrap();
            let geometry = KvGeometry::new(known.layers, known.attention, Dtype::Bf16, 16).unwrap();
            assert_eq!(geometry.token_bytes(), bytes, "{name}");
            assert_eq!(geometry.rank_block_bytes(), 16 * bytes, "{name}");
        }
        assert_eq!(KNOWN_MODELS.len(), 35, "a new model is checked by hand, too");
        let names: BTreeSet<_> =
            KNOWN_MODELS.iter().map(|model| model.name.to_ascii_lowercase()).collect();
        assert_eq!(names.len(), KNOWN_MODELS.len(), "names are different");
    }

    #[test]
    fn models_are_found_by_what_people_call_them() {
        for name in ["SmolLM2-135M", "smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct"] {
            assert_eq!(known_model(name).unwrap().name, "SmolLM2-135M", "{name}");
        }
        assert_eq!(known_model("google/gemma-3-27b-it").unwrap().name, "gemma-3-27b");
        for name in ["", "SmolLM2", "SmolLM2-135M/", "Instruct"] {
            assert_eq!(known_model(name), None, "{name}");
        }
    }
}

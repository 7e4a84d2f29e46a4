//! The real model, fetched and loaded once for all tests of a file.

use std::sync::OnceLock;

use demo::{Gguf, Kernels, KvCache, Model, Tokenizer, model_file};

/// Tokenizer and model.
#[derive(Debug)]
pub(crate) struct Engine {
    /// The tokenizer.
    pub(crate) tokenizer: Tokenizer,
    /// The model.
    pub(crate) model: Model,
}

/// The engine with the kernels of this CPU, loaded once.
pub(crate) fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| load(Kernels::of_this_cpu()))
}

/// Loads the engine; the first call fetches the model file if it is not in the cache folder.
pub(crate) fn load(kernels: Kernels) -> Engine {
    let path = model_file::obtain(None).unwrap();
    let mut gguf = Gguf::open(&path).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    Engine { tokenizer, model: Model::load(&mut gguf, kernels).unwrap() }
}

/// `count` tokens of a real text: this crate's own sources.
pub(crate) fn prompt(count: usize) -> Vec<u32> {
    let text = concat!(
        include_str!("../../src/lib.rs"),
        include_str!("../../src/attention.rs"),
        include_str!("../../src/kv/mod.rs"),
    );
    let mut tokens = engine().tokenizer.encode(text).unwrap();
    assert!(tokens.len() >= count, "the text has only {} tokens", tokens.len());
    tokens.truncate(count);
    tokens
}

/// The payloads of all full blocks.
pub(crate) fn blocks(kv: &KvCache) -> Vec<Vec<u8>> {
    (0..kv.full_blocks())
        .map(|block| {
            let mut payload = vec![0; kv.geometry().block_bytes()];
            kv.export_block(block, &mut payload).unwrap();
            payload
        })
        .collect()
}

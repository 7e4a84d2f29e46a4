//! KV bytes and logits depend on the tokens alone.

use std::error::Error;
use std::process::Command;

use demo::{ForwardError, Kernels, KvCache, LayerSteps, Logits, threads};
use sha2::{Digest, Sha256};

use crate::support::{blocks, engine, load, prompt};

/// Long enough for two key chunks and some blocks of the second.
const TOKENS: usize = 323;

fn prefill(tokens: &[u32]) -> (KvCache, Logits) {
    let mut kv = engine().model.new_cache(TOKENS + 16);
    let logits = engine().model.forward(tokens, 0, &mut kv).unwrap();
    (kv, logits)
}

fn greedy(kv: &mut KvCache, logits: Logits, count: usize) -> Vec<u32> {
    let mut tokens = vec![logits.best()];
    while tokens.len() < count {
        let last = tokens[tokens.len() - 1];
        let logits = engine().model.forward(&[last], kv.tokens(), kv).unwrap();
        tokens.push(logits.best());
    }
    tokens
}

fn assert_same(got: &[Vec<u8>], expected: &[Vec<u8>], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (block, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(got == expected, "{what}: block {block} differs");
    }
}

#[test]
fn imported_blocks_and_the_computed_rest_equal_a_full_prefill() {
    let tokens = prompt(TOKENS);
    let (mut full, logits) = prefill(&tokens);
    let expected = blocks(&full);
    let answer = greedy(&mut full, logits.clone(), 8);

    for cached in [1, 7, 16, 20] {
        let mut kv = engine().model.new_cache(TOKENS + 16);
        for (block, payload) in expected[..cached].iter().enumerate() {
            kv.import_block(block, payload).unwrap();
        }
        let start = cached * kv.geometry().block_tokens;
        let got = engine().model.forward(&tokens[start..], start, &mut kv).unwrap();
        assert_same(&blocks(&kv), &expected, &format!("{cached} blocks imported"));
        assert!(got == logits, "{cached} blocks imported: other logits");
        assert_eq!(greedy(&mut kv, got, 8), answer, "{cached} blocks imported");
    }
}

#[test]
fn an_imported_block_is_what_attention_reads() {
    let tokens = prompt(40);
    let (full, logits) = prefill(&tokens);
    let mut imported = blocks(&full);
    // The sign of one value of the first layer.
    imported[0][1] ^= 0x80;
    let mut kv = engine().model.new_cache(40);
    for (block, payload) in imported.iter().enumerate() {
        kv.import_block(block, payload).unwrap();
    }
    let got = engine().model.forward(&tokens[32..], 32, &mut kv).unwrap();
    assert!(got != logits, "a damaged block makes no difference");
}

#[test]
fn decode_steps_give_the_bits_of_prefill() {
    let tokens = prompt(288);
    let (full, logits) = prefill(&tokens);
    // From within the first key chunk into the second.
    let (mut kv, mut got) = prefill(&tokens[..230]);
    for (at, token) in tokens.iter().enumerate().skip(230) {
        got = engine().model.forward(&[*token], at, &mut kv).unwrap();
    }
    assert_same(&blocks(&kv), &blocks(&full), "58 decode steps");
    assert!(got == logits);
}

#[test]
fn a_prompt_may_be_prefilled_in_any_pieces() {
    let tokens = prompt(200);
    let (full, logits) = prefill(&tokens);
    let mut kv = engine().model.new_cache(200);
    let mut got = None;
    let mut at = 0;
    for piece in [1, 2, 3, 31, 16, 100, 47] {
        got = Some(engine().model.forward(&tokens[at..at + piece], at, &mut kv).unwrap());
        at += piece;
    }
    assert_same(&blocks(&kv), &blocks(&full), "uneven pieces");
    assert_eq!(got, Some(logits));
}

#[test]
fn the_other_kernels_keep_the_promise_too() {
    let kernels = match engine().model.kernels() {
        Kernels::Integer => Kernels::Float,
        Kernels::Float => Kernels::Integer,
    };
    let model = load(kernels).model;
    let tokens = prompt(100);
    let mut full = model.new_cache(100);
    let logits = model.forward(&tokens, 0, &mut full).unwrap();
    let expected = blocks(&full);

    let mut kv = model.new_cache(100);
    for (block, payload) in expected[..3].iter().enumerate() {
        kv.import_block(block, payload).unwrap();
    }
    let mut got = model.forward(&tokens[48..90], 48, &mut kv).unwrap();
    for (at, token) in tokens.iter().enumerate().skip(90) {
        got = model.forward(&[*token], at, &mut kv).unwrap();
    }
    assert_same(&blocks(&kv), &expected, "import, prefill and decode");
    assert!(got == logits);
    // The kernels do differ: that is why a model fingerprint has to name them.
    assert!(blocks(&prefill(&tokens).0) != expected);
}

#[test]
fn tokens_behind_the_start_are_forgotten() {
    let tokens = prompt(100);
    let (mut kv, logits) = prefill(&tokens);
    let expected = blocks(&kv);
    let mut other = tokens[..60].to_vec();
    other.extend(tokens[..40].iter().rev());
    engine().model.forward(&other[50..], 50, &mut kv).unwrap();
    assert!(blocks(&kv) != expected);
    let got = engine().model.forward(&tokens[60..], 60, &mut kv).unwrap();
    assert_same(&blocks(&kv), &expected, "recomputed");
    assert!(got == logits);
}

/// Loads each layer just before it computes, and saves it just after.
struct LayerByLayer {
    from: Vec<Vec<u8>>,
    saved: Vec<Vec<u8>>,
}

impl LayerSteps for LayerByLayer {
    fn before(
        &mut self,
        layer: usize,
        kv: &mut KvCache,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let range = kv.geometry().layer_range(layer);
        for (block, payload) in self.from.iter().enumerate() {
            kv.import_layer(block, layer, &payload[range.clone()])?;
        }
        Ok(())
    }

    fn after(&mut self, layer: usize, kv: &KvCache) -> Result<(), Box<dyn Error + Send + Sync>> {
        let range = kv.geometry().layer_range(layer);
        for (block, payload) in self.saved.iter_mut().enumerate() {
            kv.export_layer(block, layer, &mut payload[range.clone()])?;
        }
        Ok(())
    }
}

#[test]
fn layers_may_be_loaded_and_saved_while_the_model_computes() {
    let tokens = prompt(80);
    let (full, logits) = prefill(&tokens);
    let expected = blocks(&full);
    let mut kv = engine().model.new_cache(80);
    let block_bytes = kv.geometry().block_bytes();
    let mut steps =
        LayerByLayer { from: expected[..3].to_vec(), saved: vec![vec![0; block_bytes]; 5] };
    let got = engine().model.forward_with(&tokens[48..], 48, &mut kv, &mut steps).unwrap();
    assert_same(&steps.saved, &expected, "saved layer by layer");
    assert!(got == logits);
}

#[test]
fn a_missing_prefix_is_an_error() {
    let tokens = prompt(20);
    let mut kv = engine().model.new_cache(32);
    let error = engine().model.forward(&tokens[16..], 16, &mut kv).unwrap_err();
    assert!(matches!(error, ForwardError::Missing { layer: 0, held: 0, start: 16 }), "{error}");
    let error = engine().model.forward(&[], 0, &mut kv).unwrap_err();
    assert!(matches!(error, ForwardError::NoTokens), "{error}");
    let mut small = engine().model.new_cache(8);
    let error = engine().model.forward(&tokens, 0, &mut small).unwrap_err();
    assert!(matches!(error, ForwardError::TooLong { needed: 20, cache: 8, .. }), "{error}");
    let error = engine().model.forward(&[1_000_000], 0, &mut kv).unwrap_err();
    assert!(matches!(error, ForwardError::Candle(_)), "{error}");
}

/// Set in a child process: print the digest instead of comparing it.
const CHILD: &str = "DEMO_TEST_PRINT_DIGEST";

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    if std::env::var_os(CHILD).is_some() {
        println!("digest {} of {} threads", digest(), threads::configured());
        return;
    }
    let digests: Vec<String> = [1, 2]
        .into_iter()
        .map(|threads| {
            let test = "bit_exact::the_number_of_threads_does_not_change_a_bit";
            let threads = std::num::NonZeroUsize::new(threads).unwrap();
            let output = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", test, "--nocapture"])
                .env(CHILD, "1")
                .envs(threads::environment(threads))
                .output()
                .unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let (_, text) = text.split_once("digest ").unwrap_or_else(|| panic!("{text}"));
            let (digest, text) = text.split_once(" of ").unwrap();
            assert!(text.starts_with(&format!("{threads} threads")), "{text}");
            digest.to_owned()
        })
        .collect();
    assert_eq!(digests[0].len(), 64);
    assert_eq!(digests[1], digests[0]);
}

/// SHA-256 over the KV of a prefill and the tokens decoded behind it.
fn digest() -> String {
    let (mut kv, logits) = prefill(&prompt(TOKENS));
    let answer = greedy(&mut kv, logits, 8);
    let mut hasher = Sha256::new();
    for payload in blocks(&kv) {
        hasher.update(&payload);
    }
    for token in answer {
        hasher.update(token.to_le_bytes());
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

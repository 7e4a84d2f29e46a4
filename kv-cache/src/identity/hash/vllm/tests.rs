use ciborium::Value;
use proptest::prelude::*;
use serde::Deserialize;

use super::*;

/// What `kv-cache/vectors/vllm_block_hashes.py` wrote.
const VECTORS: &str = include_str!("../../../../vectors/vllm_block_hashes.json");

#[derive(Deserialize)]
struct Vectors {
    library: String,
    algorithm: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    seed: Option<String>,
    none_hash: String,
    block_tokens: usize,
    tokens: Vec<u32>,
    cache_salt: Option<String>,
    lora: Option<CaseLora>,
    items: Vec<CaseItem>,
    prompt_embeds: Option<Vec<String>>,
    hashes: Vec<String>,
}

#[derive(Deserialize)]
struct CaseLora {
    name: String,
    path: String,
}

#[derive(Deserialize)]
struct CaseItem {
    identifier: String,
    offset: usize,
    length: usize,
}

fn bytes(hex: &str) -> [u8; 32] {
    let byte = |at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
    std::array::from_fn(byte)
}

#[test]
fn hashes_are_those_of_the_library() {
    let vectors: Vectors = serde_json::from_str(VECTORS).unwrap();
    assert_eq!((&*vectors.library, &*vectors.algorithm), ("vllm", "sha256_cbor"));
    assert!(vectors.cases.len() >= 29);
    for case in &vectors.cases {
        let name = &case.name;
        let hasher = VllmHasher::new(case.seed.as_deref(), case.block_tokens);
        assert_eq!(hasher.none_hash().as_bytes(), &bytes(&case.none_hash), "{name}");
        let items: Vec<_> = case
            .items
            .iter()
            .map(|CaseItem { identifier, offset, length }| Item {
                identifier,
                offset: *offset,
                length: *length,
            })
            .collect();
        let embeds: Vec<_> =
            case.prompt_embeds.iter().flatten().map(|digest| bytes(digest)).collect();
        let prompt = Prompt {
            tokens: &case.tokens,
            lora: case.lora.as_ref().map(|CaseLora { name, path }| Lora { name, path }),
            cache_salt: case.cache_salt.as_deref(),
            items: &items,
            prompt_embeds: &embeds,
        };
        let expected: Vec<_> = case.hashes.iter().map(|hash| BlockHash::new(bytes(hash))).collect();
        assert_eq!(hasher.chain(&prompt), expected, "{name}");
    }
}

/// Every kind of input occurs in the vectors: they would not notice what they do not have.
#[test]
fn the_vectors_have_every_kind_of_input() {
    let vectors: Vectors = serde_json::from_str(VECTORS).unwrap();
    let has = |what: &str, some: &dyn Fn(&Case) -> bool| {
        assert!(vectors.cases.iter().any(|case| some(case) && !case.hashes.is_empty()), "{what}");
    };
    has("no seed", &|case| case.seed.is_none());
    has("a seed", &|case| case.seed.is_some());
    has("salt", &|case| case.cache_salt.is_some());
    has("adapter", &|case| case.lora.is_some());
    has("embeddings", &|case| case.prompt_embeds.is_some());
    has("item over several blocks", &|case| {
        case.items.iter().any(|item| item.length > 2 * case.block_tokens)
    });
    has("two items in a block", &|case| {
        case.items.windows(2).any(|two| {
            two.iter().all(|item| item.offset / case.block_tokens == 64 / case.block_tokens)
        })
    });
}

/// The block as another encoder of CBOR writes it.
fn oracle(parent: &BlockHash, tokens: &[u32], extra_keys: &[ExtraKey<'_>]) -> BlockHash {
    let text = |text: &str| Value::Text(text.to_owned());
    let key = |key: &ExtraKey<'_>| {
        Value::Array(match key {
            ExtraKey::Lora(lora) => vec![text("lora"), text(lora.name), text(lora.path)],
            ExtraKey::Item { identifier, offset } => {
                vec![text("mm"), text(identifier), Value::from(*offset)]
            }
            ExtraKey::CacheSalt(salt) => vec![text("cache_salt"), text(salt)],
            ExtraKey::PromptEmbeds(digest) => {
                vec![text("prompt_embeds"), Value::Bytes(digest.to_vec())]
            }
        })
    };
    let extra_keys = match extra_keys {
        [] => Value::Null,
        some => Value::Array(some.iter().map(key).collect()),
    };
    let tokens = tokens.iter().map(|token| Value::from(*token)).collect();
    let block = Value::Array(vec![
        Value::Bytes(parent.as_bytes().to_vec()),
        Value::Array(tokens),
        extra_keys,
    ]);
    let mut bytes = Vec::new();
    ciborium::into_writer(&block, &mut bytes).unwrap();
    BlockHash::new(Sha256::digest(&bytes).into())
}

proptest! {
    #[test]
    fn blocks_are_encoded_as_another_encoder_does(
        parent: [u8; 32],
        tokens in proptest::collection::vec(any::<u32>(), 0..300),
        (name, path, salt, identifier) in (".{0,300}", ".{0,30}", ".{0,30}", ".{0,70}"),
        offset in any::<i64>(),
        digest: [u8; 32],
        which in 0u8..16,
    ) {
        let all = [
            ExtraKey::Lora(Lora { name: &name, path: &path }),
            ExtraKey::Item { identifier: &identifier, offset },
            ExtraKey::CacheSalt(&salt),
            ExtraKey::PromptEmbeds(&digest),
        ];
        let keys: Vec<_> =
            (0..4).filter(|bit| which & 1 << bit != 0).map(|bit| all[bit]).collect();
        let hasher = VllmHasher::new(None, 16);
        let parent = BlockHash::new(parent);
        prop_assert_eq!(hasher.next(Some(&parent), &tokens, &keys), oracle(&parent, &tokens, &keys));
        let root = hasher.none_hash();
        prop_assert_eq!(hasher.next(None, &tokens, &keys), oracle(&root, &tokens, &keys));
    }

    /// Items are told to every block that they touch, and to no other.
    #[test]
    fn items_are_in_the_blocks_that_they_touch(
        gaps in proptest::collection::vec((0usize..20, 1usize..30), 0..6),
        block_tokens in 1usize..20,
    ) {
        let mut offset = 0;
        let mut items = Vec::new();
        for (gap, length) in gaps {
            offset += gap;
            items.push(Item { identifier: "i", offset, length });
            offset += length;
        }
        let tokens = vec![0; offset + 20];
        let prompt = Prompt { tokens: &tokens, items: &items, ..Prompt::default() };
        let hasher = VllmHasher::new(None, block_tokens);
        let mut left = prompt.items;
        for start in (0..tokens.len()).step_by(block_tokens) {
            let touched = items.iter().filter(|item| {
                item.offset < start + block_tokens && start < item.offset + item.length
            });
            let expected: Vec<_> = touched
                .map(|item| ExtraKey::Item {
                    identifier: "i",
                    offset: signed(item.offset) - signed(start),
                })
                .collect();
            prop_assert_eq!(hasher.extra_keys(&prompt, &mut left, start), expected);
        }
    }
}

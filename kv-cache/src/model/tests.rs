use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn heads(layers: u32, kv_heads: u32, head_dim: u32) -> KvGeometry {
    let attention = Attention::Heads { kv_heads, head_dim };
    KvGeometry::new(layers, attention, Dtype::F16, 16).unwrap()
}

#[test]
fn ranks_hold_their_heads() {
    let whole = heads(80, 8, 128);
    let fourth = whole.rank(3, 4).unwrap();
    assert_eq!(fourth.part(), Part { number: 3, of: 4 });
    assert_eq!(fourth.token_bytes(), whole.token_bytes());
    assert_eq!(fourth.rank_token_bytes() * 4, whole.token_bytes());
    assert_eq!(fourth.rank_layer_bytes() * 80, fourth.rank_block_bytes());
}

#[test]
fn ranks_with_the_same_heads_share_their_blocks() {
    let fingerprints = |geometry: KvGeometry, ranks| {
        let of_rank = |rank| geometry.rank(rank, ranks).unwrap().model("m", "1", 1).fingerprint();
        (0..ranks).map(of_rank).collect::<BTreeSet<_>>()
    };
    // Four heads over eight ranks: each is held by two.
    let four = heads(28, 4, 128);
    assert_eq!(four.rank(5, 8).unwrap().part(), Part { number: 2, of: 4 });
    assert_eq!(fingerprints(four, 8), fingerprints(four, 4));
    assert_eq!(fingerprints(four, 4).len(), 4);
    // A latent vector is held by all, whatever their number.
    let mla = Attention::Latent { elements: 576 };
    let mla = KvGeometry::new(61, mla, Dtype::Bf16, 64).unwrap();
    assert_eq!(fingerprints(mla, 8), fingerprints(mla, 1));
    assert_eq!(mla.rank(7, 8).unwrap().rank_token_bytes(), 70_272);
    // And it is not a head of that size.
    let head = heads(61, 1, 576).model("m", "1", 1);
    assert_ne!(mla.model("m", "1", 1).kv_heads, head.kv_heads);
}

#[test]
fn impossible_geometries_are_refused() {
    let attention = Attention::Heads { kv_heads: 8, head_dim: 128 };
    let message = |layers, attention, block_tokens| {
        let made = KvGeometry::new(layers, attention, Dtype::F32, block_tokens);
        made.unwrap_err().to_string()
    };
    assert_eq!(message(0, attention, 16), "the number of layers is 0: at least 1 is needed");
    assert_eq!(
        message(1, attention, 0),
        "the number of tokens in a block is 0: at least 1 is needed"
    );
    for (kv_heads, head_dim) in [(0, 1), (1, 0)] {
        assert!(message(1, Attention::Heads { kv_heads, head_dim }, 1).ends_with("1 is needed"));
    }
    assert!(message(1, Attention::Latent { elements: 0 }, 1).ends_with("1 is needed"));
    assert!(message(u32::MAX, attention, u32::MAX).contains("check the numbers"));

    let message = |rank, size| heads(1, 6, 1).rank(rank, size).unwrap_err().to_string();
    assert_eq!(message(0, 0), "the number of tensor-parallel ranks is 0: at least 1 is needed");
    assert!(message(2, 2).ends_with("ranks are counted from 0 to 1"));
    assert!(message(0, 4).starts_with("6 KV heads cannot be divided over 4"));
}

#[test]
fn types_have_names() {
    for dtype in Dtype::ALL {
        assert_eq!(dtype.name().parse(), Ok(dtype));
    }
    let error = "int4".parse::<Dtype>().unwrap_err().to_string();
    for dtype in Dtype::ALL {
        assert!(error.contains(dtype.name()), "{error}");
    }
}

proptest! {
    /// All parts together are the whole, and every rank has one of them.
    #[test]
    fn parts_add_up(
        layers in 1u32..200,
        kv_heads in 1u32..200,
        head_dim in 1u32..1000,
        block_tokens in 1u32..4096,
        latent: bool,
        divisor in 1u32..9,
        multiple in 1u32..9,
        rank in 0u32..64,
    ) {
        let attention = if latent {
            Attention::Latent { elements: head_dim }
        } else {
            Attention::Heads { kv_heads, head_dim }
        };
        let whole = KvGeometry::new(layers, attention, Dtype::F16, block_tokens).unwrap();
        // Fewer ranks than heads, or more.
        let fewer = if kv_heads.is_multiple_of(divisor) { divisor } else { 1 };
        for ranks in [fewer, kv_heads * multiple] {
            let geometry = whole.rank(rank % ranks, ranks).unwrap();
            let part = geometry.part();
            prop_assert!(part.number < part.of && ranks % part.of == 0);
            prop_assert_eq!(part.of, if latent { 1 } else { ranks.min(kv_heads) });
            prop_assert_eq!(geometry.rank_token_bytes() * u64::from(part.of), geometry.token_bytes());
            let block = geometry.rank_layer_bytes() * u64::from(layers);
            prop_assert_eq!(block, geometry.rank_block_bytes());
        }
    }
}

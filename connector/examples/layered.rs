//! Blocks layer by layer, while an engine computes: the first layer of a prompt is in use before
//! the last one has arrived, and a layer is on its way into the pool before the next one is
//! computed.
//!
//! `cargo run -p rackline --example layered` uses memory of this machine. With `-- REGION` it uses
//! a formatted region.

use std::sync::{Arc, Mutex, PoisonError};

use rackline::{
    AsyncOptions, AsyncPool, Attention, ChainHasher, Dtype, KvGeometry, Layers, NewBlock,
    ScratchRegion, SessionOptions, Source,
};

const LAYERS: usize = 4;
const LAYER_BYTES: usize = 1024;

/// A block of an engine that computes: each layer is written once, before it is said to be ready.
#[derive(Clone, Default)]
struct Computed(Arc<[Mutex<&'static [u8]>; LAYERS]>);

impl Computed {
    fn compute(&self, layer: usize) {
        static RESULTS: [[u8; LAYER_BYTES]; LAYERS] =
            [[1; LAYER_BYTES], [2; LAYER_BYTES], [3; LAYER_BYTES], [4; LAYER_BYTES]];
        *self.0[layer].lock().unwrap_or_else(PoisonError::into_inner) = &RESULTS[layer];
    }
}

impl Source for Computed {
    fn parts(&self) -> Vec<&[u8]> {
        (0..LAYERS).flat_map(|layer| self.layer(layer)).collect()
    }

    fn layer(&self, layer: usize) -> Vec<&[u8]> {
        vec![*self.0[layer].lock().unwrap_or_else(PoisonError::into_inner)]
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scratch = ScratchRegion::create(16 << 20, 1, 4096)?;
    let path = std::env::args_os().nth(1).unwrap_or_else(|| scratch.path().into());
    let heads = Attention::Heads { kv_heads: 2, head_dim: 16 };
    let kv = KvGeometry::new(4, heads, Dtype::F16, 8)?;
    let options = SessionOptions::new(kv.model("tiny, by layers", "1", 1), kv.rank_block_bytes());
    let layers = Arc::new(Layers::new([LAYER_BYTES as u64; LAYERS]));

    let asked = AsyncOptions::new().with_publishes_by_layers(true);
    let pool = AsyncPool::attach(&path, 0, &asked)?;
    let session = pool.session(options)?;
    let hashes = ChainHasher::new(b"", 8).chain(&(0..16).collect::<Vec<u32>>());

    let computed = [Computed::default(), Computed::default()];
    let blocks = NewBlock::chain(0, hashes.clone(), computed.clone());
    let publish = session.publish_by_layers(blocks, Arc::clone(&layers))?;
    for layer in 0..LAYERS {
        computed.iter().for_each(|block| block.compute(layer));
        publish.layer_ready(layer); // it is copied while the next one is computed
    }
    let published = publish.finish().wait()?;
    let report = published.report?.ok_or("the publish was aborted")?;
    println!("{} blocks published by layers", report.available());

    let held = session.lookup_and_hold(hashes)?.wait()??;
    let memory = vec![vec![vec![0; LAYER_BYTES]; LAYERS]; held.blocks().len()];
    let fetch = session.fetch_by_layers(held.blocks(), memory, layers)?;
    for layer in 0..LAYERS {
        fetch.arrivals.wait(layer)?;
        println!("layer {layer} is there"); // the engine may use it, on trust
    }
    // A block is known to be right when its last layer is.
    let fetched = fetch.completion.wait()?;
    assert_eq!(fetched.report?.valid_blocks(), fetched.destinations.len());
    assert!(fetched.destinations.iter().all(|block| block[3] == [4; LAYER_BYTES]));
    Ok(())
}

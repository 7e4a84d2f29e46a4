//! One host publishes the blocks of a prompt, another one finds and fetches them.
//!
//! `cargo run -p rackline --example publish_and_fetch` uses memory of this machine. With
//! `-- REGION` it uses a formatted region. A process of a rack attaches once. Here one process
//! stands for two hosts.

use rackline::{
    Attention, ChainHasher, Dtype, KvGeometry, NewBlock, Pool, ScratchRegion, SessionOptions,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scratch = ScratchRegion::create(16 << 20, 2, 4096)?;
    let path = std::env::args_os().nth(1).unwrap_or_else(|| scratch.path().into());

    // Blocks of 8 tokens of a tiny model: 4,096 bytes each.
    let heads = Attention::Heads { kv_heads: 2, head_dim: 16 };
    let kv = KvGeometry::new(4, heads, Dtype::F16, 8)?;
    let options = SessionOptions::new(kv.model("tiny", "1", 1), kv.rank_block_bytes());
    let prompt: Vec<u32> = (0..24).collect();
    let hashes = ChainHasher::new(b"", 8).chain(&prompt);

    let prefill = Pool::attach(&path, 0)?; // on host 0
    let computed = [[1u8; 4096], [2; 4096], [3; 4096]];
    let parts = computed.each_ref().map(|block| [&block[..]]);
    let blocks = NewBlock::chain(0, hashes.iter().copied(), parts);
    let report = prefill.session(options)?.publish(&blocks)?;
    println!("{} blocks are in the pool", report.available());

    let decode = Pool::attach(&path, 1)?; // on host 1
    let session = decode.session(options)?;
    let held = session.lookup_and_hold(&hashes)?; // nobody evicts them now
    let mut memory = vec![[0u8; 4096]; held.blocks().len()];
    let destinations = memory.iter_mut().map(|block| vec![&mut block[..]]).collect();
    let report = session.fetch(&held.blocks(), destinations)?;
    assert_eq!(memory[..report.valid_blocks()], computed[..report.valid_blocks()]);
    println!("{} of them were fetched by another node", report.valid_blocks());
    Ok(())
}

//! An engine that never waits: its scheduler hands transfers over, goes on, and looks later.
//!
//! `cargo run -p rackline --example asynchronous` uses memory of this machine. With
//! `-- REGION` it uses a formatted region.

use rackline::{
    AsyncOptions, AsyncPool, Attention, ChainHasher, Dtype, KvGeometry, NewBlock, ScratchRegion,
    SessionOptions, SubmitErrorKind,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scratch = ScratchRegion::create(16 << 20, 1, 4096)?;
    let path = std::env::args_os().nth(1).unwrap_or_else(|| scratch.path().into());
    let heads = Attention::Heads { kv_heads: 2, head_dim: 16 };
    let kv = KvGeometry::new(4, heads, Dtype::F16, 8)?;
    let options = SessionOptions::new(kv.model("tiny", "1", 1), kv.rank_block_bytes());

    // Attach once a process; sessions are for any thread.
    let pool = AsyncPool::attach(&path, 0, &AsyncOptions::new().with_copy_threads(2))?;
    let session = pool.session(options)?;
    let hashes = ChainHasher::new(b"", 8).chain(&(0..32).collect::<Vec<u32>>());

    // The transfer owns the memory until it gives it back.
    let blocks = NewBlock::chain(0, hashes.clone(), (1..=4).map(|number| vec![number; 4096]));
    let publish = match session.publish(blocks) {
        Ok(publish) => publish,
        // A full queue is no error of the engine: the blocks come back, and stay out of the pool.
        Err(refused) if refused.kind == SubmitErrorKind::Busy => return Ok(()),
        Err(refused) => return Err(refused.into()),
    };
    let mut steps = 0;
    let published = loop {
        if let Some(published) = publish.poll()? {
            break published;
        }
        steps += 1;
        std::hint::black_box((0..100_000u64).sum::<u64>()); // the engine computes
    };
    println!("{} blocks published, {steps} steps later", published.report?.available());

    // Completions are futures, too; here this thread waits.
    let held = session.lookup_and_hold(hashes)?.wait()??;
    let memory = vec![vec![0; 4096]; held.blocks().len()];
    let fetched = session.fetch(held.blocks(), memory)?.wait()?;
    let valid = fetched.report?.valid_blocks();
    assert!(
        fetched.destinations[..valid].iter().zip(1..).all(|(block, number)| block[0] == number)
    );
    println!("{valid} blocks fetched");

    pool.close();
    Ok(())
}

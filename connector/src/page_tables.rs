//! Filling the page tables of an attached process, beside everything else that it does.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use cxl_shm::clock::{Clock as _, SystemClock};
use cxl_shm::region::{PageTables, Region};

use crate::spawn::spawn_with;

/// The thread that does so. It ends by itself, or when this is dropped.
#[derive(Debug)]
pub(crate) struct Filling {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Filling {
    /// Starts the thread; `None` where there is nothing for it to do.
    ///
    /// # Errors
    /// Why the system starts no thread.
    pub(crate) fn start(region: &Region) -> io::Result<Option<Self>> {
        let tables = match region.page_tables() {
            Ok(Some(tables)) => tables,
            Ok(None) => return Ok(None),
            Err(error) => {
                tracing::warn!(%error, "page tables are not filled: the first touch of each page \
                    will be a fault");
                return Ok(None);
            }
        };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = move |tables| fill(tables, &stopped);
        let thread = spawn_with("rackline-pages", tables, run).map_err(|(error, _)| error)?;
        Ok(Some(Self { stop, thread: Some(thread) }))
    }

    /// Leaves the thread alone: it is one of the parent of this process, made by `fork`.
    pub(crate) fn forget(mut self) {
        std::mem::forget(self.thread.take());
    }

    /// Waits until all is filled.
    #[cfg(test)]
    pub(crate) fn wait(mut self) {
        self.thread.take().into_iter().for_each(|thread| thread.join().unwrap());
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // At most a step. If it panicked, that was printed.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn fill(mut tables: PageTables, stopped: &AtomicBool) {
    let clock = SystemClock::start();
    let mut filled_bytes = 0;
    while !stopped.load(Ordering::Relaxed) {
        match tables.step() {
            Ok(Some(bytes)) => filled_bytes += bytes,
            Ok(None) => {
                let took_ms = clock.now_ms();
                let page_bytes = tables.page_bytes();
                let huge_bytes = tables.huge_bytes().ok().flatten().unwrap_or(0);
                tracing::info!(filled_bytes, page_bytes, huge_bytes, took_ms, "filled page tables");
                return;
            }
            Err(error) => {
                tracing::warn!(%error, filled_bytes, "page tables are filled in part: the first \
                    touch of each other page will be a fault");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Attention, BlockHash, Dtype, KvGeometry, NewBlock, Pool, ScratchRegion, SessionOptions,
    };

    const HEAD_DIM: u32 = 16 << 10;
    const BLOCK_BYTES: usize = 64 << 10;
    const BLOCKS: u8 = 128;

    /// Page faults of this thread so far that needed no drive: field 10 of proc_pid_stat(5).
    fn faults() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let fields = stat.rsplit(')').next().unwrap();
        fields.split_whitespace().nth(7).unwrap().parse().unwrap()
    }

    #[test]
    fn a_process_that_attaches_reads_what_is_there_without_faults() {
        let region = ScratchRegion::create(64 << 20, 1, BLOCK_BYTES as u64).unwrap();
        let heads = Attention::Heads { kv_heads: 1, head_dim: HEAD_DIM };
        let kv = KvGeometry::new(1, heads, Dtype::F16, 1).unwrap();
        let options = SessionOptions::new(kv.model("m", "1", 1), kv.rank_block_bytes());
        let hashes: Vec<_> = (0..BLOCKS).map(|number| BlockHash::new([number; 32])).collect();
        {
            let pool = Pool::attach(region.path(), 0).unwrap();
            let bytes = vec![7; BLOCK_BYTES];
            let parts = hashes.iter().map(|_| [&bytes[..]]);
            let blocks = NewBlock::chain(0, hashes.clone(), parts);
            let published = pool.session(options).unwrap().publish(&blocks).unwrap();
            assert_eq!(published.published(), usize::from(BLOCKS));
        }
        let mut pool = Pool::attach(region.path(), 0).unwrap();
        pool.wait_for_page_tables();
        let session = pool.session(options).unwrap();
        let found = session.lookup(&hashes).unwrap();
        let mut buffer = vec![1; BLOCK_BYTES];
        let before = faults();
        for block in found.blocks() {
            let report = session.fetch(&[*block], vec![vec![&mut buffer[..]]]).unwrap();
            assert_eq!(report.valid_blocks(), 1);
        }
        // Of 2,048 pages, of which a fault would map 16 at a time.
        let faults = faults() - before;
        assert!(faults < u64::from(BLOCKS) / 4, "{faults} faults");
    }
}

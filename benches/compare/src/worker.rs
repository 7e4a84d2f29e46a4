//! One side of one contender: takes orders from the driver, one after the other.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use cxl_shm::clock::SystemClock;
use rackline::Pool;
use rackline_workers::{tasks, tell};
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use rustix::time::{ClockId, clock_gettime};

use crate::contender::Contender;
use crate::protocol::{Blocks, Order, Reply};
use crate::stores::{Copying, LmdbStore, PlainStore, RacklineStore, RedisStore, Store};

/// How many orders pass before a buffer is used again: together they are larger than the last-level
/// cache, so that a block comes from memory and goes to memory.
const SECTIONS: usize = 4;

/// Which side of a contender.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Side {
    /// Puts blocks.
    Writer,
    /// Gets them.
    Reader,
}

/// What a worker is started with.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Whose side.
    #[arg(long, value_enum)]
    contender: Contender,
    /// Which side.
    #[arg(long, value_enum)]
    side: Side,
    /// Folder of the store.
    #[arg(long)]
    place: PathBuf,
    /// Bytes of an order.
    #[arg(long)]
    round_bytes: usize,
    /// Bytes that the whole run puts into the store.
    #[arg(long)]
    run_bytes: usize,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let desk = Desk::new(options.round_bytes);
    let place = options.place.as_path();
    match options.contender {
        Contender::Memcpy => desk.serve(&mut PlainStore::open(place, Copying::Memcpy)?),
        Contender::Stream => desk.serve(&mut PlainStore::open(place, Copying::Stream)?),
        Contender::Lmdb => desk.serve(&mut LmdbStore::open(place, options.run_bytes)?),
        Contender::Redis => desk.serve(&mut RedisStore::connect(place)?),
        Contender::Mooncake | Contender::LmCache => {
            anyhow::bail!("the workers of {} are Python programs", options.contender)
        }
        Contender::Rackline => {
            let pool = Pool::attach(place.join("region"), u16::from(options.side == Side::Reader))?;
            // What a worker with a device of 2 MiB pages has by itself.
            pool.attachment().region().prefault(64 << 20, |_, _| ())?;
            desk.serve(&mut RacklineStore::new(&pool))
        }
    }
}

/// What payload starts on, as in the region: some copies want more than a line's alignment.
const PAGE: usize = 4096;

/// The private memory of a worker, and its orders.
struct Desk {
    sections: Vec<Section>,
    next: usize,
}

/// Private memory that starts on a page.
struct Section {
    memory: Vec<u8>,
    start: usize,
}

impl Section {
    /// Memory that was touched: no page fault is measured.
    fn new(bytes: usize) -> Self {
        let memory = vec![0x5a; bytes + PAGE];
        let start = memory.as_ptr().align_offset(PAGE);
        Self { memory, start }
    }
}

impl Desk {
    fn new(section_bytes: usize) -> Self {
        let sections = (0..SECTIONS).map(|_| Section::new(section_bytes)).collect();
        Self { sections, next: 0 }
    }

    fn serve(mut self, store: &mut dyn Store) -> Result<()> {
        tell(&Reply::default())?;
        for order in tasks() {
            let reply = self.carry_out(store, order?).unwrap_or_else(|error| Reply {
                error: Some(format!("{error:#}")),
                ..Reply::default()
            });
            tell(&reply)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, store: &mut dyn Store, order: Order) -> Result<Reply> {
        match order {
            Order::Prepare(blocks) => {
                self.next = (self.next + 1) % SECTIONS;
                for (number, block) in blocks.numbers().iter().zip(self.buffers(&blocks)) {
                    fill(*number, block);
                }
                Ok(Reply { blocks: blocks.count, ..Reply::default() })
            }
            Order::Put(blocks) => {
                let mut buffers = self.buffers(&blocks);
                in_batches(&blocks, &mut buffers, |numbers, some| store.put(numbers, some))
            }
            Order::Get(blocks) => {
                self.next = (self.next + 1) % SECTIONS;
                let mut buffers = self.buffers(&blocks);
                let reply =
                    in_batches(&blocks, &mut buffers, |numbers, some| store.get(numbers, some))?;
                let mut expected = vec![0; blocks.block_len()];
                for (number, buffer) in blocks.numbers().into_iter().zip(buffers) {
                    fill(number, &mut expected);
                    ensure!(*buffer == expected, "block {number} has wrong bytes");
                }
                Ok(reply)
            }
            Order::Lookup(blocks) => {
                let numbers = blocks.numbers();
                let mut found = None;
                let mut reply = timed(|| {
                    found = store.lookup(&numbers)?;
                    Ok(())
                })?;
                reply.blocks = u32::try_from(found.unwrap_or(0))?;
                Ok(reply)
            }
            Order::Reset => {
                store.reset()?;
                Ok(Reply::default())
            }
        }
    }

    /// The buffers of an order's blocks.
    fn buffers(&mut self, blocks: &Blocks) -> Vec<&mut [u8]> {
        let Section { memory, start } = &mut self.sections[self.next];
        let buffers = memory[*start..].chunks_exact_mut(blocks.block_len());
        buffers.take(blocks.count as usize).collect()
    }
}

/// Calls `each` with the numbers and buffers of one batch after the other.
fn in_batches(
    blocks: &Blocks,
    buffers: &mut [&mut [u8]],
    mut each: impl FnMut(&[u64], &mut [&mut [u8]]) -> Result<()>,
) -> Result<Reply> {
    ensure!(buffers.len() == blocks.count as usize, "an order is larger than a section");
    let (numbers, batch) = (blocks.numbers(), blocks.batch as usize);
    let reply = timed(|| {
        let mut batches = numbers.chunks(batch).zip(buffers.chunks_mut(batch));
        batches.try_for_each(|(numbers, buffers)| each(numbers, buffers))
    })?;
    Ok(Reply { blocks: blocks.count, ..reply })
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<Reply> {
    let (clock, cpu_ns) = (SystemClock::start(), cpu_ns());
    work()?;
    let wall_ns = clock.now_ns();
    Ok(Reply { wall_ns, cpu_ns: self::cpu_ns() - cpu_ns, ..Reply::default() })
}

/// CPU time of this process so far.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
}

/// The bytes of a block: random ones that its number decides, so that nobody can compress them and
/// the reader knows them.
fn fill(number: u64, block: &mut [u8]) {
    SmallRng::seed_from_u64(number).fill_bytes(block);
}

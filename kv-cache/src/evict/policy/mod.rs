//! Which blocks leave first when room is needed: CLOCK, LRU and S3-FIFO behind one trait.
//!
//! A policy knows blocks by dense slot numbers and keeps its order in this process's own memory. It
//! decides nothing alone: it proposes, and the evicting process makes sure that a block is not
//! held, removes it, and says so. The same code works in the pool and in `rackline replay`.
//!
//! # Time and depth
//! A *tick* is a moment of the caller's own counting; ticks never go back. What is told with one
//! tick happened together, and then **deeper blocks leave before the blocks that they build on**
//! (*leaf first*), in whatever order they are told: a block without its ancestors can never be a
//! hit. A caller that counts a tick for every block gives up that rule on purpose.
//!
//! Policies do not know which block is an ancestor of which. A process that continues a prefix in
//! the pool touches the prefix too, or the prefix may leave first.

mod clock;
mod lru;
mod queue;
mod s3_fifo;

use std::fmt;
use std::str::FromStr;

pub use clock::Clock;
pub use lru::Lru;
pub use s3_fifo::S3Fifo;

/// A block that a policy is told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Newcomer {
    /// Stands for the block over all its lives, whichever slot it lies in: the first word of its
    /// key. Policies that remember what they evicted know it again by this.
    pub key: u64,
    /// Blocks before it in its prefix.
    pub depth: u32,
    /// When it came.
    pub tick: u64,
}

/// The order in which blocks leave.
///
/// Memory is proportional to the largest slot number told so far.
pub trait EvictionPolicy: fmt::Debug + Send {
    /// A block came into `slot`. One that was there before is gone.
    fn inserted(&mut self, slot: u32, block: Newcomer);

    /// The block in `slot` was used at `tick`. Ignored when there is none.
    fn touched(&mut self, slot: u32, tick: u64);

    /// The block in `slot` is gone, for whatever reason. Ignored when there is none.
    fn removed(&mut self, slot: u32);

    /// Up to `want` different slots that should leave, first to go first.
    ///
    /// A slot is proposed only when `may_evict` agrees; one that it refuses counts as just used.
    /// It may be asked about a slot more than once. All slots stay until they are said to be
    /// [`removed`](Self::removed); a proposed one that was not is treated as just used.
    ///
    /// Fewer than `want` come back when all others were refused: it looks at every block a bounded
    /// number of times.
    fn victims(&mut self, want: usize, may_evict: &mut dyn FnMut(u32) -> bool) -> Vec<u32>;

    /// Blocks that it knows.
    fn len(&self) -> usize;

    /// Whether it knows none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A policy by name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum PolicyKind {
    /// [`Clock`], which the pool uses.
    #[default]
    Clock,
    /// [`Lru`].
    Lru,
    /// [`S3Fifo`].
    S3Fifo,
}

impl PolicyKind {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::Clock, Self::Lru, Self::S3Fifo];

    /// Its name: `clock`, `lru` or `s3-fifo`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clock => "clock",
            Self::Lru => "lru",
            Self::S3Fifo => "s3-fifo",
        }
    }

    /// A policy that knows no blocks yet.
    #[must_use]
    pub fn build(self) -> Box<dyn EvictionPolicy> {
        match self {
            Self::Clock => Box::new(Clock::default()),
            Self::Lru => Box::new(Lru::default()),
            Self::S3Fifo => Box::new(S3Fifo::default()),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no policy of this name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no eviction policy \"{0}\"; there are clock, lru and s3-fifo")]
pub struct UnknownPolicy(pub String);

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let known = Self::ALL.into_iter().find(|kind| kind.name() == name);
        known.ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

#[cfg(test)]
mod tests;

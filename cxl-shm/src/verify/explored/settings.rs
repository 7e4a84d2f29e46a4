//! What memory a model is explored on, and how far.

use std::fmt;

use crate::verify::simulated::CacheMode;

/// A kind of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Whether caches do anything by themselves.
    pub caches: CacheMode,
    /// Whether a line that was flushed and fenced may still be on its way to the device until it
    /// is read back.
    pub posted_writes: bool,
}

impl Memory {
    /// Every kind.
    pub const ALL: [Self; 4] = [
        Self { caches: CacheMode::Sticky, posted_writes: false },
        Self { caches: CacheMode::Sticky, posted_writes: true },
        Self { caches: CacheMode::Adversarial, posted_writes: false },
        Self { caches: CacheMode::Adversarial, posted_writes: true },
    ];
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.caches {
            CacheMode::Sticky => "sticky",
            CacheMode::Adversarial => "adversarial",
        })?;
        f.write_str(if self.posted_writes { ", posted" } else { "" })
    }
}

/// Where an exploration gives up. One that does has proved nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most states.
    pub states: usize,
    /// Longest time.
    pub ms: u64,
}

//! When an engine computes, told to the agent of its host.

use cxl_shm::clock::{Clock, SystemClock};
use cxl_shm::fabric::{HostMemory, MappedHostMemory};
use cxl_shm::node::Backend;
use kv_cache::tier::{ForwardReporter, ForwardShape};

use super::SessionCore;
use crate::dma::DmaEngine;

/// What an engine says of its forwards: the agent of the host writes to drives meanwhile. Each call is
/// one store to the memory of the host. Dropped, the engine has nothing to say any more.
///
/// What counts is when blocks are asked for: a forward is told to begin when all is asked for that it
/// needs, and to end before more is. Forwards of one reporter follow one another. An engine has one, of
/// what asks in it; the ranks of a model that ask through one scheduler have none of their own.
#[derive(Debug)]
pub struct Forwards<H: HostMemory = MappedHostMemory> {
    reporter: ForwardReporter<H>,
    clock: SystemClock,
    began_us: u64,
}

impl<H: HostMemory> Forwards<H> {
    /// A forward begins, which computes `prompt_tokens` tokens of all its requests on `prefix_tokens`
    /// others that were there before. Until it ends the engine reads no drive for these requests.
    pub fn begin(&mut self, prompt_tokens: u64, prefix_tokens: u64) {
        self.began_us = self.clock.now_us();
        self.reporter.begin(ForwardShape::new(prompt_tokens, prefix_tokens));
    }

    /// The forward is over. Does nothing when none runs.
    pub fn end(&mut self) {
        self.reporter.end(self.clock.now_us().saturating_sub(self.began_us));
    }
}

impl<B, D, C> SessionCore<'_, B, D, C>
where
    B: Backend,
    B::HostMemory: Clone,
    D: DmaEngine,
    C: Clock,
{
    /// Begins to report the forwards of an engine that uses this session. `None` where the region has
    /// no room for drives, and where 64 engines of the host report already: then the engine leaves no
    /// window for writes to drives.
    #[must_use]
    pub fn report_forwards(&self) -> Option<Forwards<B::HostMemory>> {
        let mut number = [0; 8];
        number.copy_from_slice(&self.options.key_space_bytes()[..8]);
        let reporter = self.cache.report_forwards(u64::from_le_bytes(number)).ok().flatten()?;
        Some(Forwards { reporter, clock: SystemClock::start(), began_us: 0 })
    }
}

//! The stream of one request: what it has fetched, what it fetches next, what was used.

/// The stream of a request within one iteration.
///
/// `N` counts ticks, or parts of ticks.
#[derive(Clone, Debug)]
pub(super) struct Stream<'a, N> {
    /// Offloaded layers, ascending.
    layers: &'a [u16],
    /// How many may be fetched that have not executed.
    ahead: usize,
    /// Blocks of each of them.
    pub(super) blocks: u64,
    /// How many were fetched whole.
    fetched: usize,
    /// How many were used: their layers ended.
    used: usize,
    /// What is missing of the layer that is fetched now.
    pub(super) left: N,
}

/// A stream that has fetched all has nothing due.
const NEVER: u16 = u16::MAX;

impl<'a, N> Stream<'a, N> {
    pub(super) const fn new(layers: &'a [u16], ahead: usize, blocks: u64, left: N) -> Self {
        Self { layers, ahead, blocks, fetched: 0, used: 0, left }
    }

    /// The layer that is fetched now.
    pub(super) fn due(&self) -> u16 {
        self.layers.get(self.fetched).copied().unwrap_or(NEVER)
    }

    /// Whether there is anything left to fetch.
    pub(super) fn wants(&self) -> bool {
        self.fetched < self.layers.len()
    }

    /// Whether it may fetch while `layer` executes; 0 when none does.
    pub(super) fn may_fetch(&self, layer: u16) -> bool {
        self.wants() && self.fetched - self.used < self.ahead && !self.uses(layer)
    }

    /// Whether `layer` is one of its offloaded layers, when it executes (PLAN-L2).
    pub(super) fn uses(&self, layer: u16) -> bool {
        self.layers.get(self.used) == Some(&layer)
    }

    /// The layer being fetched is complete; of the next one `whole` is missing.
    pub(super) fn fetched(&mut self, whole: N) {
        self.fetched += 1;
        self.left = whole;
    }

    /// The layer in which the KV was used has ended.
    pub(super) fn used(&mut self) {
        self.used += 1;
    }

    /// Blocks of whole layers that were brought and not yet used.
    pub(super) fn whole_blocks(&self) -> u64 {
        (self.fetched - self.used) as u64 * self.blocks
    }
}

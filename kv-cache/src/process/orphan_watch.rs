//! Nodes whose slot nobody has, as this process has seen them.

use crate::evict::HoldWatch;

/// An orphan as this process sees it.
#[derive(Debug, Default)]
pub(crate) struct OrphanWatch {
    /// Holds on its blocks.
    pub(crate) holds: HoldWatch,
    /// When it is worth another try.
    pub(crate) again_at_ms: u64,
}

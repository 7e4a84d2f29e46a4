//! What the entries of a replica gained and lost, for programs that report it.

use crate::format::Handle;
use crate::identity::IndexKey;

/// Entries that came and went, each list in its order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// Blocks that became readable.
    pub added: Vec<(Handle, IndexKey)>,
    /// Keys of which one copy is gone. Another node may have the block still.
    pub removed: Vec<IndexKey>,
}

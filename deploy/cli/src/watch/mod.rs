//! A rack as it is seen from one of its hosts, without membership: what `rackline status` and the page
//! of an agent or lock manager show.
//!
//! ```text
//! blocks    the blocks of a node, by their descriptors; how hot the chunks are
//! findings  what is wrong, and what to do
//! events    what has changed from look to look
//! history   rates of the last minutes
//! map       the chunks as a bounded number of cells
//! tenants   what the blocks of tenants take
//! waits     who wants which lock
//! lookout   looks again and again, and keeps all that
//! ```

pub(crate) mod blocks;
pub(crate) mod events;
pub(crate) mod findings;
pub(crate) mod history;
pub(crate) mod lookout;
pub(crate) mod map;
pub(crate) mod tenants;
pub(crate) mod waits;

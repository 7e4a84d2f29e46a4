//! Reading: how long a prefix the pool has, and bytes that are certainly those of a block.

mod damage;
mod fetch;
mod lookup;
mod own;
mod unheld;

pub(crate) use fetch::accept;

pub use fetch::{Ticket, Wanted};
pub use lookup::{MatchedBlock, PrefixMatch};
pub use own::{OwnFeed, OwnNews, OwnUse};

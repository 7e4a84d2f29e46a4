//! Making room: in the background between two watermarks, by batches of evictions, and by chunks
//! that are emptied and given back.

mod balance;
mod batches;
mod clear;
mod give_back;
mod pin;
mod watermarks;

pub(crate) use give_back::GivenBack;

pub use balance::Upkeep;
pub use clear::{Clearing, DirectiveError};

pub use watermarks::{WatermarkError, Watermarks};

//! Making room: in the background between two watermarks, by batches of evictions, and by chunks
//! that are emptied and given back.

mod balance;
mod batches;
mod carry_out;
mod clear;
mod drain;
mod failed;
mod give_back;
mod issue;
mod pin;
mod summary;
mod watermarks;

#[cfg(test)]
pub(crate) use drain::LastAsked;
pub(crate) use give_back::GivenBack;

pub use balance::Upkeep;
#[cfg(test)]
pub(crate) use carry_out::pin_and_answer;
pub use clear::Clearing;
pub use issue::DirectiveError;

pub use watermarks::{WatermarkError, Watermarks};

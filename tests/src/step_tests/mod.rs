//! Step tests: one step of a protocol at a time on a rack moved by hand, each followed by the
//! one look that must see it.
//!
//! A protocol that polls mends a lost flush by doing the same again. Here nothing is repeated: one
//! round of the lock manager, one heartbeat, one pause of a clock. Before each step all caches
//! are filled with the state before it ([`Cluster::warm`](crate::rack::Cluster::warm)), so that a
//! missing refresh reads the past, and nothing leaves a cache by itself, so that a missing flush is
//! never made up for. All are functions of a [`Mutant`](crate::rack::Mutant) and a seed: of the
//! sound program each must pass under any seed, also on busy caches.

pub mod abandoned;
pub mod admission;
pub mod bakery;
pub mod beats;
mod bed;
pub mod chunks;
pub mod deaths;
pub mod deep;
pub mod formatting;
pub mod grants;
pub mod joining;
pub mod lock_table;
pub mod moving;
pub mod objects;
pub mod orphans;
pub mod remains;
pub mod rescue;
pub mod roots;
pub mod takeover;

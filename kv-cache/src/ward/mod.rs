//! Wards: what a node published that nobody has the slot of, because its host died or left.
//!
//! Its blocks stay readable where they are, and it no longer matters that nobody evicts them, until
//! chunks run short. Then a host that lives, its *guardian*, empties one of its chunks and gives that
//! back to the region: the only thing ever done to a ward. Everything else, blocks that the ward was
//! writing among it, is left to the next life of the slot, which sweeps it as always (E2, E3).
//!
//! Who may write what a ward left is said by rules W1 to W4, in `cxl_shm`'s `member/estate.rs`: a
//! host says in a word of its own whom it looks after, and then looks whether it may; a next life
//! says that it joins, and then looks whether somebody does. Of the area only log and segment are a
//! guardian's to write ([`Areas::published`](crate::area::Areas::published)). It empties a chunk as a
//! node evicts its own blocks (H1): EVICTING, look at the stamps, READY again or FREE, log.
//!
//! A crash anywhere leaves each block of the ward complete or free, as an eviction does: EVICTING is as
//! good as READY for who reads (H2), and READY again when the next guardian, or the next life, comes.

mod choose;
mod empty;
mod homecoming;
mod take;

#[cfg(test)]
pub(crate) use choose::AGAIN_MS;
pub(crate) use choose::WardWatch;
#[cfg(any(test, feature = "proof"))]
pub(crate) use empty::Ward;
pub use homecoming::BeingEmptied;
pub(crate) use take::settle_ward;

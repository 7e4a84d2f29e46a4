//! Requests for blocks that a GPU makes itself: a ring in memory of the host that threads of a GPU and one
//! thread of the host share.
//!
//! A kernel that needs a block writes a request, goes on, and polls for the answer. No launch ends and no
//! stream is waited for. The thread of the host reads the block from a drive to the place that the request
//! names, and answers. What `block` and `place` mean is between the two: for example the number of a key
//! and of a buffer that the host has prepared before the launch.
//!
//! A GPU behind PCIe has no atomic operations on memory of the host: `atom.cas.sys` is atomic there only
//! where the device says `HOST_NATIVE_ATOMIC_SUPPORTED`. So a word of [`Ring`] has one writer, as a line
//! of the pool has, and both sides load and store. Words for which GPU threads compete are [`AskerWords`],
//! in the memory of the GPU.
//!
//! - **RING-R1** A ticket is given to one asker. The asker writes `block` and `place` first, and the
//!   ticket last, with release; the server reads the ticket with acquire.
//! - **RING-R2** A slot takes the ticket of the next lap when the asker of this lap has read its answer.
//!   A ring whose slot is not free is full, and nothing waits: the request was not made.
//! - **RING-R3** An answer carries the ticket that it answers. An asker believes no other.
//! - **RING-R4** The place belongs to the server from the request to the answer. A request that the server
//!   drops is answered as failed.
//! - **RING-R5** The ring is closed when the server is gone and everything that the server took is answered.
//!   An asker that finds no answer in a closed ring was not served, and its place was not written.
//!
//! What each side does, as instructions of PTX for the side of the GPU:
//!
//! | step | GPU thread | memory |
//! |---|---|---|
//! | take a ticket | `ld.acquire.gpu` of the slot's lap, `atom.cas.gpu` of the next ticket | GPU |
//! | ask | `st.relaxed.sys` of block and place, `st.release.sys` of the ticket | host |
//! | poll | `ld.acquire.sys` of the answer, then of the closed word | host |
//! | give the slot back | `st.release.gpu` of the slot's lap | GPU |
//!
//! The memory of a [`Ring`] has to be registered with the driver and mapped before a GPU uses it. Its words
//! are laid out as [`Slot`] and [`Answer`] say. This module makes no claim of speed: no GPU ran it. Its tests
//! are every interleaving of few requests under loom, with each rule broken in turn, and a store that
//! serves askers on threads of the CPU.

#[cfg(test)]
mod model;
mod protocol;
mod sync;
#[cfg(test)]
mod tests;

pub use protocol::{
    Answer, Asked, AskerWords, Outcome, Request, Ring, RingFull, Server, Slot, Ticket,
};

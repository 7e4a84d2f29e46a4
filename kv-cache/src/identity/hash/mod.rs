//! Chain hashing of tokens into block hashes.
//!
//! Engines with a hasher of their own pass its hashes on as they are. The hashers here are for
//! engines that have none ([`ChainHasher`]), and for tools and tests that must name blocks as vLLM
//! ([`vllm`]) or a Dynamo router ([`dynamo`]) does.

pub mod dynamo;
mod rackline;
pub mod vllm;

pub use rackline::ChainHasher;

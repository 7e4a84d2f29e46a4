//! How many threads the engine computes with.
//!
//! candle and rayon read the number from the environment once, at their first use. A process that
//! starts workers therefore sets it for them; results do not depend on it.

use std::num::NonZeroUsize;

/// The variables that make a worker process compute with `threads` threads, for
/// [`Command::envs`](std::process::Command::envs).
///
/// Give all workers together at most as many threads as there are CPUs: candle's threads spin while
/// they wait for each other, so more of them only take time from one another.
pub fn environment(threads: NonZeroUsize) -> [(&'static str, String); 2] {
    ["RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"].map(|name| (name, threads.to_string()))
}

/// The number of threads this process computes with.
pub fn configured() -> usize {
    candle_core::utils::get_num_threads()
}

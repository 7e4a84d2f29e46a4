//! Calls leave the thread's current context as it was: the engine of the thread may be at work with
//! another GPU.

use anyhow::{Result, anyhow, ensure};
use cudarc::driver::result::ctx;

/// Has `work` done by a thread without a current context, which has none afterwards either.
pub(crate) fn without_context<T: Send>(
    what: &str,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let work = || {
        let done = work()?;
        ensure!(ctx::get_current()?.is_none(), "{what}: the thread has another context afterwards");
        Ok(done)
    };
    std::thread::scope(|scope| {
        scope.spawn(work).join().map_err(|_| anyhow!("a thread panicked"))?
    })
}

//! Threads that give back what they were to work with when they cannot be started.

use std::io;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};

/// Starts a thread that runs `run` with `given`.
///
/// # Errors
/// Why the system starts no thread, with what was given.
pub(crate) fn spawn_with<G, T>(
    name: &str,
    given: G,
    run: impl FnOnce(G) -> T + Send + 'static,
) -> Result<JoinHandle<T>, (io::Error, G)>
where
    G: Send + 'static,
    T: Send + 'static,
{
    let (hand_over, handed_over) = mpsc::sync_channel(1);
    let body = move || run(handed_over.recv().expect("it is handed over at once"));
    let started = builder(name).and_then(|builder| builder.spawn(body));
    match started {
        Ok(thread) => {
            hand_over.send(given).expect("the thread waits for it");
            Ok(thread)
        }
        Err(error) => Err((error, given)),
    }
}

#[cfg(not(test))]
#[expect(clippy::unnecessary_wraps, reason = "tests refuse threads")]
fn builder(name: &str) -> io::Result<Builder> {
    Ok(Builder::new().name(name.to_owned()))
}

#[cfg(test)]
fn builder(name: &str) -> io::Result<Builder> {
    refusal::check(name)?;
    Ok(Builder::new().name(name.to_owned()))
}

/// Threads that a test has refused.
#[cfg(test)]
pub(crate) mod refusal {
    use std::cell::Cell;
    use std::io;

    thread_local! {
        static NAME: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// While it lives, this thread cannot start threads of one name.
    #[must_use]
    #[derive(Debug)]
    pub(crate) struct Refusal(());

    pub(crate) fn of(name: &'static str) -> Refusal {
        NAME.set(Some(name));
        Refusal(())
    }

    impl Drop for Refusal {
        fn drop(&mut self) {
            NAME.set(None);
        }
    }

    pub(super) fn check(name: &str) -> io::Result<()> {
        if NAME.get() == Some(name) {
            return Err(io::Error::other("refused by a test"));
        }
        Ok(())
    }
}

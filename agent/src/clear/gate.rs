//! Which blocks may be announced and restored while clears are carried out.

use std::sync::{Mutex, MutexGuard, PoisonError};

use kv_cache::NamespaceTag;
use kv_cache::tier::ClearSet;

/// What is stopped, by folder.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stopped(Vec<Option<ClearSet>>);

impl Stopped {
    /// Whether blocks of `folder` may be used at all (AGENT-C2).
    #[must_use]
    pub(crate) fn is_known(&self, folder: usize) -> bool {
        matches!(self.0.get(folder), Some(Some(_)))
    }

    /// Whether a block of `folder` may be announced and restored.
    #[must_use]
    pub(crate) fn lets(&self, folder: usize, tag: NamespaceTag) -> bool {
        self.0.get(folder).and_then(Option::as_ref).is_some_and(|clears| !clears.has(tag))
    }
}

#[derive(Debug, Default)]
struct Inner {
    /// Grows with each change.
    number: u64,
    /// The last change that restores follow.
    followed: u64,
    stopped: Stopped,
}

/// What the thread that carries clears out tells the thread that restores.
#[derive(Debug)]
pub(crate) struct Gate(Mutex<Inner>);

impl Gate {
    /// One that lets no block of any folder through.
    #[must_use]
    pub(crate) fn new(folders: usize) -> Self {
        let stopped = Stopped((0..folders).map(|_| None).collect());
        Self(Mutex::new(Inner { stopped, ..Inner::default() }))
    }

    /// Stops the namespaces of `clears` in a folder, and lets all others through. Returns the number
    /// of the change.
    pub(crate) fn stop(&self, folder: usize, clears: ClearSet) -> u64 {
        let mut inner = self.inner();
        if let Some(place) = inner.stopped.0.get_mut(folder) {
            *place = Some(clears);
        }
        inner.number += 1;
        inner.number
    }

    /// Whether restores follow change `number`.
    #[must_use]
    pub(crate) fn is_followed(&self, number: u64) -> bool {
        self.inner().followed >= number
    }

    /// What is stopped now.
    #[must_use]
    pub(crate) fn stopped(&self) -> Stopped {
        self.inner().stopped.clone()
    }

    /// The last change behind change `seen`, if there is one.
    #[must_use]
    pub(crate) fn news(&self, seen: u64) -> Option<(u64, Stopped)> {
        let inner = self.inner();
        (inner.number > seen).then(|| (inner.number, inner.stopped.clone()))
    }

    /// Says that restores follow change `number`: none of a block that it stops is under way.
    pub(crate) fn follow(&self, number: u64) {
        self.inner().followed = number;
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

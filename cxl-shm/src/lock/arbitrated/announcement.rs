//! How a node's threads tell the lock manager that they ask for a lock (LOCK-S1 to LOCK-S3).

use super::copy::RequestCopy;
use super::request::Request;
use super::summary::Summary;
use crate::fabric::PublishBatch;
use crate::mutant::{self, Mutant};
use crate::node::{Backend, NodeHandle};
use crate::units::LockId;

/// What a waiting thread last published for the lock manager.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Announcement {
    /// Its request.
    Copy(RequestCopy),
    /// A number, after its request's word had arrived.
    Number(Summary),
}

impl Announcement {
    /// Publishes the request of this node for `lock` and the copy of it, with one fence (LOCK-S3).
    pub(super) fn publish<B: Backend>(
        handle: &NodeHandle<B>,
        fabric: &B::Fabric,
        lock: LockId,
        request: Request,
    ) -> Self {
        let copy = RequestCopy::new(lock, request);
        let mut batch = PublishBatch::new(fabric);
        batch.word(handle.request(lock), request.word());
        batch.word(handle.request_copy(), copy.word());
        batch.publish();
        Self::Copy(copy)
    }

    /// For a thread whose request for `lock` is published and not granted yet. Tells the lock
    /// manager by a number when another thread of the host has overwritten what this one told
    /// (LOCK-S2, LOCK-S3).
    pub(super) fn repeat_if_hidden<B: Backend>(
        &mut self,
        handle: &NodeHandle<B>,
        fabric: &B::Fabric,
        lock: LockId,
    ) {
        let is_hidden = match *self {
            Self::Copy(copy) => {
                !mutant::is(Mutant::TellsByCopyOnly)
                    && handle.request_copy().own(fabric) != copy.word()
            }
            Self::Number(number) => {
                !mutant::is(Mutant::TellsOnce)
                    && Summary::from_word(handle.summary().own(fabric)).is_before(number)
            }
        };
        if is_hidden {
            *self = Self::Number(tell_number(handle, fabric, lock));
        }
    }
}

/// Tells the manager that the request of this node for `lock`, which was published before, has
/// changed (LOCK-S1). Returns the word that was written.
///
/// Several threads of the host may do so at once. A number may then be overwritten by a smaller
/// one. A manager that saw the larger one sees the number go back, and looks at everything. A
/// manager that did not see it may miss a request until LOCK-S2 is applied.
pub(super) fn tell_number<B: Backend>(
    handle: &NodeHandle<B>,
    fabric: &B::Fabric,
    lock: LockId,
) -> Summary {
    let number = Summary::new(handle.tier().next_request(), lock);
    handle.summary().publish(fabric, number.word());
    number
}

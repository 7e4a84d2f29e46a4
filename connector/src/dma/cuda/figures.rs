//! What an engine did so far.

use std::sync::{Arc, Mutex};

use super::registration::RegistrationFigures;
use crate::dma::lock;

/// What an engine did so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CudaFigures {
    /// Bytes that came into the pool.
    pub stored_bytes: u64,
    /// Bytes that came out of it.
    pub loaded_bytes: u64,
    /// How many of both went through the buffer.
    pub bounced_bytes: u64,
    /// How many of both have a checksum that the GPU computed, of its own memory.
    pub gpu_summed_bytes: u64,
    /// Payloads that the driver failed to copy.
    pub failed_payloads: u64,
    /// Bytes of the pool that are registered with the driver now. This and what follows is of all
    /// GPUs of the process that share the registration.
    pub registered_bytes: u64,
    /// Pieces of the pool that were registered.
    pub registrations: u64,
    /// Those of them that were unregistered again.
    pub unregistrations: u64,
    /// Pieces that the driver refused to register. A call that touches one copies all of its payloads
    /// through the buffer.
    pub refused_registrations: u64,
    /// Registrations above the limit: calls under way needed more than that.
    pub registrations_over_limit: u64,
    /// Nanoseconds that threads spent to register and to unregister, with the first touch of pages.
    pub registering_ns: u64,
}

/// The figures of an engine, known also after it ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedFigures {
    /// What it copied.
    copies: Arc<Mutex<CudaFigures>>,
    /// `None` where nothing is registered.
    registration: Option<Arc<Mutex<RegistrationFigures>>>,
}

impl SharedFigures {
    pub(super) fn new(registration: Option<Arc<Mutex<RegistrationFigures>>>) -> Self {
        Self { copies: Arc::default(), registration }
    }

    /// Counts what was copied.
    pub(super) fn count(&self, add: impl FnOnce(&mut CudaFigures)) {
        add(&mut lock(&self.copies));
    }

    /// All of them now.
    pub(crate) fn now(&self) -> CudaFigures {
        let copies = *lock(&self.copies);
        let registration = self.registration.as_ref().map(|figures| *lock(figures));
        let registration = registration.unwrap_or_default();
        CudaFigures {
            registered_bytes: registration.registered_bytes,
            registrations: registration.registrations,
            unregistrations: registration.unregistrations,
            refused_registrations: registration.refused,
            registrations_over_limit: registration.over_limit,
            registering_ns: registration.driver_ns,
            ..copies
        }
    }
}

//! What of a payload lies in one part, and in one piece of the registration.

use cxl_shm::units::Extent;

use super::copies::{Copies, Copy};
use super::engine::Inner;
use super::memory::{DeviceDestination, DeviceSource};
use super::registration::Registration;
use crate::dma::{LoadJob, StoreJob};

impl Inner {
    pub(super) fn down_copies(
        &self,
        payload: Extent,
        job: &StoreJob<'_, DeviceSource<'_>>,
        registration: &Registration,
    ) -> Copies {
        let mut copies = Copies::default();
        let parts = job.parts.iter().map(|part| (part.address, part.bytes));
        self.add_down(&mut copies, payload, parts, registration);
        copies
    }

    pub(super) fn up_copies(
        &self,
        payload: Extent,
        job: &LoadJob<DeviceDestination<'_>>,
        registration: &Registration,
    ) -> Copies {
        let mut copies = Copies::default();
        let parts = job.parts.iter().map(|part| (part.address, part.bytes));
        self.add_up(&mut copies, payload, parts, registration);
        copies
    }

    /// Adds the copies to `to`, in the pool, from these parts in order (address and length).
    pub(super) fn add_down(
        &self,
        copies: &mut Copies,
        to: Extent,
        parts: impl Iterator<Item = (u64, usize)>,
        registration: &Registration,
    ) {
        self.runs(to, parts, registration, |pool, device, bytes| {
            copies.add(Copy { to: pool, from: device, bytes });
        });
    }

    /// Adds the copies from `from`, in the pool, to these parts in order (address and length).
    pub(super) fn add_up(
        &self,
        copies: &mut Copies,
        from: Extent,
        parts: impl Iterator<Item = (u64, usize)>,
        registration: &Registration,
    ) {
        self.runs(from, parts, registration, |pool, device, bytes| {
            copies.add(Copy { to: device, from: pool, bytes });
        });
    }

    /// Each run of bytes that lies in one part and in one piece of the registration: its address in
    /// the mapping, on the GPU, and its length.
    fn runs(
        &self,
        payload: Extent,
        parts: impl Iterator<Item = (u64, usize)>,
        registration: &Registration,
        mut each: impl FnMut(u64, u64, usize),
    ) {
        let mapping = self.host.fabric().mapping();
        let start = mapping.address(payload).expect("the job was checked to lie in the mapping");
        let start = start.expose_provenance() as u64;
        let mut offset = payload.offset();
        for (mut device, bytes) in parts {
            for (at, bytes) in registration.runs(offset, bytes) {
                each(start + (at - payload.offset()), device, bytes);
                device += bytes as u64;
            }
            offset += bytes as u64;
        }
    }
}

//! Plain copies of the same bytes, whole payloads one after another: the ceiling.

#![expect(clippy::disallowed_methods, reason = "this is what the machine takes, not the protocol")]

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use cudarc::driver::{CudaSlice, CudaStream, PinnedHostSlice};
use rackline::dma::cuda::pinned_memory;

use super::cases::{Case, Way};
use crate::device::Device;

/// One direction, on a stream of its own.
struct Direction {
    stream: Arc<CudaStream>,
    memory: CudaSlice<u8>,
    pinned: PinnedHostSlice<u8>,
    copies: u64,
}

pub(super) struct Plain {
    down: Option<Direction>,
    up: Option<Direction>,
}

impl Plain {
    /// All copies of a round.
    pub(super) fn new(device: &Device, case: &Case) -> Result<Self> {
        Self::of(device, case, case.payloads * case.threads)
    }

    /// Those of one of the threads.
    pub(super) fn of_thread(device: &Device, case: &Case) -> Result<Self> {
        Self::of(device, case, case.payloads)
    }

    fn of(device: &Device, case: &Case, copies: u64) -> Result<Self> {
        let context = device.dma.context();
        let bytes = usize::try_from(case.payload_bytes)?;
        let direction = |share| {
            let stream = context.new_stream()?;
            let memory = stream.alloc_zeros::<u8>(bytes)?;
            stream.synchronize()?;
            let pinned = pinned_memory(context, bytes)?;
            anyhow::Ok(Some(Direction { stream, memory, pinned, copies: copies / share }))
        };
        Ok(match case.way {
            Way::Store => Self { down: direction(1)?, up: None },
            Way::Load => Self { down: None, up: direction(1)? },
            Way::Both => Self { down: direction(2)?, up: direction(2)? },
        })
    }

    /// Seconds of a round.
    pub(super) fn round(&mut self) -> Result<f64> {
        let started = Instant::now();
        let copies = [&self.down, &self.up].into_iter().flatten().map(|way| way.copies).max();
        for number in 0..copies.unwrap_or(0) {
            if let Some(Direction { stream, memory, pinned, copies }) = &mut self.down
                && number < *copies
            {
                stream.memcpy_dtoh(memory, pinned)?;
            }
            if let Some(Direction { stream, memory, pinned, copies }) = &mut self.up
                && number < *copies
            {
                stream.memcpy_htod(pinned, memory)?;
            }
        }
        for way in [&self.down, &self.up].into_iter().flatten() {
            way.stream.synchronize()?;
        }
        Ok(started.elapsed().as_secs_f64())
    }
}

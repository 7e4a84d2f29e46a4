//! Reads through `io_uring` that do nothing else: the ceiling of the drive.
#![expect(unsafe_code, reason = "requests in a ring name memory by its address")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

use io_uring::{IoUring, opcode, types};
use memmap2::MmapMut;

/// A ring and a buffer for each read that is under way.
#[derive(Debug)]
pub struct RingLoop {
    buffers: Vec<MmapMut>,
}

impl RingLoop {
    /// A loop with `depth` reads of `bytes` under way.
    ///
    /// # Errors
    /// The system's.
    pub fn new(depth: usize, bytes: usize) -> io::Result<Self> {
        let mut buffers =
            (0..depth).map(|_| MmapMut::map_anon(bytes)).collect::<io::Result<Vec<_>>>()?;
        // The first touch of a page is no part of a read.
        buffers.iter_mut().for_each(|buffer| buffer.fill(1));
        Ok(Self { buffers })
    }

    /// Reads whole buffers at all `places`, in order.
    ///
    /// # Errors
    /// The system's, and a short read.
    pub fn read(&mut self, places: &[(&File, u64)]) -> io::Result<()> {
        let depth = u32::try_from(self.buffers.len()).map_err(io::Error::other)?;
        let mut ring = IoUring::new(depth)?;
        let mut free: Vec<usize> = (0..self.buffers.len()).collect();
        let mut places = places.iter();
        loop {
            while let Some(at) = free.pop() {
                let Some((file, offset)) = places.next() else {
                    free.push(at);
                    break;
                };
                let buffer = &mut self.buffers[at];
                let bytes = u32::try_from(buffer.len()).map_err(io::Error::other)?;
                let file = types::Fd(file.as_raw_fd());
                let read = opcode::Read::new(file, buffer.as_mut_ptr(), bytes).offset(*offset);
                // SAFETY: the buffer is used for nothing else until its place is free again, and all
                // reads have ended before this call returns, unless the ring itself fails.
                unsafe { ring.submission().push(&read.build().user_data(at as u64)) }
                    .map_err(io::Error::other)?;
            }
            if free.len() == self.buffers.len() {
                return Ok(());
            }
            ring.submit_and_wait(1)?;
            for ended in ring.completion() {
                let at = usize::try_from(ended.user_data()).map_err(io::Error::other)?;
                if usize::try_from(ended.result()).ok() != Some(self.buffers[at].len()) {
                    // Others are under way: their memory is never freed.
                    std::mem::forget(std::mem::take(&mut self.buffers));
                    return Err(io::Error::other(format!("a read gave {}", ended.result())));
                }
                free.push(at);
            }
        }
    }
}

/// Seconds of processors that this process has used, in all its threads.
#[must_use]
pub fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

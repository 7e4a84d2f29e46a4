//! Pieces of the pool that are registered with the driver: when a copy first touches them, and within
//! a limit.
//!
//! The driver pins what is registered. That takes memory of the kernel and of the GPU, and time: for a
//! pool of a terabyte, gigabytes and minutes in each process. So a piece is registered when a call
//! first copies to or from it. All GPUs of a process share its registrations.
//!
//! ```text
//!                      pin                      driver done
//!   (not registered) -------> being registered -------------> registered, with pins
//!          ^                                                    |  ^
//!          |  driver done                  last pin taken back  v  | pin
//!   being unregistered <--------------------------------- registered, idle
//!                         room is needed: the least recently used
//! ```
//!
//! - **CUDA-R1** A copy reaches only pieces that its call has pinned, and the pins stay until the driver
//!   has waited for the lane of the call. What it could not wait for stays pinned, registered and
//!   mapped until the process ends (CUDA-E2).
//! - **CUDA-R2** Only a piece without pins is unregistered. Where the limit is reached, this comes before
//!   another piece is registered. So no more is registered than the limit, or than calls under way
//!   need.
//! - **CUDA-R3** No thread waits for a pin. Where all pieces have one, a call registers more than the limit
//!   allows, which is counted, and unregistered when the pins are gone. A thread waits for another
//!   only while the driver works on a piece that it needs itself.
//! - **CUDA-R4** When the driver refuses a piece, one that is idle is unregistered, and the driver is asked
//!   once more. When it refuses again, the call copies through the buffer. That is counted, and the
//!   first is logged. Later calls ask the driver ever more rarely. Where the room of an idle piece was
//!   of no use, others are unregistered for that ever more rarely, too, until the driver has registered
//!   one.
//! - **CUDA-R5** What the driver fails to unregister counts as registered, and stays mapped until the
//!   process ends.

mod ahead;
mod mapped;
mod pieces;
mod pins;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, Once, PoisonError};

use cudarc::driver::CudaContext;
use cxl_shm::clock::SystemClock;
use cxl_shm::fabric::Mapping;
use cxl_shm::units::Extent;

use super::options::CudaOptions;
use super::reach::PoolReach;
use crate::dma::lock;
pub(crate) use ahead::AheadThreads;
use mapped::MappedPool;
use pieces::Pieces;
pub(super) use pins::Pins;
pub(super) use table::RegistrationFigures;
use table::{HadRoom, Table, Wish};

/// What registers pieces: the driver, or what stands for it in tests. A call that panics is one that
/// is refused.
pub(super) trait Registrar: Debug {
    /// # Errors
    /// The reason. Nothing is changed then.
    fn register(&self, piece: Extent) -> Result<(), String>;

    /// # Errors
    /// The reason. The piece may be registered then, and stays mapped (CUDA-R5).
    fn unregister(&self, piece: Extent) -> Result<(), String>;
}

/// The registrations of a pool. All of them end when this is dropped; no copy is under way then.
#[derive(Debug)]
pub(super) struct Registrations<R: Registrar> {
    registrar: R,
    pieces: Pieces,
    limit_bytes: u64,
    /// Held for moments: not while the driver works.
    table: Mutex<Table>,
    /// Told when the driver is done with a piece.
    changed: Condvar,
    /// Those of the table, known also after this has ended.
    figures: Arc<Mutex<RegistrationFigures>>,
    limit_is_told: Once,
}

/// Those of a mapping.
pub(super) type Registration = Registrations<MappedPool>;

impl Registration {
    /// Registers the first piece of `mapping`, as memory or else as memory of a device. All others are
    /// registered in the same way: when they are used, or now, on `threads`, as `options` say.
    ///
    /// # Errors
    /// The driver's reasons; nothing is registered then.
    pub(super) fn open(
        context: &Arc<CudaContext>,
        mapping: &Arc<Mapping>,
        options: &CudaOptions,
        threads: AheadThreads<'_>,
    ) -> Result<(Arc<Self>, PoolReach), String> {
        let pieces = Pieces::new(mapping.bytes(), options.registered_piece_bytes);
        let mut refused = Vec::new();
        for (is_device, reach) in
            [(false, PoolReach::Registered), (true, PoolReach::RegisteredAsDevice)]
        {
            let registrar = MappedPool::new(context, mapping, is_device);
            let limit_bytes = options.registered_bytes_max.unwrap_or(u64::MAX);
            let registration = Arc::new(Self::new(registrar, pieces, limit_bytes));
            let first = registration.pin(std::iter::once(pieces.extent(0))).map(drop);
            match first {
                Ok(()) => {
                    if options.register_at_start {
                        registration.register_at_start(threads);
                    }
                    return Ok((registration, reach));
                }
                Err(reason) => refused.push(reason),
            }
        }
        let [memory, device] = &refused[..] else { unreachable!("one reason for each try") };
        Err(format!("as memory: {memory}; as memory of a device: {device}"))
    }
}

impl<R: Registrar> Registrations<R> {
    fn new(registrar: R, pieces: Pieces, limit_bytes: u64) -> Self {
        Self {
            registrar,
            pieces,
            limit_bytes,
            table: Mutex::new(Table::new(pieces, limit_bytes)),
            changed: Condvar::new(),
            figures: Arc::default(),
            limit_is_told: Once::new(),
        }
    }

    pub(super) fn figures(&self) -> &Arc<Mutex<RegistrationFigures>> {
        &self.figures
    }

    /// Registers the pieces in which `extents` lie, unless they are, and pins them.
    ///
    /// # Errors
    /// The driver's reason. Nothing is pinned then.
    pub(super) fn pin(
        self: &Arc<Self>,
        extents: impl Iterator<Item = Extent>,
    ) -> Result<Pins<R>, String> {
        let mut wanted: Vec<u64> = extents.flat_map(|extent| self.pieces.under(extent)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut pins = Pins::none(self);
        let mut table = lock(&self.table);
        // First, so that none of them is unregistered for the others.
        wanted.retain(|piece| {
            let is_pinned = table.pin_registered(*piece);
            if is_pinned {
                pins.add(*piece);
            }
            !is_pinned
        });
        for piece in wanted {
            loop {
                match table.pin(piece) {
                    Wish::Pinned => break,
                    // CUDA-R3: only while the driver works on it.
                    Wish::Changing => {
                        table = self.changed.wait(table).unwrap_or_else(PoisonError::into_inner);
                    }
                    Wish::Refused(reason) => {
                        // The pins take the lock when they are dropped.
                        drop(table);
                        return Err(reason);
                    }
                    Wish::Register { first_unregister } => {
                        drop(table);
                        self.register(piece, first_unregister)?;
                        table = lock(&self.table);
                        break;
                    }
                }
            }
            pins.add(piece);
        }
        Ok(pins)
    }

    /// Registers a piece, with a pin, when `first_unregister` are unregistered.
    fn register(&self, piece: u64, first_unregister: Vec<u64>) -> Result<(), String> {
        if !first_unregister.is_empty() {
            self.tell_limit();
        }
        // CUDA-R2: before the driver pins more.
        first_unregister.into_iter().for_each(|idle| self.unregister(idle));
        let extent = self.pieces.extent(piece);
        let mut outcome = self.ask(|| self.registrar.register(extent));
        // CUDA-R4
        let registered_before = lock(&self.table).figures.registrations;
        let freed_bytes = if outcome.is_err() { self.make_room(extent.bytes()) } else { 0 };
        if freed_bytes > 0 {
            outcome = self.ask(|| self.registrar.register(extent));
        }
        let had_room = (freed_bytes >= extent.bytes()).then_some(HadRoom { registered_before });
        self.change(|table| match &outcome {
            Ok(()) => table.registered(piece),
            Err(reason) => table.refused(piece, reason, had_room),
        });
        outcome
    }

    /// Unregisters a piece that was taken from the idle ones.
    fn unregister(&self, piece: u64) {
        let extent = self.pieces.extent(piece);
        let outcome = self.ask(|| self.registrar.unregister(extent));
        self.change(|table| table.unregistered(piece, outcome.is_ok()));
        if let Err(reason) = &outcome {
            tracing::error!(
                reason,
                "the CUDA driver does not unregister a piece of the pool: it stays registered and \
                 mapped until the process ends"
            );
        }
    }

    /// Unregisters idle pieces of so many bytes together, for one that the driver refused. Fewer bytes
    /// where there are not as many, or where that was of no use lately.
    fn make_room(&self, bytes: u64) -> u64 {
        let mut freed_bytes = 0;
        let gives_room = lock(&self.table).gives_room();
        while gives_room && freed_bytes < bytes {
            let idle = lock(&self.table).take_idle();
            let Some(idle) = idle else { break };
            self.unregister(idle);
            freed_bytes += self.pieces.extent(idle).bytes();
        }
        freed_bytes
    }

    /// Takes back pins, and unregisters what is above the limit.
    fn unpin(&self, pieces: &BTreeSet<u64>) {
        let mut excess = {
            let mut table = lock(&self.table);
            pieces.iter().for_each(|piece| table.unpin(*piece));
            table.take_excess()
        };
        while let Some(piece) = excess {
            self.tell_limit();
            self.unregister(piece);
            excess = lock(&self.table).take_excess();
        }
    }

    /// Has the registrar work on a piece. Other threads may wait for the outcome: so there is one also
    /// where it panics.
    fn ask(&self, work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        let clock = SystemClock::start();
        // It has no state that a panic could leave half changed.
        let outcome = catch_unwind(AssertUnwindSafe(work));
        lock(&self.table).figures.driver_ns += clock.now_ns();
        outcome.unwrap_or_else(|_printed| Err("the call panicked".into()))
    }

    fn change(&self, change: impl FnOnce(&mut Table)) {
        let mut table = lock(&self.table);
        change(&mut table);
        *lock(&self.figures) = table.figures;
        drop(table);
        self.changed.notify_all();
    }

    fn tell_limit(&self) {
        let limit_bytes = self.limit_bytes;
        self.limit_is_told.call_once(|| {
            tracing::warn!(
                limit_bytes,
                "this process copies more of the pool than it may have registered: pieces of it are \
                 unregistered for others, which delays copies; when the figure \"unregistrations\" \
                 grows steadily, set {} to more",
                CudaOptions::REGISTER_LIMIT,
            );
        });
    }
}

impl<R: Registrar> Drop for Registrations<R> {
    fn drop(&mut self) {
        // Nothing has a pin: pins have a share of this.
        let all = lock(&self.table).take_all();
        for piece in all {
            let outcome = self.ask(|| self.registrar.unregister(self.pieces.extent(piece)));
            let table = self.table.get_mut().unwrap_or_else(PoisonError::into_inner);
            if outcome.is_ok() {
                table.figures.registered_bytes -= self.pieces.extent(piece).bytes();
                table.figures.unregistrations += 1;
            }
            *lock(&self.figures) = table.figures;
        }
    }
}

//! A host's memory in which a test acts just before an access.

use std::fmt;

use super::SimulatedHost;
use crate::fabric::{Fabric, LineWords};
use crate::units::{LineOffset, LineRange, WordOffset};

/// An operation of a [`Fabric`] that is about to be carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// [`Fabric::load`].
    Load(WordOffset),
    /// [`Fabric::store`].
    Store(WordOffset),
    /// [`Fabric::read_line`].
    ReadLine(LineOffset),
    /// [`Fabric::write_line`].
    WriteLine(LineOffset),
    /// [`Fabric::write_back`].
    WriteBack(LineRange),
    /// [`Fabric::invalidate`].
    Invalidate(LineRange),
    /// [`Fabric::fence`].
    Fence,
    /// [`Fabric::read_back`].
    ReadBack(LineRange),
}

impl Access {
    /// Whether it only looks at what the host's caches hold.
    #[must_use]
    pub fn is_load(self) -> bool {
        matches!(self, Self::Load(_) | Self::ReadLine(_))
    }

    /// Whether it drops `line` from the host's caches.
    #[must_use]
    pub fn invalidates(self, line: LineOffset) -> bool {
        matches!(self, Self::Invalidate(lines) if lines.iter().any(|it| it == line))
    }
}

/// What is done before each access to an [`Interposed`] memory. A closure is one.
pub trait Interposer {
    /// Is called before each access, on the thread that makes it.
    fn before(&self, access: Access);
}

impl<A: Fn(Access)> Interposer for A {
    fn before(&self, access: Access) {
        self(access);
    }
}

/// The memory of a simulated host, with an [`Interposer`] between it and its user.
///
/// # Example
/// ```
/// use cxl_shm::fabric::Fabric;
/// use cxl_shm::units::{LineOffset, LineRange};
/// use cxl_shm::verify::simulated::{Access, Interposed, SimulatedRack};
///
/// let rack = SimulatedRack::sticky(2, 4096);
/// let line = LineOffset::new(64).unwrap();
/// let word = line.word(0).unwrap();
/// let other = rack.host(1);
/// let host = Interposed::new(rack.host(0), |access: Access| {
///     if access.invalidates(line) {
///         other.store(word, 7);
///         other.publish(LineRange::one(line));
///     }
/// });
/// host.refresh(LineRange::one(line));
/// assert_eq!(host.load(word), 7);
/// ```
#[derive(Clone)]
pub struct Interposed<I> {
    host: SimulatedHost,
    interposer: I,
}

impl<I: Interposer> Interposed<I> {
    /// The memory of `host`, with `interposer` before each access.
    #[must_use]
    pub fn new(host: SimulatedHost, interposer: I) -> Self {
        Self { host, interposer }
    }

    /// What is between.
    #[must_use]
    pub fn interposer(&self) -> &I {
        &self.interposer
    }
}

impl<I: Interposer> Fabric for Interposed<I> {
    fn bytes(&self) -> u64 {
        self.host.bytes()
    }

    fn load(&self, at: WordOffset) -> u64 {
        self.interposer.before(Access::Load(at));
        self.host.load(at)
    }

    #[track_caller]
    fn store(&self, at: WordOffset, value: u64) {
        self.interposer.before(Access::Store(at));
        self.host.store(at, value);
    }

    fn read_line(&self, at: LineOffset) -> LineWords {
        self.interposer.before(Access::ReadLine(at));
        self.host.read_line(at)
    }

    #[track_caller]
    fn write_line(&self, at: LineOffset, words: &LineWords) {
        self.interposer.before(Access::WriteLine(at));
        self.host.write_line(at, words);
    }

    #[track_caller]
    fn write_back(&self, lines: LineRange) {
        self.interposer.before(Access::WriteBack(lines));
        self.host.write_back(lines);
    }

    #[track_caller]
    fn invalidate(&self, lines: LineRange) {
        self.interposer.before(Access::Invalidate(lines));
        self.host.invalidate(lines);
    }

    #[track_caller]
    fn fence(&self) {
        self.interposer.before(Access::Fence);
        self.host.fence();
    }

    #[track_caller]
    fn read_back(&self, lines: LineRange) {
        self.interposer.before(Access::ReadBack(lines));
        self.host.read_back(lines);
    }

    fn is_cut_off(&self) -> bool {
        self.host.is_cut_off()
    }

    fn faults(&self) -> u64 {
        self.host.faults()
    }
}

impl<I> fmt::Debug for Interposed<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Interposed({:?})", self.host)
    }
}

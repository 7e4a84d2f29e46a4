//! What of a payload lies in one part, and in one piece of the pool.
#![expect(unsafe_code, reason = "the driver says where an allocation ends")]

use cudarc::driver::sys;
use cxl_shm::units::Extent;

use super::copies::Copies;
use super::engine::{Direction, Inner};
use super::registration::Pins;

impl Inner {
    /// Adds the copies between `payload`, in the pool, and these parts in order (address and length):
    /// one for each run of bytes that lies in one part and in one piece of the pool. Parts that
    /// lie side by side are one.
    pub(super) fn add(
        &self,
        direction: Direction,
        copies: &mut Copies,
        payload: Extent,
        parts: impl Iterator<Item = (u64, usize)>,
        pins: &Pins,
    ) {
        let mapping = self.host.fabric().mapping();
        let start = mapping.address(payload).expect("the job was checked to lie in the mapping");
        let start = start.expose_provenance() as u64;
        let mut offset = payload.offset();
        for (mut device, bytes) in merged(parts, end_of_allocation) {
            for (at, bytes) in pins.runs(offset, bytes) {
                copies.add(direction, start + (at - payload.offset()), device, bytes);
                device += bytes as u64;
            }
            offset += bytes as u64;
        }
    }
}

/// The same bytes in as few parts as there can be. The driver takes half a microsecond for each, and
/// merges none. It does not copy across the end of an allocation: `end_of` says where the one of an
/// address ends, `None` when that is not known.
fn merged(
    parts: impl Iterator<Item = (u64, usize)>,
    end_of: impl Fn(u64) -> Option<u64>,
) -> impl Iterator<Item = (u64, usize)> {
    let mut parts = parts.filter(|(_, bytes)| *bytes > 0).peekable();
    // Of the last allocation that was asked for.
    let mut known_end = None;
    std::iter::from_fn(move || {
        let (start, mut bytes) = parts.next()?;
        let mut asked = false;
        while let Some((_, more)) = parts.next_if(|(next, more)| {
            let (here, end) = (start + bytes as u64, next + *more as u64);
            if *next != here {
                return false;
            }
            if !asked {
                (asked, known_end) = (true, end_of(start));
            }
            known_end.is_some_and(|known| end <= known)
        }) {
            bytes += more;
        }
        Some((start, bytes))
    })
}

/// Where the allocation ends in which `address` lies, as the driver knows it.
fn end_of_allocation(address: u64) -> Option<u64> {
    let (mut start, mut bytes) = (0, 0);
    // SAFETY: it asks for two numbers, and says when it knows no such memory.
    let known = unsafe { sys::cuMemGetAddressRange_v2(&raw mut start, &raw mut bytes, address) };
    known.result().ok()?;
    start.checked_add(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_one_allocation_are_one_part() {
        let merge = |parts: &[(u64, usize)], end| {
            merged(parts.iter().copied(), |_| end).collect::<Vec<_>>()
        };
        let parts = [(100, 10), (110, 5), (115, 1), (200, 4), (204, 4)];
        assert_eq!(merge(&parts, Some(1000)), [(100, 16), (200, 8)]);
        assert_eq!(merge(&parts, None), parts, "nobody knows where allocations end");
        assert_eq!(merge(&parts, Some(115)), [(100, 15), (115, 1), (200, 4), (204, 4)]);
        assert_eq!(merge(&[(5, 0), (7, 3), (9, 0), (10, 2)], Some(12)), [(7, 5)]);
        assert_eq!(merge(&[], Some(0)), []);
        let behind = |address| Some(if address < 110 { 110 } else { 300 });
        let split: Vec<_> = merged([(100, 10), (110, 10), (120, 10)].into_iter(), behind).collect();
        assert_eq!(split, [(100, 10), (110, 20)], "side by side, of two allocations");
    }
}

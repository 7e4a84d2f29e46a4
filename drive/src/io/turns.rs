//! Whose turn it is on a device: reads first, writes while no read is there.
//!
//! - **DRIVE-I4**: A piece of a write begins when no read is queued, under way or just over
//!   ([`READS_IDLE_US`]). While reads go on, one piece begins every [`WRITES_WAIT_US`], so writes do
//!   not starve.
//! - **DRIVE-I5**: A write is moved in pieces of [`PIECE_BYTES`], because a device does not leave a
//!   transfer unfinished for a read. After a read one piece is under way at a time. Each piece that
//!   ends while no read is there lets one more be under way, up to [`PIECES_MAX`].

use std::collections::VecDeque;
use std::time::Duration;

use super::Direction;

/// Bytes of a write that a read may have to wait for.
pub(super) const PIECE_BYTES: usize = 256 << 10;
/// Pieces of writes that are under way at once.
const PIECES_MAX: usize = 32;
/// For how long no read has been there when writes begin, in microseconds.
const READS_IDLE_US: u64 = 1000;
/// How long writes wait for one piece while reads go on, in microseconds.
const WRITES_WAIT_US: u64 = 100_000;
/// Transfers of a direction that wait before the queue is full (DRIVE-I3).
const WAITING_MAX: usize = 1024;

/// How long a device that reads all the time takes for writes of so many bytes, with those that were
/// queued before them (DRIVE-I4). What the device itself needs for them comes on top.
#[must_use]
pub const fn longest_write(bytes: u64) -> Duration {
    Duration::from_micros(bytes.div_ceil(PIECE_BYTES as u64).saturating_mul(WRITES_WAIT_US))
}

/// What a device does next.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Turn<T> {
    /// Begins this transfer, or the next piece of it.
    Begin(T),
    /// Looks again in so many microseconds, or when something was queued or has ended.
    Wait(u64),
    /// Nothing, until something was queued or has ended.
    Idle,
}

/// The transfers of a device that wait, in order.
#[derive(Debug)]
pub(super) struct Turns<T> {
    reads: VecDeque<T>,
    writes: VecDeque<T>,
    reads_under_way: usize,
    pieces_under_way: usize,
    pieces_max: usize,
    read_ended_us: Option<u64>,
    piece_began_us: Option<u64>,
    closing: bool,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self {
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            reads_under_way: 0,
            pieces_under_way: 0,
            pieces_max: 1,
            read_ended_us: None,
            piece_began_us: None,
            closing: false,
        }
    }
}

impl<T> Turns<T> {
    /// Queues a transfer.
    ///
    /// # Errors
    /// The transfer, when too many of its direction wait (DRIVE-I3).
    pub(super) fn push(&mut self, direction: Direction, transfer: T) -> Result<(), T> {
        let waiting = match direction {
            Direction::Read => &mut self.reads,
            Direction::Write => &mut self.writes,
        };
        if waiting.len() >= WAITING_MAX {
            return Err(transfer);
        }
        waiting.push_back(transfer);
        Ok(())
    }

    /// Whose turn it is.
    pub(super) fn next(&mut self, now_us: u64) -> Turn<T> {
        if let Some(read) = self.reads.pop_front() {
            self.reads_under_way += 1;
            self.pieces_max = 1;
            return Turn::Begin(read);
        }
        if self.writes.is_empty() {
            return Turn::Idle;
        }
        let wait_us = self.writes_wait_us(now_us);
        let pieces_max = if wait_us.is_some() { 1 } else { self.pieces_max };
        if self.pieces_under_way >= pieces_max {
            return Turn::Idle;
        }
        match wait_us {
            Some(us) if us > 0 => Turn::Wait(us),
            _ => self.writes.pop_front().map_or(Turn::Idle, |write| {
                self.pieces_under_way += 1;
                self.piece_began_us = Some(now_us);
                Turn::Begin(write)
            }),
        }
    }

    /// A read, or a piece of a write, is over.
    pub(super) fn ended(&mut self, direction: Direction, now_us: u64) {
        match direction {
            Direction::Read => {
                self.reads_under_way -= 1;
                self.read_ended_us = Some(now_us);
            }
            Direction::Write => {
                self.pieces_under_way -= 1;
                if self.writes_wait_us(now_us).is_none() {
                    self.pieces_max = PIECES_MAX.min(self.pieces_max + 1);
                }
            }
        }
    }

    /// A write that has more pieces goes on before others.
    pub(super) fn go_on(&mut self, write: T) {
        self.writes.push_front(write);
    }

    /// Nothing more comes: writes need not wait for reads.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    /// Whether nothing waits, is under way or comes.
    pub(super) fn is_over(&self) -> bool {
        let waiting = self.reads.len() + self.writes.len();
        self.closing && waiting + self.reads_under_way + self.pieces_under_way == 0
    }

    /// How long writes wait because of reads; `None` when no read is there (DRIVE-I4).
    fn writes_wait_us(&self, now_us: u64) -> Option<u64> {
        if self.closing {
            return None;
        }
        let since = |then: Option<u64>| then.map_or(u64::MAX, |then| now_us.saturating_sub(then));
        let starving = WRITES_WAIT_US.saturating_sub(since(self.piece_began_us));
        if self.reads_under_way > 0 || !self.reads.is_empty() {
            return Some(starving);
        }
        let idle = READS_IDLE_US.saturating_sub(since(self.read_ended_us));
        (idle > 0).then(|| idle.min(starving))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Everything that may begin now.
    fn begun(turns: &mut Turns<u32>, now_us: u64) -> Vec<u32> {
        std::iter::from_fn(|| match turns.next(now_us) {
            Turn::Begin(transfer) => Some(transfer),
            Turn::Wait(_) | Turn::Idle => None,
        })
        .collect()
    }

    #[test]
    fn reads_begin_before_writes_that_were_queued_first() {
        let mut turns = Turns::default();
        turns.push(Direction::Write, 1).unwrap();
        turns.push(Direction::Read, 2).unwrap();
        turns.push(Direction::Read, 3).unwrap();
        // No piece ever began: the write has waited long enough (DRIVE-I4).
        assert_eq!(begun(&mut turns, 0), [2, 3, 1]);
        turns.push(Direction::Write, 4).unwrap();
        turns.ended(Direction::Write, 10);
        assert_eq!(turns.next(10), Turn::Wait(WRITES_WAIT_US - 10));
        turns.ended(Direction::Read, 20);
        turns.ended(Direction::Read, 30);
        assert_eq!(turns.next(40), Turn::Wait(READS_IDLE_US - 10));
        assert_eq!(turns.next(30 + READS_IDLE_US), Turn::Begin(4));
    }

    #[test]
    fn a_write_does_not_starve_beside_reads_without_end() {
        let mut turns = Turns::default();
        (0..3).for_each(|write| turns.push(Direction::Write, write).unwrap());
        let mut writes = Vec::new();
        for now_us in (0..250_000).step_by(100) {
            turns.push(Direction::Read, 100).unwrap();
            for transfer in begun(&mut turns, now_us) {
                if transfer < 100 {
                    writes.push((transfer, now_us));
                    turns.ended(Direction::Write, now_us);
                }
            }
            turns.ended(Direction::Read, now_us);
        }
        assert_eq!(writes, [(0, 0), (1, WRITES_WAIT_US), (2, 2 * WRITES_WAIT_US)]);
    }

    #[test]
    fn pieces_under_way_grow_without_reads_and_a_read_ends_that() {
        let mut turns = Turns::default();
        (0..1000).for_each(|write| turns.push(Direction::Write, write).unwrap());
        assert_eq!(begun(&mut turns, 0).len(), 1);
        let (mut under_way, mut most) = (1, 1);
        while under_way > 0 && most < PIECES_MAX {
            turns.ended(Direction::Write, 0);
            under_way = under_way - 1 + begun(&mut turns, 0).len();
            most = most.max(under_way);
        }
        assert_eq!(under_way, PIECES_MAX);
        turns.push(Direction::Read, 2000).unwrap();
        assert_eq!(begun(&mut turns, 1), [2000]);
        turns.ended(Direction::Read, 2);
        for ended in 0..PIECES_MAX {
            assert_eq!(begun(&mut turns, 2 + READS_IDLE_US), [0; 0], "after {ended} pieces");
            turns.ended(Direction::Write, 3);
        }
        assert_eq!(begun(&mut turns, 2 + READS_IDLE_US).len(), 1);
    }

    #[test]
    fn a_full_queue_refuses_one_direction_only() {
        let mut turns = Turns::default();
        (0..1024).for_each(|write| turns.push(Direction::Write, write).unwrap());
        assert_eq!(turns.push(Direction::Write, 7), Err(7));
        turns.push(Direction::Read, 8).unwrap();
    }

    #[test]
    fn what_closes_moves_all_that_waits() {
        let mut turns = Turns::default();
        turns.push(Direction::Read, 1).unwrap();
        turns.push(Direction::Write, 2).unwrap();
        turns.close();
        assert_eq!(begun(&mut turns, 0), [1, 2]);
        assert!(!turns.is_over());
        turns.ended(Direction::Read, 0);
        turns.ended(Direction::Write, 0);
        assert!(turns.is_over());
    }

    proptest! {
        /// Whatever comes and ends: nothing is lost or begins twice, no write begins while a read is
        /// there, but one each `WRITES_WAIT_US`, and what waits for a time begins after it.
        #[test]
        fn turns_keep_their_rules(steps in prop::collection::vec((0u8..4, 0u64..3000), 1..200)) {
            let (mut turns, mut now_us, mut queued) = (Turns::default(), 0, 0u32);
            let (mut reads, mut pieces, mut begun) = (0usize, 0usize, Vec::new());
            let (mut last_read, mut last_piece) = (None, None);
            for (what, us) in steps {
                now_us += us;
                match what {
                    0 => { turns.push(Direction::Read, queued * 2).unwrap(); queued += 1; }
                    1 => { turns.push(Direction::Write, queued * 2 + 1).unwrap(); queued += 1; }
                    2 if reads > 0 => { turns.ended(Direction::Read, now_us); reads -= 1; last_read = Some(now_us); }
                    3 if pieces > 0 => { turns.ended(Direction::Write, now_us); pieces -= 1; }
                    _ => {}
                }
                loop {
                    match turns.next(now_us) {
                        Turn::Begin(transfer) if transfer % 2 == 0 => { reads += 1; begun.push(transfer); }
                        Turn::Begin(transfer) => {
                            let beside_reads = reads > 0
                                || last_read.is_some_and(|then| now_us - then < READS_IDLE_US);
                            let starved = last_piece.is_none_or(|then| now_us - then >= WRITES_WAIT_US);
                            prop_assert!(!beside_reads || starved && pieces == 0);
                            pieces += 1;
                            prop_assert!(pieces <= PIECES_MAX);
                            last_piece = Some(now_us);
                            begun.push(transfer);
                        }
                        Turn::Wait(us) => {
                            prop_assert!(us > 0 && us <= WRITES_WAIT_US && pieces == 0);
                            break;
                        }
                        Turn::Idle => break,
                    }
                }
            }
            turns.close();
            loop {
                (0..std::mem::take(&mut reads)).for_each(|_| turns.ended(Direction::Read, now_us));
                (0..std::mem::take(&mut pieces)).for_each(|_| turns.ended(Direction::Write, now_us));
                match turns.next(now_us) {
                    Turn::Begin(transfer) => {
                        if transfer % 2 == 0 { reads += 1 } else { pieces += 1 }
                        begun.push(transfer);
                    }
                    Turn::Wait(_) => prop_assert!(false, "a queue that closes waits"),
                    Turn::Idle => break,
                }
            }
            prop_assert!(turns.is_over());
            begun.sort_unstable();
            begun.dedup();
            prop_assert_eq!(begun.len(), queued as usize);
        }
    }
}

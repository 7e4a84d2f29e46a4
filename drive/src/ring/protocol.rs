//! The words of the ring, and what both sides do with them (RING-R1 to RING-R5).

use super::sync::{Arc, Mutant, Ordering, Word, breaks};

/// Bits of an answer that say what came of the request. The ticket stands above them.
const OUTCOME_BITS: u32 = 8;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Which block, as asker and server have agreed.
    pub block: u64,
    /// Where its bytes go, as asker and server have agreed.
    pub place: u64,
}

/// What came of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The bytes are in their place, and were checked.
    Filled,
    /// The block is a miss. What is in the place is undefined.
    Missed,
    /// The server gave the request up. What is in the place is undefined.
    Failed,
    /// There is no server any more. The place was not written.
    Closed,
}

impl Outcome {
    /// As an answer says it: 0 is no outcome. [`Closed`](Self::Closed) is never an answer.
    fn bits(self) -> u64 {
        match self {
            Self::Filled => 1,
            Self::Missed => 2,
            Self::Failed | Self::Closed => 3,
        }
    }

    /// What the bits of an answer say. Other bits than those of [`bits`](Self::bits) are a failure.
    fn of_bits(bits: u64) -> Self {
        match bits {
            1 => Self::Filled,
            2 => Self::Missed,
            _ => Self::Failed,
        }
    }
}

/// A line that askers write: one at a time, the holder of the slot's ticket.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Slot {
    /// The ticket and one; 0 before the first.
    asked: Word,
    block: Word,
    place: Word,
}

/// A line that the server writes.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Answer {
    /// The ticket and one, above the bits of the outcome; 0 before the first.
    answered: Word,
}

/// The memory that askers and the server share.
#[derive(Debug)]
pub struct Ring {
    slots: Box<[Slot]>,
    answers: Box<[Answer]>,
    /// Written once, by the server's side: 1 when nothing is served any more.
    closed: Word,
}

/// Words of the askers alone. Memory of a GPU where its threads ask.
#[derive(Debug)]
pub struct AskerWords {
    next: Word,
    /// For each slot the ticket for which it is free.
    free_for: Box<[Word]>,
}

impl AskerWords {
    /// Words for a ring of which nothing was asked yet.
    fn new(ring: &Ring) -> Self {
        let free_for = (0..ring.slots.len() as u64).map(Word::new).collect();
        Self { next: Word::new(0), free_for }
    }
}

/// A request that was made. Its slot is taken until the answer is had.
#[derive(Debug)]
#[must_use = "the slot of a request is not free before the answer is read"]
pub struct Ticket(u64);

/// All slots have requests whose answers were not read yet: poll for those, and ask again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the ring is full: read the answers of earlier requests, then ask again")]
pub struct RingFull;

impl Ring {
    /// A ring for `slots` requests at once, its server, and the only words of its askers: with others
    /// a ticket would be given twice (RING-R1).
    ///
    /// # Panics
    /// When `slots` is 0.
    #[must_use]
    pub fn new(slots: usize) -> (Arc<Self>, Server, AskerWords) {
        assert!(slots > 0, "a ring has a slot at least");
        let word = || Word::new(0);
        let slot = |_| Slot { asked: word(), block: word(), place: word() };
        let ring = Arc::new(Self {
            slots: (0..slots).map(slot).collect(),
            answers: (0..slots).map(|_| Answer { answered: word() }).collect(),
            closed: word(),
        });
        let open = Arc::new(Open(Arc::clone(&ring)));
        let words = AskerWords::new(&ring);
        (ring, Server { open, taken: 0 }, words)
    }

    /// Makes a request, from any thread. `words` are those of all askers of this ring.
    ///
    /// # Errors
    /// [`RingFull`]; nothing was asked then.
    pub fn ask(&self, words: &AskerWords, request: Request) -> Result<Ticket, RingFull> {
        let ticket = self.take_ticket(words)?;
        let slot = &self.slots[self.place_of(ticket)];
        if breaks(Mutant::AsksFirst) {
            slot.asked.store(ticket + 1, Ordering::Release);
        }
        // RING-R1.
        slot.block.store(request.block, Ordering::Relaxed);
        slot.place.store(request.place, Ordering::Relaxed);
        let order = if breaks(Mutant::AsksRelaxed) { Ordering::Relaxed } else { Ordering::Release };
        slot.asked.store(ticket + 1, order);
        Ok(Ticket(ticket))
    }

    fn take_ticket(&self, words: &AskerWords) -> Result<u64, RingFull> {
        loop {
            let ticket = words.next.load(Ordering::Acquire);
            let free_for = words.free_for[self.place_of(ticket)].load(Ordering::Acquire);
            if free_for != ticket && !breaks(Mutant::IsNeverFull) {
                // RING-R2: of an earlier lap, or the ticket is another asker's by now.
                if words.next.load(Ordering::Acquire) == ticket {
                    return Err(RingFull);
                }
                continue;
            }
            if breaks(Mutant::SharesTickets) {
                words.next.store(ticket + 1, Ordering::Release);
                return Ok(ticket);
            }
            let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
            if words.next.compare_exchange(ticket, ticket + 1, success, failure).is_ok() {
                return Ok(ticket);
            }
        }
    }

    /// The answer, or the ticket again while there is none.
    ///
    /// # Errors
    /// The ticket: poll again.
    pub fn poll(&self, words: &AskerWords, ticket: Ticket) -> Result<Outcome, Ticket> {
        let Ticket(number) = ticket;
        let outcome = match self.answer(number) {
            Some(outcome) => outcome,
            None if self.closed.load(Ordering::Acquire) == 0 => return Err(ticket),
            // RING-R5: all answers were written before the ring was closed.
            None if breaks(Mutant::LooksOnce) => Outcome::Closed,
            None => self.answer(number).unwrap_or(Outcome::Closed),
        };
        // RING-R2.
        let next_lap = number + self.slots.len() as u64;
        words.free_for[self.place_of(number)].store(next_lap, Ordering::Release);
        Ok(outcome)
    }

    /// What was answered to a ticket (RING-R3).
    fn answer(&self, ticket: u64) -> Option<Outcome> {
        let word = self.answers[self.place_of(ticket)].answered.load(Ordering::Acquire);
        let is_its =
            word >> OUTCOME_BITS == ticket + 1 || (word != 0 && breaks(Mutant::BelievesAnyLap));
        is_its.then(|| Outcome::of_bits(word & ((1 << OUTCOME_BITS) - 1)))
    }

    fn place_of(&self, ticket: u64) -> usize {
        let slots = self.slots.len() as u64;
        usize::try_from(ticket % slots).expect("a slot is one of a slice")
    }

    fn close(&self) {
        self.closed.store(1, Ordering::Release);
    }
}

/// Closes the ring when the server and all requests that it took are gone (RING-R5).
#[derive(Debug)]
struct Open(Arc<Ring>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// What takes the requests of a ring: one thread at a time. Dropping it closes the ring.
#[derive(Debug)]
pub struct Server {
    open: Arc<Open>,
    taken: u64,
}

impl Server {
    /// The next request, in the order of the tickets, or `None` when there is none yet. Requests may be
    /// answered in any order, by any thread.
    pub fn take(&mut self) -> Option<Asked> {
        let ring = &self.open.0;
        let slot = &ring.slots[ring.place_of(self.taken)];
        // RING-R1.
        if slot.asked.load(Ordering::Acquire) != self.taken + 1 {
            return None;
        }
        let request = Request {
            block: slot.block.load(Ordering::Relaxed),
            place: slot.place.load(Ordering::Relaxed),
        };
        let asked =
            Asked { request, ticket: self.taken, open: Arc::clone(&self.open), is_answered: false };
        self.taken += 1;
        Some(asked)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // RING-R5: the last of this and of the requests closes.
        if breaks(Mutant::ClosesEarly) {
            self.open.0.close();
        }
    }
}

/// A request that was taken. Its place is the server's until it is answered (RING-R4).
#[derive(Debug)]
#[must_use = "a request that is dropped is answered as failed"]
pub struct Asked {
    request: Request,
    ticket: u64,
    open: Arc<Open>,
    is_answered: bool,
}

impl Asked {
    /// What is asked for. Comes from another processor: the server checks that it has such a block and
    /// such a place.
    #[must_use]
    pub fn request(&self) -> Request {
        self.request
    }

    /// Says that the bytes are in their place, and were checked.
    pub fn filled(self) {
        self.answer(Outcome::Filled);
    }

    /// Says that the block is a miss.
    pub fn missed(self) {
        self.answer(Outcome::Missed);
    }

    fn answer(mut self, outcome: Outcome) {
        self.write(outcome);
        self.is_answered = true;
    }

    fn write(&self, outcome: Outcome) {
        let ring = &self.open.0;
        let word = (self.ticket + 1) << OUTCOME_BITS | outcome.bits();
        let order =
            if breaks(Mutant::AnswersRelaxed) { Ordering::Relaxed } else { Ordering::Release };
        ring.answers[ring.place_of(self.ticket)].answered.store(word, order);
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        // RING-R4.
        if !self.is_answered && !breaks(Mutant::DropsInSilence) {
            self.write(Outcome::Failed);
        }
    }
}

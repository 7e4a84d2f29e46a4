//! When the engines of this host compute: words of the host tier, for the agent of the host.
//!
//! ```text
//! row of 8 words, of one engine
//! word 0  token of the process that has the row; 0 nobody
//! word 1  the model
//! word 2  begun: number of the forward 52 bits | shape 12 bits
//! word 3  ended: number of the forward, its low 20 bits | shape 12 bits | microseconds 32 bits
//! ```
//!
//! All of it hints: when a drive is written, and nothing else, depends on these words.
//!
//! - **TIER-F1** An engine has a row of its own: it puts the token of its process into a row of nobody,
//!   or of a process that is gone, by compare-and-exchange. Only the engine writes the other words. A
//!   forward costs two stores: one when it begins, and one when it ends.
//! - **TIER-F2** A forward runs whose number was begun and not ended. The row of a process that is gone
//!   counts for nothing.

use cxl_shm::fabric::HostMemory;
use cxl_shm::fork::ProcessMark;
use cxl_shm::host::{ApplicationMemory, HolderToken};
use cxl_shm::node::Backend;

use super::DriveError;
use crate::format::{FORWARD_ROW_WORDS, FORWARD_ROWS};
use crate::heap::drive_table_at;
use crate::process::Cache;

const OWNER: usize = 0;
const MODEL: usize = 1;
const BEGUN: usize = 2;
const ENDED: usize = 3;

const SHAPE_BITS: u32 = 12;
const NUMBER_BITS: u32 = 20;
const TOOK_BITS: u32 = 32;

/// How many tokens a forward computes, and how many before them it uses: in steps, of which each is
/// half as much again as the one before, or a third.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ForwardShape {
    /// Step of the tokens that are computed, from 0 to 63.
    pub prompt: u8,
    /// Step of the tokens that are there already, from 0 to 63.
    pub prefix: u8,
}

impl ForwardShape {
    /// Of a forward that computes `prompt_tokens` tokens on `prefix_tokens` others.
    #[must_use]
    pub fn new(prompt_tokens: u64, prefix_tokens: u64) -> Self {
        Self { prompt: step(prompt_tokens), prefix: step(prefix_tokens) }
    }

    fn word(self) -> u64 {
        u64::from(self.prompt) << 6 | u64::from(self.prefix)
    }

    fn from_word(word: u64) -> Self {
        let part = |bits: u64| u8::try_from(bits & 63).unwrap_or(0);
        Self { prompt: part(word >> 6), prefix: part(word) }
    }
}

/// Two steps for each power of two: 0, 1, 2, 3, 4 to 5, 6 to 7, 8 to 11, 12 to 15 and so on.
fn step(tokens: u64) -> u8 {
    let Some(power) = tokens.checked_ilog2() else { return 0 };
    let half = if power == 0 { 0 } else { tokens >> (power - 1) & 1 };
    u8::try_from(u64::from(2 * power).saturating_add(half)).map_or(63, |step| step.clamp(1, 63))
}

/// How the agent sees an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForwardSeen {
    /// Which row it has.
    pub row: usize,
    /// The process that has the row.
    pub owner: HolderToken,
    /// Its model, as the engine numbers it.
    pub model: u64,
    /// The forward that runs, with its number.
    pub runs: Option<(u64, ForwardShape)>,
    /// The last forward that ended: the low bits of its number, its shape, and how long it took in
    /// microseconds.
    pub ended: Option<(u64, ForwardShape, u32)>,
}

/// What one engine says of its forwards. Dropped, the engine has nothing to say any more.
#[derive(Debug)]
pub struct ForwardReporter<H: HostMemory> {
    words: ApplicationMemory<H>,
    first: usize,
    token: HolderToken,
    process: ProcessMark,
    number: u64,
    running: Option<ForwardShape>,
}

impl<H: HostMemory> ForwardReporter<H> {
    /// A forward begins.
    pub fn begin(&mut self, shape: ForwardShape) {
        if self.process.is_of_this() {
            self.number += 1;
            self.running = Some(shape);
            let begun = self.number << SHAPE_BITS | shape.word();
            self.words.store(self.first + BEGUN, begun);
        }
    }

    /// The forward is over: it took so many microseconds. Does nothing when none runs.
    pub fn end(&mut self, took_us: u64) {
        let Some(shape) = self.running.take().filter(|_| self.process.is_of_this()) else { return };
        let took = took_us.min(u64::from(u32::MAX));
        let number = self.number & ((1 << NUMBER_BITS) - 1);
        let ended = (number << SHAPE_BITS | shape.word()) << TOOK_BITS | took;
        self.words.store(self.first + ENDED, ended);
    }
}

impl<H: HostMemory> Drop for ForwardReporter<H> {
    fn drop(&mut self) {
        if self.process.is_of_this() {
            // It fails when others believed the process dead and took the row.
            let at = self.first + OWNER;
            let _ = self.words.compare_exchange(at, self.token.word(), 0);
        }
    }
}

impl<B: Backend> Cache<'_, B> {
    /// Begins to report the forwards of an engine of this process to the agent of the host. `model`
    /// tells engines apart that take other times. `None` when all rows are taken: the agent does not
    /// see the engine then, as if the engine reported nothing.
    ///
    /// # Errors
    /// [`DriveError::NoRoom`].
    pub fn report_forwards(
        &self,
        model: u64,
    ) -> Result<Option<ForwardReporter<B::HostMemory>>, DriveError>
    where
        B::HostMemory: Clone,
    {
        let first = self.forwards_at()?;
        let (member, token) = (self.member(), self.member().token());
        let words = member.application().to_memory();
        for row in 0..FORWARD_ROWS {
            let first = first + row * FORWARD_ROW_WORDS;
            let owner = words.load(first + OWNER);
            let is_taken = owner != 0 && member.is_token_alive(HolderToken::from_word(owner));
            // TIER-F1.
            let token_word = token.word();
            if is_taken || words.compare_exchange(first + OWNER, owner, token_word).is_err() {
                continue;
            }
            [BEGUN, ENDED].into_iter().for_each(|word| words.store(first + word, 0));
            words.store(first + MODEL, model);
            let process = ProcessMark::of_this();
            let (number, running) = (0, None);
            return Ok(Some(ForwardReporter { words, first, token, process, number, running }));
        }
        Ok(None)
    }

    /// What the engines of this host say, those of processes that are gone with them: see
    /// [`is_engine_alive`](Self::is_engine_alive).
    ///
    /// # Errors
    /// [`DriveError::NoRoom`].
    pub fn forwards(&self) -> Result<Vec<ForwardSeen>, DriveError> {
        let first = self.forwards_at()?;
        let words = self.member().application();
        let mut seen = Vec::new();
        for row in 0..FORWARD_ROWS {
            let first = first + row * FORWARD_ROW_WORDS;
            let owner = words.load(first + OWNER);
            if owner == 0 {
                continue;
            }
            // In this order: a forward that ends meanwhile is not taken for one that runs.
            let begun = words.load(first + BEGUN);
            let ended = words.load(first + ENDED);
            let (owner, model) = (HolderToken::from_word(owner), words.load(first + MODEL));
            seen.push(read(row, owner, model, begun, ended));
        }
        Ok(seen)
    }

    /// Whether the process of an engine lives (TIER-F2). Asks the operating system.
    #[must_use]
    pub fn is_engine_alive(&self, engine: &ForwardSeen) -> bool {
        self.member().is_token_alive(engine.owner)
    }

    fn forwards_at(&self) -> Result<usize, DriveError> {
        let (areas, plan) = (self.areas(), self.drives()?.plan);
        let table = drive_table_at(areas.geometry(), areas.layout());
        Ok(table + plan.geometry.table_words(plan.nodes))
    }
}

fn read(row: usize, owner: HolderToken, model: u64, begun: u64, ended: u64) -> ForwardSeen {
    let number = begun >> SHAPE_BITS;
    let last = ended >> (TOOK_BITS + SHAPE_BITS);
    let runs = number != 0 && number & ((1 << NUMBER_BITS) - 1) != last;
    let took = u32::try_from(ended & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    ForwardSeen {
        row,
        owner,
        model,
        runs: runs.then(|| (number, ForwardShape::from_word(begun))),
        ended: (ended != 0).then(|| (last, ForwardShape::from_word(ended >> TOOK_BITS), took)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn steps_grow_with_tokens() {
        let steps = [0, 1, 2, 3, 4, 5, 6, 8, 12, 16].map(step);
        assert_eq!(steps, [0, 1, 2, 3, 4, 4, 5, 6, 7, 8]);
        assert_eq!(step(u64::MAX), 63);
    }

    proptest! {
        #[test]
        fn what_an_engine_says_is_read(
            prompt in 0u8..64, prefix in 0u8..64, number in 1u64..1 << 40, took in 0u64..1 << 32,
        ) {
            let shape = ForwardShape { prompt, prefix };
            let (owner, begun) = (HolderToken::from_word(7), number << SHAPE_BITS | shape.word());
            let low = number & ((1 << NUMBER_BITS) - 1);
            let ended = (low << SHAPE_BITS | shape.word()) << TOOK_BITS | took;
            let before = read(3, owner, 9, begun, 0);
            prop_assert_eq!(before.runs, (low != 0).then_some((number, shape)));
            prop_assert_eq!(before.ended, None);
            let after = read(3, owner, 9, begun, ended);
            prop_assert_eq!(after.runs, None);
            prop_assert_eq!(after.ended.map(|it| it.1), (ended != 0).then_some(shape));
            prop_assert!(step(number + 1) >= step(number));
        }
    }
}

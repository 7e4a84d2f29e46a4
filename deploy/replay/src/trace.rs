//! Request traces in the format of Mooncake: one JSON object a line.
//!
//! ```text
//! {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2, 3]}
//! ```
//!
//! `hash_ids` names the blocks of the prompt in order, each id standing for a block *and all
//! before it*: the same prefix, the same ids. `timestamp` is in milliseconds; a request without one
//! comes a second after the request before. The lengths, in tokens, may be missing. Other members are not
//! read.

use std::collections::HashMap;
use std::io::BufRead;

use serde::Deserialize;

/// Why a trace cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It cannot be read.
    #[error("line {line} cannot be read: {error}")]
    Io {
        /// Lines are counted from 1.
        line: u64,
        /// What the system says.
        error: std::io::Error,
    },
    /// A line is no request.
    #[error(
        "line {line} is not a request: {error} (a request is a JSON object with the member \
         \"hash_ids\", a list of whole numbers that name the blocks of its prompt)"
    )]
    NoRequest {
        /// Lines are counted from 1.
        line: u64,
        /// What the parser says.
        error: serde_json::Error,
    },
    /// A request names a block twice.
    #[error(
        "line {line} names block {id} twice: an id stands for a block and all before it, so it can \
         come up once in a prompt"
    )]
    Repeated {
        /// Lines are counted from 1.
        line: u64,
        /// The id.
        id: u64,
    },
    /// There is nothing in it.
    #[error("the trace has no requests")]
    Empty,
    /// More blocks than can be numbered.
    #[error("line {line} exceeds the number of different blocks that a trace may have (2^32 - 1)")]
    TooManyBlocks {
        /// Lines are counted from 1.
        line: u64,
    },
}

/// From a request to the next, when the trace does not say.
const STEP_MS: u64 = 1000;

#[derive(Deserialize)]
struct Line {
    hash_ids: Vec<u64>,
    #[serde(default)]
    timestamp: serde_json::Value,
    #[serde(default)]
    input_length: serde_json::Value,
    #[serde(default)]
    output_length: serde_json::Value,
}

/// Tokens of a request, where its line says so as whole numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lengths {
    /// Of the prompt.
    pub input: Option<u64>,
    /// Of the answer.
    pub output: Option<u64>,
}

impl Line {
    /// When the request comes, if the line says so.
    fn time_ms(&self) -> Option<u64> {
        let whole = self.timestamp.as_u64();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast of a float saturates, and a time before the beginning is the beginning"
        )]
        whole.or_else(|| self.timestamp.as_f64().map(|ms| ms as u64))
    }
}

/// A trace: requests, each a list of blocks. Blocks are numbered from 0 as they come up first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trace {
    requests: Vec<Vec<u32>>,
    times_ms: Vec<u64>,
    lengths: Vec<Lengths>,
    has_times: bool,
    unique_blocks: u32,
    block_refs: u64,
}

impl Trace {
    /// Reads a trace to its end. Lines without anything in them are passed over.
    ///
    /// # Errors
    /// [`TraceError`], with the number of the line.
    pub fn read(mut source: impl BufRead) -> Result<Self, TraceError> {
        let mut trace = Self::default();
        let mut numbers = HashMap::new();
        let mut text = Vec::new();
        for line in 1.. {
            text.clear();
            let read = source.read_until(b'\n', &mut text);
            if read.map_err(|error| TraceError::Io { line, error })? == 0 {
                break;
            }
            if !text.trim_ascii().is_empty() {
                let request: Line = serde_json::from_slice(&text)
                    .map_err(|error| TraceError::NoRequest { line, error })?;
                trace.push(&request.hash_ids, &mut numbers, line)?;
                trace.push_time(request.time_ms());
                let Line { input_length, output_length, .. } = request;
                let (input, output) = (input_length.as_u64(), output_length.as_u64());
                trace.lengths.push(Lengths { input, output });
            }
        }
        if trace.requests.is_empty() {
            return Err(TraceError::Empty);
        }
        Ok(trace)
    }

    fn push(
        &mut self,
        ids: &[u64],
        numbers: &mut HashMap<u64, u32>,
        line: u64,
    ) -> Result<(), TraceError> {
        let mut blocks = Vec::with_capacity(ids.len());
        for id in ids {
            let next = self.unique_blocks;
            let number = *numbers.entry(*id).or_insert(next);
            if number == next {
                self.unique_blocks =
                    next.checked_add(1).ok_or(TraceError::TooManyBlocks { line })?;
            }
            blocks.push(number);
        }
        let mut sorted = blocks.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            let at = blocks.iter().position(|number| *number == pair[0]).unwrap_or(0);
            return Err(TraceError::Repeated { line, id: ids[at] });
        }
        self.block_refs += blocks.len() as u64;
        self.requests.push(blocks);
        Ok(())
    }

    fn push_time(&mut self, time_ms: Option<u64>) {
        self.has_times |= time_ms.is_some();
        let last = self.times_ms.last().copied();
        let usual = last.map_or(0, |last| last.saturating_add(STEP_MS));
        self.times_ms.push(time_ms.unwrap_or(usual).max(last.unwrap_or(0)));
    }

    /// When each request comes, in milliseconds. Times do not go back.
    #[must_use]
    pub fn times_ms(&self) -> &[u64] {
        &self.times_ms
    }

    /// How long the prompt and the answer of each request are.
    #[must_use]
    pub fn lengths(&self) -> &[Lengths] {
        &self.lengths
    }

    /// From the first request to the last, in milliseconds. `None` when no request has a time.
    #[must_use]
    pub fn duration_ms(&self) -> Option<u64> {
        let (first, last) = (self.times_ms.first()?, self.times_ms.last()?);
        self.has_times.then_some(last - first)
    }

    /// The blocks of each request, from the root on.
    #[must_use]
    pub fn requests(&self) -> &[Vec<u32>] {
        &self.requests
    }

    /// Different blocks: the working set. They are numbered below this.
    #[must_use]
    pub fn unique_blocks(&self) -> u32 {
        self.unique_blocks
    }

    /// Blocks of all requests together.
    #[must_use]
    pub fn block_refs(&self) -> u64 {
        self.block_refs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Trace, TraceError> {
        Trace::read(text.as_bytes())
    }

    #[test]
    fn blocks_are_numbered_as_they_come_up() {
        let trace = read(
            "{\"timestamp\": 0, \"hash_ids\": [70, 9]}\n\n{\"hash_ids\": []}\r\n\
             {\"hash_ids\": [70, 18446744073709551615], \"session\": \"a\"}",
        )
        .unwrap();
        assert_eq!(trace.requests(), [vec![0, 1], vec![], vec![0, 2]]);
        assert_eq!((trace.unique_blocks(), trace.block_refs()), (3, 4));
    }

    #[test]
    fn times_do_not_go_back_and_may_be_missing() {
        let trace = read(
            "{\"timestamp\": 70, \"hash_ids\": [1]}\n{\"timestamp\": 2000.5, \"hash_ids\": []}\n\
             {\"hash_ids\": []}\n{\"timestamp\": \"noon\", \"hash_ids\": []}\n\
             {\"timestamp\": -9, \"hash_ids\": []}",
        )
        .unwrap();
        assert_eq!(trace.times_ms(), [70, 2000, 3000, 4000, 4000]);
        assert_eq!(trace.duration_ms(), Some(3930));
        let trace = read("{\"hash_ids\": []}\n{\"hash_ids\": []}").unwrap();
        assert_eq!((trace.times_ms(), trace.duration_ms()), (&[0, 1000][..], None));
    }

    #[test]
    fn lengths_are_whole_numbers_or_missing() {
        let trace = read(
            "{\"hash_ids\": [], \"input_length\": 70, \"output_length\": 9}\n{\"hash_ids\": []}\n\
             {\"hash_ids\": [], \"input_length\": \"long\", \"output_length\": -1}",
        )
        .unwrap();
        let known = Lengths { input: Some(70), output: Some(9) };
        assert_eq!(trace.lengths(), [known, Lengths::default(), Lengths::default()]);
    }

    #[test]
    fn bad_lines_are_named() {
        for (bad, said) in [
            ("nonsense", "line 2 is not a request"),
            ("{}", "missing field `hash_ids`"),
            ("{\"hash_ids\": [1.5]}", "line 2 is not a request"),
            ("{\"hash_ids\": [-1]}", "line 2 is not a request"),
            ("{\"hash_ids\": [1]} {\"hash_ids\": [2]}", "trailing characters"),
            ("{\"hash_ids\": [5, 6, 5]}", "line 2 names block 5 twice"),
        ] {
            let error = read(&format!("{{\"hash_ids\": [0]}}\n{bad}\n")).unwrap_err().to_string();
            assert!(error.contains(said), "{bad}: {error}");
        }
        for text in ["", "\n \n"] {
            assert_eq!(read(text).unwrap_err().to_string(), "the trace has no requests");
        }
    }

    /// Lines that are nearly right, to come further than the first letter.
    fn nearly_right() -> impl Strategy<Value = String> {
        prop_oneof![
            "\\PC*",
            "\\{\"hash_ids\": ?\\[([0-9]{1,25}(, )?){0,5}\\]?\\}?",
            "\\{\"(hash_ids|timestamp)\": (null|true|1e9|\\[\\[1\\]\\]|\"[0-9]\")\\}",
        ]
    }

    proptest! {
        #[test]
        fn no_line_makes_it_panic(
            lines in proptest::collection::vec(nearly_right(), 0..6),
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut text = lines.join("\n").into_bytes();
            let _ = Trace::read(&text[..]);
            text.extend(bytes);
            if let Ok(trace) = Trace::read(&text[..]) {
                prop_assert!(!trace.requests().is_empty());
                let highest = trace.requests().iter().flatten().max();
                prop_assert_eq!(highest.map_or(0, |highest| highest + 1), trace.unique_blocks());
            }
        }
    }
}

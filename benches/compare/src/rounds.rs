//! What is measured, in which order, and what each round gave.

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::Options;
use crate::contender::Contender;
use crate::protocol::Blocks;

/// Lookups measured for each contender.
const LOOKUPS: u32 = 41;

/// One line of the table: blocks of one size, singly or in batches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Case {
    /// Length of a block in bytes.
    pub(crate) block_bytes: u32,
    /// Blocks in a call.
    pub(crate) batch: u32,
}

/// All that is to be measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    pub(crate) cases: Vec<Case>,
    pub(crate) contenders: Vec<Contender>,
    pub(crate) rounds: u32,
    pub(crate) round_bytes: u64,
    pub(crate) lookup_keys: u32,
    pub(crate) lookups: u32,
}

impl Plan {
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let mut cases = Vec::new();
        for size in &options.sizes {
            let (bytes, round_bytes) = (size.as_u64(), options.round_bytes.as_u64());
            ensure!(
                bytes.is_multiple_of(64) && bytes > 0 && round_bytes.is_multiple_of(bytes),
                "--sizes: {size} has to be a multiple of 64 bytes, and {} (--round-bytes) one of it",
                options.round_bytes
            );
            let block_bytes = u32::try_from(bytes)?;
            cases.extend([1, options.batch].map(|batch| Case { block_bytes, batch }));
        }
        let mut contenders = Contender::CEILINGS.to_vec();
        for one in &options.contenders {
            if !contenders.contains(one) {
                contenders.push(*one);
            }
        }
        let smallest = cases.iter().map(|case| u64::from(case.block_bytes)).min().unwrap_or(1);
        ensure!(
            u64::from(options.lookup_keys) <= options.round_bytes.as_u64() / smallest,
            "--lookup-keys: a round has only {} blocks",
            options.round_bytes.as_u64() / smallest
        );
        Ok(Self {
            cases,
            contenders,
            rounds: options.rounds,
            round_bytes: options.round_bytes.as_u64(),
            lookup_keys: options.lookup_keys,
            lookups: LOOKUPS,
        })
    }

    /// The cases of each size of a block: for each there are new stores, so that none has to hold
    /// more than [`run_bytes`](Self::run_bytes).
    pub(crate) fn sizes(&self) -> impl Iterator<Item = &[Case]> {
        self.cases.chunk_by(|one, other| one.block_bytes == other.block_bytes)
    }

    /// Bytes that all rounds of a size together put into a store. One round more than are measured:
    /// the first of each case warms up; and one for the lookups.
    pub(crate) fn run_bytes(&self) -> u64 {
        let cases = self.sizes().map(<[Case]>::len).max().unwrap_or(0) as u64;
        self.round_bytes * (u64::from(self.rounds + 1) * cases + 1)
    }

    /// The blocks of a round; blocks of two orders never have the same number.
    pub(crate) fn blocks(&self, case: Case, order: u64) -> Result<Blocks> {
        let bytes = case.block_bytes;
        let count = u32::try_from(self.round_bytes / u64::from(bytes))?;
        Ok(Blocks { first: order << 32, count, bytes, batch: case.batch })
    }
}

/// What one contender did in one round, in both directions.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Round {
    pub(crate) put_gb_per_s: f64,
    pub(crate) get_gb_per_s: f64,
    /// CPU seconds a GiB, of the writer.
    pub(crate) put_cpu_s_per_gib: f64,
    /// CPU seconds a GiB, of the reader.
    pub(crate) get_cpu_s_per_gib: f64,
}

/// All rounds of one contender in one case.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) contender: Contender,
    pub(crate) case: Case,
    pub(crate) rounds: Vec<Round>,
}

/// What came out.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Results {
    pub(crate) rounds: u32,
    pub(crate) round_bytes: u64,
    pub(crate) measured: Vec<Measured>,
    /// Microseconds of each lookup.
    pub(crate) lookups_us: Vec<(Contender, Vec<f64>)>,
    pub(crate) lookup_keys: u32,
    /// Who did not take part, and why.
    pub(crate) absent: Vec<(Contender, String)>,
}

impl Results {
    /// The cases, in the order in which they were measured.
    pub(crate) fn cases(&self) -> Vec<Case> {
        let mut cases: Vec<Case> = Vec::new();
        for measured in &self.measured {
            if !cases.contains(&measured.case) {
                cases.push(measured.case);
            }
        }
        cases
    }

    /// Those who took part.
    pub(crate) fn contenders(&self) -> Vec<Contender> {
        let mut contenders: Vec<_> = self.measured.iter().map(|one| one.contender).collect();
        contenders.sort_unstable();
        contenders.dedup();
        contenders
    }

    pub(crate) fn of(&self, contender: Contender, case: Case) -> Option<&[Round]> {
        let fits = |one: &&Measured| one.contender == contender && one.case == case;
        self.measured.iter().find(fits).map(|one| one.rounds.as_slice())
    }

    /// Median over the rounds of `figure` of one contender divided by that of another in the same
    /// round.
    pub(crate) fn ratio(
        &self,
        [contender, ceiling]: [Contender; 2],
        case: Case,
        figure: impl Fn(&Round) -> f64,
    ) -> Option<f64> {
        let each = self.of(contender, case)?.iter().zip(self.of(ceiling, case)?);
        Some(median(each.map(|(one, other)| figure(one) / figure(other))))
    }
}

/// The middle one of some figures; NaN of none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    quantile(values, 0.5)
}

/// The figure below which the share `part` of them lies.
pub(crate) fn quantile(values: impl IntoIterator<Item = f64>, part: f64) -> f64 {
    let mut values: Vec<_> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1) as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index of the list: not negative and not above its length"
    )]
    let index = (last * part).round() as usize;
    values.get(index).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: Case = Case { block_bytes: 64, batch: 1 };

    fn measured(contender: Contender, speeds: &[f64]) -> Measured {
        let round = |speed: &f64| Round {
            put_gb_per_s: *speed,
            get_gb_per_s: 1.0,
            put_cpu_s_per_gib: 1.0,
            get_cpu_s_per_gib: 1.0,
        };
        Measured { contender, case: CASE, rounds: speeds.iter().map(round).collect() }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let results = Results {
            rounds: 3,
            round_bytes: 64,
            measured: vec![
                measured(Contender::Stream, &[10.0, 1.0, 4.0]),
                measured(Contender::Rackline, &[9.0, 0.8, 4.0]),
            ],
            lookups_us: Vec::new(),
            lookup_keys: 1,
            absent: Vec::new(),
        };
        let pair = [Contender::Rackline, Contender::Stream];
        assert_eq!(results.ratio(pair, CASE, |round| round.put_gb_per_s), Some(0.9));
        let nobody = [Contender::Redis, Contender::Stream];
        assert_eq!(results.ratio(nobody, CASE, |round| round.put_gb_per_s), None);
    }

    #[test]
    fn quantiles_are_figures_of_the_list() {
        assert_eq!(quantile([3.0, 1.0, 2.0], 0.0), 1.0);
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(quantile([3.0, 1.0, 2.0], 1.0), 3.0);
        assert!(median([]).is_nan());
    }
}

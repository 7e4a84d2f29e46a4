//! Contenders side by side.

use cxl_shm::clock::SystemClock;

use crate::{Batch, Bed};

/// Rounds of a table. Every contender runs once in each.
const ROUNDS: usize = 21;

/// Something that copies a batch.
pub struct Contender<'e> {
    /// What it is called in reports.
    pub name: &'static str,
    /// Copies the batch, up or down.
    pub copy: Box<dyn Fn(&mut Batch<'_>) + 'e>,
}

impl std::fmt::Debug for Contender<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contender").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Prints, for each size of payload, the speed of each contender and its ratio to the first one.
///
/// The contenders take turns, and each ratio is the median over all rounds of the ratio within a
/// round: what else the machine does meanwhile hits all of them alike.
pub fn print_ratios(title: &str, bed: &mut Bed, sizes: &[usize], contenders: &[Contender<'_>]) {
    println!("\n{title}: median of {ROUNDS} rounds, GB/s and ratio to the first column");
    let names = contenders.iter().map(|contender| format!("{:>20}", contender.name));
    println!("{:>10}{}", "payload", names.collect::<String>());
    for payload_bytes in sizes {
        let mut rounds = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            rounds.push(round(bed, *payload_bytes, contenders));
        }
        let cells = (0..contenders.len()).map(|i| {
            let speed = median(rounds.iter().map(|speeds| speeds[i]));
            let ratio = median(rounds.iter().map(|speeds| speeds[i] / speeds[0]));
            format!("{:>20}", format!("{speed:.2} ({ratio:.2})"))
        });
        println!("{:>6} KiB{}", payload_bytes / 1024, cells.collect::<String>());
    }
}

/// Speed of each contender in GB/s, each over a batch of its own.
fn round(bed: &mut Bed, payload_bytes: usize, contenders: &[Contender<'_>]) -> Vec<f64> {
    let one = |contender: &Contender<'_>| {
        let mut batch = bed.batch(payload_bytes);
        let clock = SystemClock::start();
        (contender.copy)(&mut batch);
        let elapsed_us = clock.now_us().max(1);
        Bed::BATCH_BYTES as f64 / elapsed_us as f64 / 1e3
    };
    contenders.iter().map(one).collect()
}

/// The middle one of some figures.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

//! One case, in turns with plain copies.

#![expect(clippy::disallowed_methods, reason = "this is what the machine takes, not the protocol")]

use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Result, anyhow};
use rackline::cuda::CudaDma;

use super::cases::Case;
use super::plain::Plain;
use super::work::Work;
use crate::device::Device;
use crate::report::Figure;

/// Medians of the rounds; one more before them warms up, and is not counted.
pub(super) fn measure(device: &Device, dma: &CudaDma, case: &Case, rounds: u32) -> Result<Figure> {
    let work = (0..case.threads).map(|thread| Work::new(device, case, thread));
    let mut work = work.collect::<Result<Vec<_>>>()?;
    let mut plain = Plain::new(device, case)?;
    device.stream.synchronize()?;
    let (mut ours, mut plainly) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let through_the_pool = self::round(dma, case, &mut work)?;
        let through_pinned_memory = plain.round()?;
        if round > 0 {
            ours.push(through_the_pool);
            plainly.push(through_pinned_memory);
        }
    }
    let gib_per_s = |seconds: f64| case.bytes() as f64 / seconds / f64::from(1 << 30);
    let (ours, plainly) = (gib_per_s(median(ours)), gib_per_s(median(plainly)));
    Ok(Figure {
        name: if case.by_layers { "by layers" } else { case.name },
        way: case.way,
        payload_bytes: case.payload_bytes,
        part_bytes: case.part_bytes,
        batch: case.payloads,
        threads: case.threads,
        gib_per_s: ours,
        plain_gib_per_s: plainly,
        ratio: ours / plainly,
        target: case.target,
    })
}

/// Seconds until the last of the threads is done.
fn round(dma: &CudaDma, case: &Case, work: &mut [Work]) -> Result<f64> {
    let way = case.way;
    if let [work] = work {
        let started = Instant::now();
        work.round(dma, way, 0)?;
        return Ok(started.elapsed().as_secs_f64());
    }
    let barrier = Barrier::new(work.len() + 1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(work)
            .map(|(number, work)| {
                let (barrier, dma) = (&barrier, dma.with_own_order());
                scope.spawn(move || {
                    barrier.wait();
                    work.round(&dma, way, number)
                })
            })
            .collect();
        barrier.wait();
        let started = Instant::now();
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        Ok(started.elapsed().as_secs_f64())
    })
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

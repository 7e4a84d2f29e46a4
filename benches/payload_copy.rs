//! Copying payload into and out of the pool: the host engine against plain copies.
//!
//! `cargo bench -p rackline-benches --bench payload_copy`. The criterion groups watch each
//! contender over time; the tables at the end compare them within one run.

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput};
use cxl_shm::fabric::{Fabric, MappedFabric};
use cxl_shm::units::LineRange;
use rackline::dma::{Arrival, DmaEngine, HostDma, LoadJob, StoreJob};
use rackline_benches::{
    Batch, Bed, Contender, memcpy_in, memcpy_out, print_ratios, stream_in, stream_out,
};
use std::time::Duration;

const SIZES: [usize; 4] = [64 << 10, 512 << 10, 2 << 20, 16 << 20];

fn store(dma: &HostDma, batch: &mut Batch<'_>) {
    let parts: Vec<[&[u8]; 1]> = batch.buffers.iter().map(|buffer| [&**buffer]).collect();
    let each = batch.payloads.iter().zip(&parts);
    let jobs: Vec<_> = each.map(|(payload, parts)| StoreJob { payload: *payload, parts }).collect();
    assert!(dma.store(&jobs).iter().all(Result::is_ok), "payloads of the bed can be stored");
}

fn load(dma: &HostDma, batch: &mut Batch<'_>) {
    let each = batch.payloads.iter().zip(&mut batch.buffers);
    let mut jobs: Vec<_> = each
        .map(|(payload, buffer)| LoadJob { payload: *payload, parts: vec![&mut **buffer] })
        .collect();
    assert!(dma.load(&mut jobs).iter().all(Result::is_ok), "payloads of the bed can be loaded");
}

/// The same discipline without an engine: drop the lines, fence, copy.
fn refresh_and_memcpy(fabric: &MappedFabric, batch: &mut Batch<'_>) {
    batch.payloads.iter().for_each(|at| fabric.invalidate(LineRange::covering(*at)));
    fabric.fence();
    memcpy_out(batch);
}

/// The same discipline without an engine: copy, write the lines back, fence.
fn memcpy_and_write_back(fabric: &MappedFabric, batch: &mut Batch<'_>) {
    memcpy_in(batch);
    batch.payloads.iter().for_each(|at| fabric.write_back(LineRange::covering(*at)));
    fabric.fence();
}

fn store_contenders(fabric: &MappedFabric) -> Vec<Contender<'static>> {
    let fence = HostDma::with_arrival(fabric.clone(), Arrival::Fence);
    let read_back = HostDma::with_arrival(fabric.clone(), Arrival::ReadBack);
    let fabric = fabric.clone();
    vec![
        Contender { name: "stream", copy: Box::new(stream_in) },
        Contender { name: "memcpy", copy: Box::new(memcpy_in) },
        Contender {
            name: "memcpy+flush",
            copy: Box::new(move |batch| memcpy_and_write_back(&fabric, batch)),
        },
        Contender { name: "host, fence", copy: Box::new(move |batch| store(&fence, batch)) },
        Contender {
            name: "host, read-back",
            copy: Box::new(move |batch| store(&read_back, batch)),
        },
    ]
}

fn load_contenders(fabric: &MappedFabric) -> Vec<Contender<'static>> {
    let dma = HostDma::new(fabric.clone());
    let fabric = fabric.clone();
    vec![
        Contender { name: "memcpy", copy: Box::new(memcpy_out) },
        Contender { name: "stream", copy: Box::new(stream_out) },
        Contender {
            name: "refresh+memcpy",
            copy: Box::new(move |batch| refresh_and_memcpy(&fabric, batch)),
        },
        Contender { name: "host", copy: Box::new(move |batch| load(&dma, batch)) },
    ]
}

fn measure(criterion: &mut Criterion, bed: &mut Bed, name: &str, contenders: &[Contender<'_>]) {
    let mut group = criterion.benchmark_group(name);
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    group.warm_up_time(Duration::from_millis(50)).measurement_time(Duration::from_millis(300));
    group.throughput(Throughput::Bytes(Bed::BATCH_BYTES));
    for payload_bytes in SIZES {
        for contender in contenders {
            let id = BenchmarkId::new(contender.name, format!("{} KiB", payload_bytes >> 10));
            group.bench_function(id, |bencher| {
                bencher.iter(|| (contender.copy)(&mut bed.batch(payload_bytes)));
            });
        }
    }
    group.finish();
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut bed = Bed::new()?;
    let stores = store_contenders(bed.fabric());
    let loads = load_contenders(bed.fabric());
    let mut criterion = Criterion::default().configure_from_args();
    measure(&mut criterion, &mut bed, "store", &stores);
    measure(&mut criterion, &mut bed, "load", &loads);
    criterion.final_summary();
    // Under `cargo test` every contender has now run once, which is all that is wanted.
    if std::env::args().any(|argument| argument == "--bench") {
        print_ratios("store", &mut bed, &SIZES, &stores);
        print_ratios("load", &mut bed, &SIZES, &loads);
    }
    Ok(())
}

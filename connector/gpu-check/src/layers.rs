//! Layer by layer: each is copied behind the work that computes it, and is there when it is said to
//! be.

use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};
use cudarc::driver::{CudaSlice, result};
use cxl_shm::units::Extent;
use rackline::cuda::{CudaDma, DeviceSource};
use rackline::dma::{Checksum, CopyLayer, DmaEngine, LayeredSource, Layers, LoadJob, StoreJob};

use crate::content::{content, difference};
use crate::device::Device;

/// Layers that share lines, and one that is copied for a while.
const LAYERS: [usize; 4] = [65_636, 3, 4096, (8 << 20) - 7];
const PAYLOADS: u64 = 3;
const PAYLOAD_DISTANCE_BYTES: u64 = 16 << 20;
/// Of two threads, one of which stores by layers.
const ROUNDS: u32 = 20;
const LAYERS_OF_ROUND: usize = 4;
const LAYER_OF_ROUND_BYTES: usize = 64 << 10;

/// Stores and loads payloads layer by layer, and breaks a store off.
pub(crate) fn check(device: &Device) -> Result<String> {
    let layers = Layers::new(LAYERS.map(|bytes| bytes as u64));
    let bytes = LAYERS.iter().sum();
    let payloads: Vec<_> = (0..PAYLOADS)
        .map(|number| Extent::new(number * PAYLOAD_DISTANCE_BYTES, layers.bytes()))
        .collect::<Option<_>>()
        .context("payloads lie at the start of the file")?;
    let contents: Vec<_> = (0..PAYLOADS).map(|number| content(900 + number, bytes)).collect();

    let mut source = Computed::new(device, &contents)?;
    let stored = device.dma.store_by_layers(&payloads, &layers, &mut source);
    for (stored, content) in stored.context("the store broke off")?.into_iter().zip(&contents) {
        ensure!(stored? == Checksum::of(&[content]), "what arrived is not what was stored");
    }

    load(device, &payloads, &layers, &contents)?;

    let mut source = Computed { layers: 2, ..Computed::new(device, &contents)? };
    let stored = device.dma.store_by_layers(&payloads, &layers, &mut source);
    ensure!(stored.is_none(), "a store went on that was broken off");
    beside_whole_payloads(device)?;
    Ok(format!("{PAYLOADS} payloads of {} layers, each way", layers.count()))
}

/// What was loaded is what was there before its layer was said to have arrived.
fn load(device: &Device, payloads: &[Extent], layers: &Layers, contents: &[Vec<u8>]) -> Result<()> {
    let mut memory = contents
        .iter()
        .map(|content| {
            // Parts that are not the layers.
            let (first, second) = content.split_at(content.len() / 3);
            let part = |bytes: &[u8]| device.stream.alloc_zeros::<u8>(bytes.len());
            Ok([part(first)?, part(second)?])
        })
        .collect::<Result<Vec<_>>>()?;
    let jobs = payloads.iter().zip(&mut memory).map(|(payload, memory)| {
        let parts = memory.iter_mut().map(|part| device.dma.destination(part, &device.stream));
        Ok(LoadJob { payload: *payload, parts: parts.collect::<Result<_, _>>()? })
    });
    let jobs: Vec<_> = jobs.collect::<Result<_>>()?;
    let mut told = Vec::new();
    let mut written = Ok(());
    let loaded = device.dma.load_by_layers(jobs, layers, &mut |layer| {
        let start: usize = LAYERS[..layer].iter().sum();
        // Too late to be loaded. The line in which the layer ends is the next one's, too.
        let gone = vec![0; LAYERS[layer] / 64 * 64];
        for payload in payloads {
            let at = payload.offset() + start as u64;
            written = std::mem::replace(&mut written, Ok(()))
                .and_then(|()| device.file.write_all_at(&gone, at));
        }
        told.push(layer);
    });
    written?;
    ensure!(told == [0, 1, 2, 3], "layers arrived in the order {told:?}");
    for ((loaded, memory), content) in loaded.into_iter().zip(&memory).zip(contents) {
        let mut found = device.stream.clone_dtoh(&memory[0])?;
        found.extend(device.stream.clone_dtoh(&memory[1])?);
        if let Some(difference) = difference(&found, content) {
            anyhow::bail!("a layer was not there when it was said to be: {difference}");
        }
        ensure!(loaded? == Checksum::of(&[content]), "another checksum on the way back");
    }
    Ok(())
}

/// One thread stores by layers, another one whole payloads of the same memory: neither waits for
/// the other for ever, and both have as little to do with the GPU afterwards as before.
fn beside_whole_payloads(device: &Device) -> Result<()> {
    let bytes = content(990, LAYERS_OF_ROUND * LAYER_OF_ROUND_BYTES);
    let memory = bytes.chunks(LAYER_OF_ROUND_BYTES).map(|layer| device.stream.clone_htod(layer));
    let memory = memory.collect::<Result<Vec<_>, _>>()?;
    let parts = memory.iter().map(|layer| device.dma.source(layer, &device.stream));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    let payload = |number| device.payload(number, bytes.len() as u64);
    let (first, others) = (payload(0)?, [payload(1)?, payload(2)?, payload(3)?]);
    let expected = Checksum::of(&[&bytes]);
    let rounds = |store: &dyn Fn() -> Result<Vec<Checksum>>| -> Result<()> {
        for _ in 0..ROUNDS {
            let as_expected = store()?.into_iter().all(|stored| stored == expected);
            ensure!(as_expected, "beside another thread: what was stored is not");
        }
        ensure!(result::ctx::get_current()?.is_none(), "a thread was left with a current context");
        Ok(())
    };
    let by_layers = || {
        let layers = Layers::new([LAYER_OF_ROUND_BYTES as u64; LAYERS_OF_ROUND]);
        let stored = device.dma.store_by_layers(&[first], &layers, &mut Prepared(&parts));
        Ok(stored.context("the store broke off")?.into_iter().collect::<Result<_, _>>()?)
    };
    let whole = || {
        let jobs = others.map(|payload| StoreJob { payload, parts: &parts });
        Ok(device.dma.store(&jobs).into_iter().collect::<Result<_, _>>()?)
    };
    std::thread::scope(|scope| {
        let threads = [scope.spawn(|| rounds(&by_layers)), scope.spawn(|| rounds(&whole))];
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?
        })
    })
}

/// A payload that is ready, a part for each layer.
struct Prepared<'a>(&'a [DeviceSource<'a>]);

impl LayeredSource<CudaDma> for Prepared<'_> {
    fn layer(&mut self, layer: usize, copy: &mut CopyLayer<'_, CudaDma>) -> bool {
        copy(&[vec![self.0[layer]]]);
        true
    }
}

/// Payloads whose layers a stream is about to compute when they are said to be ready.
struct Computed<'d> {
    device: &'d Device,
    contents: &'d [Vec<u8>],
    memory: Vec<Vec<CudaSlice<u8>>>,
    /// How many of the layers become ready.
    layers: usize,
}

impl<'d> Computed<'d> {
    fn new(device: &'d Device, contents: &'d [Vec<u8>]) -> Result<Self> {
        let layer = |bytes: &usize| device.stream.alloc_zeros::<u8>(*bytes);
        let payload = |_| Ok(LAYERS.iter().map(layer).collect::<Result<_, _>>()?);
        let memory = contents.iter().map(payload).collect::<Result<_>>()?;
        Ok(Self { device, contents, memory, layers: LAYERS.len() })
    }

    fn compute(&mut self, layer: usize) -> Result<()> {
        let start: usize = LAYERS[..layer].iter().sum();
        for (content, memory) in self.contents.iter().zip(&mut self.memory) {
            let bytes = &content[start..start + LAYERS[layer]];
            self.device.stream.memcpy_htod(bytes, &mut memory[layer])?;
        }
        Ok(())
    }
}

impl LayeredSource<CudaDma> for Computed<'_> {
    fn layer(&mut self, layer: usize, copy: &mut CopyLayer<'_, CudaDma>) -> bool {
        if layer == self.layers || self.compute(layer).is_err() {
            return false;
        }
        let Device { dma, stream, .. } = self.device;
        let parts = self.memory.iter().map(|memory| Ok(vec![dma.source(&memory[layer], stream)?]));
        let Ok(parts) = parts.collect::<Result<Vec<_>>>() else { return false };
        copy(&parts);
        true
    }
}

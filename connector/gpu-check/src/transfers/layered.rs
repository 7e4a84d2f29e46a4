//! Layer by layer: each is published behind the work of the stream it was said to be ready with,
//! and is there when it is said to have arrived.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use cudarc::driver::{CudaSlice, CudaStream, sys};
use rackline::cuda::{CudaDma, CudaError, DeviceSource, GpuError};
use rackline::{AsyncSession, LayeredPublish, Layers, NewBlock, PublishOutcome, Source};

use super::on_gpu::{InLayers, Layer};
use super::{BLOCK_BYTES, hash, taken_up};
use crate::content::{content, difference};
use crate::streams::{keep_busy, scratch};

/// Layers that share lines.
const LAYERS: [usize; 4] = [600_001, 3, 64 << 10, BLOCK_BYTES - 600_004 - (64 << 10)];
const BLOCKS: u32 = 3;
/// Blocks of other checks have other numbers.
const FIRST_BLOCK: u32 = 400;

/// The session of the check, the GPU, and the stream that computes.
pub(super) struct Engine<'c> {
    pub(super) session: &'c AsyncSession,
    pub(super) stream: &'c Arc<CudaStream>,
    pub(super) gpu: usize,
}

impl Engine<'_> {
    /// Publishes and fetches, both behind late work of the stream.
    pub(super) fn check_layers(&self) -> Result<()> {
        let written = self.written(0)?;
        let mut scratch = scratch(self.stream)?;
        self.stream.synchronize()?;
        let (publish, blocks) = self.begin()?;
        keep_busy(self.stream, &mut scratch)?;
        for layer in 0..LAYERS.len() {
            self.write_layer(&blocks, &written, layer)?;
            publish.layer_ready(layer, (&**self.stream).into())?;
        }
        let published = publish.finish().wait()?;
        let report = published.report?.context("a publish by layers was aborted")?;
        ensure!(report.published() == blocks.len(), "not published: {:?}", report.outcomes());
        self.fetch(&mut scratch)?;
        self.layers_do_not_wait_for_later_ones(&written, &mut scratch)?;
        self.layers_that_are_there_wait_for_nothing(&mut scratch)?;
        self.what_cannot_be_ordered_is_aborted(&written)
    }

    /// A publish of blocks of the numbers of this check, and another way to their memory.
    pub(super) fn begin(&self) -> Result<(LayeredPublish<InLayers, CudaDma>, Vec<InLayers>)> {
        let block = |_| InLayers::new(self.stream, &LAYERS);
        let memory = (0..BLOCKS).map(block).collect::<Result<Vec<_>>>()?;
        let session = self.session.on_gpu_by_layers(self.gpu)?;
        let publish = taken_up(session.publish_by_layers(blocks(&memory), layers()))?;
        Ok((publish, memory))
    }

    /// A GPU that is not open is no way to publish.
    pub(super) fn check_not_open(&self) -> Result<()> {
        let refused = self.session.on_gpu_by_layers(self.gpu);
        ensure!(
            matches!(refused, Err(GpuError::NotOpen { .. })),
            "a publish by layers was not refused: the GPU is not open"
        );
        Ok(())
    }

    fn fetch(&self, scratch: &mut CudaSlice<u8>) -> Result<()> {
        let (other, reader) = (self.written(50)?, self.stream.context().new_stream()?);
        let to = (0..BLOCKS).map(|_| InLayers::new(self.stream, &LAYERS));
        let to = to.collect::<Result<Vec<_>>>()?;
        let hashes: Vec<_> = (FIRST_BLOCK..).take(to.len()).map(hash).collect();
        let held = self.session.lookup_and_hold(hashes)?.wait()??;
        keep_busy(self.stream, scratch)?;
        for layer in 0..LAYERS.len() {
            self.write_layer(&to, &other, layer)?;
        }
        let session = self.session.on_gpu(self.gpu, (&**self.stream).into())?;
        let fetch = taken_up(session.fetch_by_layers(held.blocks(), to.clone(), layers()))?;
        for layer in 0..LAYERS.len() {
            fetch.arrivals.wait(layer)?;
            for (number, block) in to.iter().enumerate() {
                let found = read(&reader, &block.layers()[layer])?;
                let expected = &bytes_of(number as u64)[range(layer)];
                if let Some(difference) = difference(&found, expected) {
                    anyhow::bail!("layer {layer} of block {number} had not arrived: {difference}");
                }
            }
        }
        let fetched = fetch.completion.wait()?.report?;
        ensure!(fetched.valid_blocks() == to.len(), "not fetched: {:?}", fetched.stop());
        Ok(())
    }

    /// An engine launches all layers before the GPU has come to the first: the first is copied
    /// then, when the next ones are still to be computed.
    fn layers_do_not_wait_for_later_ones(
        &self,
        written: &[CudaSlice<u8>],
        scratch: &mut CudaSlice<u8>,
    ) -> Result<()> {
        for (round, times) in (FIRST_BLOCK + BLOCKS..).zip([1, 4, 16]) {
            let memory = InLayers::new(self.stream, &LAYERS)?;
            let ((reached, at), (go_on, told)) = (channel(), channel());
            let bytes = Stopping { reached, told: Mutex::new(told), bytes: memory.clone() };
            let blocks = vec![NewBlock { hash: hash(round), depth: round, bytes }];
            let session = self.session.on_gpu_by_layers(self.gpu)?;
            let publish = taken_up(session.publish_by_layers(blocks, layers()))?;
            for layer in 0..LAYERS.len() {
                self.write_layer(std::slice::from_ref(&memory), written, layer)?;
                publish.layer_ready(layer, (&**self.stream).into())?;
                if layer == 0 {
                    (0..times).try_for_each(|_| keep_busy(self.stream, scratch))?;
                }
            }
            let later = self.stream.record_event(None)?;
            let mut in_time = false;
            for layer in 0..LAYERS.len() {
                ensure!(at.recv()? == layer, "layers are copied in another order");
                // When the second is begun with, the first was copied.
                in_time |= layer == 1 && !later.is_complete();
                go_on.send(())?;
            }
            let published = publish.finish().wait()?.report?.context("a publish was aborted")?;
            ensure!(published.published() == 1, "not published: {:?}", published.outcomes());
            if in_time {
                return Ok(());
            }
            // The GPU may have been faster than this thread: once more, with more to do.
        }
        anyhow::bail!("the copy of a layer waited for the computation of later ones")
    }

    /// What is in the pool already is not copied, and waits for no stream.
    fn layers_that_are_there_wait_for_nothing(&self, scratch: &mut CudaSlice<u8>) -> Result<()> {
        for times in [1, 4, 16] {
            let (publish, _memory) = self.begin()?;
            (0..times).try_for_each(|_| keep_busy(self.stream, scratch))?;
            for layer in 0..LAYERS.len() {
                publish.layer_ready(layer, (&**self.stream).into())?;
            }
            let later = self.stream.record_event(None)?;
            let report = publish.finish().wait()?.report?.context("a publish was aborted")?;
            let in_time = !later.is_complete();
            let there = report.outcomes().iter().all(|it| *it == PublishOutcome::AlreadyThere);
            ensure!(there, "blocks were published anew: {:?}", report.outcomes());
            if in_time {
                return Ok(());
            }
            // The GPU may have been faster than this thread: once more, with more to do.
        }
        anyhow::bail!("a publish by layers of blocks that are there waited for the stream")
    }

    /// A layer of which nobody knows when it is ready: of a stream that is captured, or of none.
    fn what_cannot_be_ordered_is_aborted(&self, written: &[CudaSlice<u8>]) -> Result<()> {
        for captured in [true, false] {
            let (publish, blocks) = self.begin()?;
            self.stream.synchronize()?;
            if captured {
                let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
                self.stream.begin_capture(mode)?;
                let refused = publish.layer_ready(0, (&**self.stream).into());
                drop(self.stream.end_capture(sys::CUgraphInstantiate_flags(0))?);
                ensure!(refused == Err(CudaError::Capturing), "told in a capture: {refused:?}");
                ensure!(publish.is_aborted(), "a publish went on after a layer without an order");
            }
            for layer in 1..LAYERS.len() {
                self.write_layer(&blocks, written, layer)?;
                publish.layer_ready(layer, (&**self.stream).into())?;
            }
            let published = publish.finish().wait()?;
            ensure!(published.report?.is_none(), "published without a layer being ready");
        }
        Ok(())
    }

    /// The contents of all blocks, on the GPU.
    fn written(&self, seed: u64) -> Result<Vec<CudaSlice<u8>>> {
        let block = |number| Ok(self.stream.clone_htod(&bytes_of(seed + number))?);
        (0..u64::from(BLOCKS)).map(block).collect()
    }

    /// Gives the stream a layer of all blocks to write.
    fn write_layer(&self, to: &[InLayers], from: &[CudaSlice<u8>], layer: usize) -> Result<()> {
        for (block, from) in to.iter().zip(from) {
            let memory = &block.layers()[layer].memory;
            let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
            self.stream.memcpy_dtod(&from.slice(range(layer)), &mut *memory)?;
        }
        Ok(())
    }
}

/// A block whose thread of the pool says which layer it begins with, and waits for a word.
struct Stopping {
    reached: Sender<usize>,
    told: Mutex<Receiver<()>>,
    bytes: InLayers,
}

impl Source<CudaDma> for Stopping {
    fn parts(&self) -> Vec<DeviceSource<'_>> {
        self.bytes.parts()
    }

    fn layer(&self, layer: usize) -> Vec<DeviceSource<'_>> {
        // Who drops the other ends has given up.
        let _ = self.reached.send(layer);
        let _ = self.told.lock().map(|told| told.recv());
        self.bytes.layer(layer)
    }
}

fn read(stream: &Arc<CudaStream>, layer: &Layer) -> Result<Vec<u8>> {
    let memory = layer.memory.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(stream.clone_dtoh(&*memory)?)
}

fn bytes_of(block: u64) -> Vec<u8> {
    content(700 + block, BLOCK_BYTES)
}

/// Where a layer lies in a block.
fn range(layer: usize) -> std::ops::Range<usize> {
    let start: usize = LAYERS[..layer].iter().sum();
    start..start + LAYERS[layer]
}

fn layers() -> Arc<Layers> {
    Arc::new(Layers::new(LAYERS.map(|bytes| bytes as u64)))
}

fn blocks(memory: &[InLayers]) -> Vec<NewBlock<InLayers>> {
    let block = |(depth, bytes): (u32, &InLayers)| {
        let bytes = bytes.clone();
        NewBlock { hash: hash(depth), depth, bytes }
    };
    (FIRST_BLOCK..).zip(memory).map(block).collect()
}

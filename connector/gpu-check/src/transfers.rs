//! Blocks of a GPU's memory through a pool, as engines move them: without waiting, behind the work of
//! their streams, and with nothing left behind.
#![expect(unsafe_code, reason = "a transfer knows memory of a GPU by its address")]

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use connector::dma::cuda::{CudaError, CudaFigures, DeviceDestination, DeviceSource, PoolReach};
use connector::session::SessionOptions;
use connector::transfer::{
    GpuDestination, GpuError, GpuSource, GpuSubmitError, NewBlock, SubmitError, TransferOptions,
    TransferSession, Transfers,
};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, sys};
use cxl_shm::layout::{Geometry, Layout, LockProtocol, Superblock, format_superblock};
use cxl_shm::region::Region;
use kv_cache::{BlockHash, CacheGeometry, Model, Namespace};

use crate::content::{content, difference};
use crate::device::{Device, is_mapped};
use crate::streams::{keep_busy, scratch};

const BLOCKS: u8 = 6;
const BLOCK_BYTES: usize = 2 << 20;
const REGION_BYTES: u64 = 64 << 20;

/// A block of the GPU's memory, in two parts.
struct OnGpu {
    memory: CudaSlice<u8>,
    address: u64,
}

impl OnGpu {
    fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        let memory = stream.alloc_zeros::<u8>(BLOCK_BYTES)?;
        let address = {
            let (address, _recorded) = memory.device_ptr(stream);
            address
        };
        Ok(Self { memory, address })
    }

    fn halves(&self) -> [(u64, usize); 2] {
        let half = self.memory.len() / 2;
        [(self.address, half), (self.address + half as u64, self.memory.len() - half)]
    }
}

impl GpuSource for OnGpu {
    fn parts(&self) -> Vec<DeviceSource<'_>> {
        let part = |(address, bytes)| {
            // SAFETY: it is memory of the GPU that the check is given, which this owns, and who
            // transfers it names the one stream that writes it.
            unsafe { DeviceSource::new(address, bytes) }
        };
        self.halves().map(part).into()
    }
}

impl GpuDestination for OnGpu {
    fn parts_mut(&mut self) -> Vec<DeviceDestination<'_>> {
        let part = |(address, bytes)| {
            // SAFETY: as above, and nobody else touches it before it is given back.
            unsafe { DeviceDestination::new(address, bytes) }
        };
        self.halves().map(part).into()
    }
}

/// Publishes and fetches on a pool of its own in `directory`.
pub(crate) fn check(device: &Device, directory: &Path, gpu: usize) -> Result<String> {
    let folder = tempfile::Builder::new().prefix("rackline-gpu-check-").tempdir_in(directory)?;
    let path = folder.path().join("region");
    make_region(&path)?;
    let transfers = Transfers::attach(&path, 0, TransferOptions::default())?;
    let session = transfers.session(options());
    let engine = device.dma.context().new_stream()?;

    let refused = session.publish_from_gpu(gpu, (&*engine).into(), blocks(&engine)?);
    given_back(refused, |error| matches!(error, GpuSubmitError::NotOpen { .. }))?;
    let nobody = transfers.gpu(usize::from(u16::MAX));
    ensure!(
        matches!(nobody, Err(GpuError::Cuda(CudaError::NoSuchGpu { .. }))),
        "GPU 65535 was opened"
    );
    let opened = transfers.gpu(gpu)?;
    let again = transfers.gpu(gpu)?;
    ensure!(again.reach() == opened.reach(), "a GPU that is open was opened anew");
    ensure!(
        matches!(opened.reach(), PoolReach::Bounced { .. })
            == matches!(device.dma.reach(), PoolReach::Bounced { .. }),
        "a pool is reached in another way than a file of this size: {:?}",
        opened.reach()
    );

    a_capture_is_refused(&session, &engine, gpu)?;
    behind_late_work(&session, &engine, gpu)?;
    let figures = opened.figures();
    let bytes = u64::from(BLOCKS) * BLOCK_BYTES as u64;
    let bounced = matches!(opened.reach(), PoolReach::Bounced { .. });
    let bounced_bytes = if bounced { 2 * bytes } else { 0 };
    let expected =
        CudaFigures { stored_bytes: bytes, loaded_bytes: bytes, bounced_bytes, failed_payloads: 0 };
    ensure!(figures == expected, "counted {figures:?} instead of {expected:?}");

    // What is under way when the pool is closed is done; then nothing of it is left.
    let mut others = blocks(&engine)?;
    others.iter_mut().for_each(|block| block.hash = hash(block.depth + 100));
    let under_way = taken_up(session.publish_from_gpu(gpu, (&*engine).into(), others))?;
    transfers.close();
    let published = under_way.poll()?.context("what was taken up is done when a pool is closed")?;
    ensure!(published.report?.published() == usize::from(BLOCKS), "it was done, and failed");
    ensure!(!is_mapped(&path)?, "the pool is mapped after it was closed: the GPU has it still");
    let refused = session.publish_from_gpu(gpu, (&*engine).into(), blocks(&engine)?);
    given_back(refused, |error| matches!(error, GpuSubmitError::Refused(SubmitError::Closed(_))))?;
    ensure!(matches!(transfers.gpu(gpu), Err(GpuError::Closed)), "a closed pool opens a GPU");
    ensure!(opened.figures().stored_bytes == 2 * bytes, "figures of a closed pool");
    Ok(format!("{BLOCKS} blocks behind late work of a stream, both ways; closed and unmapped"))
}

/// Work that becomes part of a graph is done who knows when.
fn a_capture_is_refused(
    session: &TransferSession,
    engine: &Arc<CudaStream>,
    gpu: usize,
) -> Result<()> {
    let memory = blocks(engine)?;
    engine.synchronize()?;
    engine.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let refused = session.publish_from_gpu(gpu, (&**engine).into(), memory);
    drop(engine.end_capture(sys::CUgraphInstantiate_flags(0))?);
    given_back(refused, |error| {
        matches!(error, GpuSubmitError::Stream { error: CudaError::Capturing, .. })
    })
}

/// What is published is written by a stream that has much to do before that; what is fetched goes
/// where that stream is still to write something else.
fn behind_late_work(session: &TransferSession, engine: &Arc<CudaStream>, gpu: usize) -> Result<()> {
    let mut scratch = scratch(engine)?;
    let contents: Vec<_> = (0..u64::from(BLOCKS)).map(|seed| content(seed, BLOCK_BYTES)).collect();
    let written = contents.iter().map(|bytes| engine.clone_htod(bytes));
    let written: Vec<_> = written.collect::<Result<_, _>>()?;
    let other = engine.clone_htod(&content(99, BLOCK_BYTES))?;
    let mut from = blocks(engine)?;
    engine.synchronize()?;

    keep_busy(engine, &mut scratch)?;
    for (block, written) in from.iter_mut().zip(&written) {
        engine.memcpy_dtod(written, &mut block.bytes.memory)?;
    }
    let publish = taken_up(session.publish_from_gpu(gpu, (&**engine).into(), from))?;
    let published = publish.wait()?;
    let report = published.report?;
    ensure!(report.published() == usize::from(BLOCKS), "not published: {:?}", report.outcomes());

    let mut to: Vec<_> = published.blocks.into_iter().map(|block| block.bytes).collect();
    keep_busy(engine, &mut scratch)?;
    for block in &mut to {
        engine.memcpy_dtod(&other, &mut block.memory)?;
    }
    let hashes = (0..u32::from(BLOCKS)).map(hash).collect();
    let held = session.lookup_and_hold(hashes)?.wait()?;
    let fetch = taken_up(session.fetch_into_gpu(gpu, (&**engine).into(), held.blocks(), to))?;
    let fetched = fetch.wait()?;
    let report = fetched.report?;
    ensure!(report.valid_blocks() == usize::from(BLOCKS), "not fetched: {:?}", report.stop());
    for (number, (block, expected)) in fetched.destinations.iter().zip(&contents).enumerate() {
        let found = engine.clone_dtoh(&block.memory)?;
        if let Some(difference) = difference(&found, expected) {
            anyhow::bail!("block {number} did not come after the stream's work: {difference}");
        }
    }
    Ok(())
}

/// Refused for the right reason, with all that was given.
fn given_back<T>(
    refused: Result<T, GpuSubmitError<Vec<NewBlock<OnGpu>>>>,
    expected: impl FnOnce(&GpuSubmitError<Vec<NewBlock<OnGpu>>>) -> bool,
) -> Result<()> {
    let Err(error) = refused else { anyhow::bail!("a transfer that cannot be was taken up") };
    ensure!(expected(&error), "refused for another reason: {error}");
    ensure!(error.into_inner().len() == usize::from(BLOCKS), "blocks were not given back");
    Ok(())
}

fn taken_up<T, G>(submitted: Result<T, GpuSubmitError<G>>) -> Result<T> {
    submitted.map_err(|error| anyhow::anyhow!("{error}"))
}

fn blocks(stream: &Arc<CudaStream>) -> Result<Vec<NewBlock<OnGpu>>> {
    let block = |depth| Ok(NewBlock { hash: hash(depth), depth, bytes: OnGpu::new(stream)? });
    (0..u32::from(BLOCKS)).map(block).collect()
}

fn hash(depth: u32) -> BlockHash {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&depth.to_le_bytes());
    BlockHash::new(hash)
}

fn options() -> SessionOptions {
    let model = Model {
        name: "gpu-check",
        revision: "1",
        dtype: "f16",
        layout_version: 1,
        block_tokens: 16,
        tensor_parallel_rank: 0,
        tensor_parallel_size: 1,
        layers: 2,
        kv_heads: 1,
        head_dim: 64,
    };
    SessionOptions {
        model: model.fingerprint(),
        namespace: Namespace::default(),
        block_bytes: BLOCK_BYTES as u64,
        chunk_timeout_ms: 5000,
    }
}

/// A region whose locks need no lock manager.
fn make_region(path: &Path) -> Result<()> {
    let cache = CacheGeometry::new(64, 64).context("the geometry of the cache")?;
    let geometry = Geometry {
        region_bytes: REGION_BYTES,
        nodes: 1,
        locks: 8,
        chunk_bytes: 4 << 20,
        area_lines: cache.area_lines(1),
        host_words: 0,
    };
    let host_words = cache.host_words(&Layout::new(geometry)?) as u64;
    // Host tiers are told apart by it: the random name of the folder, in part.
    let name = path.as_os_str().as_encoded_bytes();
    let random = name.iter().fold(0, |sum: u64, byte| sum.rotate_left(7) ^ u64::from(*byte));
    let uuid = [u64::from(std::process::id()), random];
    let superblock = Superblock::new(uuid, Geometry { host_words, ..geometry }, cache.encode());
    let superblock = Superblock { lock_protocol: LockProtocol::Bakery, ..superblock };
    let region = Region::create_file(path, REGION_BYTES)?;
    format_superblock(region.fabric(), &superblock, |_, _| ())?;
    Ok(())
}

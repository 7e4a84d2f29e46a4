//! What the GPU of one process stored, another process reads with its own.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, ensure};
use bytesize::ByteSize;
use cxl_shm::fabric::{MappedFabric, Mapping};
use cxl_shm::units::Extent;
use rackline::cuda::CudaDma;
use rackline::dma::{Checksum, DmaEngine, LoadJob};

use crate::content::{content, difference};
use crate::device::Device;

const BYTES: usize = 16 << 20;
const SEED: u64 = 0x5ec0_4d00;

/// `<offset>:<bytes of the file>:<path>`: where the payload is.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    offset: u64,
    file_bytes: u64,
    path: PathBuf,
}

impl FromStr for Task {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut fields = text.splitn(3, ':');
        let mut field = || fields.next().context("three fields");
        Ok(Self { offset: field()?.parse()?, file_bytes: field()?.parse()?, path: field()?.into() })
    }
}

/// Stores a payload and has another process read it.
pub(crate) fn check(device: &Device, gpu: usize, size: ByteSize) -> Result<String> {
    let payload = device.payload(5, BYTES as u64)?;
    let memory = device.stream.clone_htod(&content(SEED, BYTES))?;
    device.store(payload, &[memory])??;
    let task = format!("{}:{}:{}", payload.offset(), device.bytes, device.path.display());
    let output = Command::new(std::env::current_exe()?)
        .args(["--gpu", &gpu.to_string(), "--size", &size.as_u64().to_string()])
        .args(["--second-process", &task])
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok("read through its own registration, byte for byte".into())
}

/// The second process.
pub(crate) fn carry_out(task: &Task, gpu: usize) -> Result<ExitCode> {
    let file = File::options().read(true).write(true).open(&task.path)?;
    let dma = CudaDma::new(MappedFabric::new(Mapping::shared(&file, task.file_bytes)?)?, gpu)?;
    let stream = dma.context().new_stream()?;
    let mut memory = stream.alloc_zeros::<u8>(BYTES)?;
    let payload = Extent::new(task.offset, BYTES as u64).context("the payload")?;
    let parts = vec![dma.destination(&mut memory, &stream)?];
    let checksum = dma.load(&mut [LoadJob { payload, parts }]).remove(0)?;
    let (found, expected) = (stream.clone_dtoh(&memory)?, content(SEED, BYTES));
    if let Some(difference) = difference(&found, &expected) {
        return Err(anyhow!("the second process: {difference}"));
    }
    ensure!(checksum == Checksum::of(&[&expected]), "the second process: another checksum");
    Ok(ExitCode::SUCCESS)
}

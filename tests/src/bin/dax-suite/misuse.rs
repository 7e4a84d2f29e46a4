//! What must be refused on a real device, clearly. The kernel says EINVAL to some of it, and to
//! the rest nothing until the first touch, which is SIGBUS.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use cxl_shm::fabric::{Fabric, MapError, MappedFabric, Mapping};
use cxl_shm::layout::{
    FormatError, Geometry, Superblock, SuperblockError, format_superblock, read_superblock,
};
use cxl_shm::region::{CreateError, OpenError, Region, RegionKind, RegionPath, RemoveError, Sysfs};
use cxl_shm::units::{LineOffset, PAGE_BYTES, WordOffset};

const SIGBUS: i32 = 7;

/// Misuse the device, and check that each misuse is refused. Formats half of it on the way.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[arg(long)]
    region: PathBuf,
}

/// Map more than the device has and touch the first byte too many. Ends by a signal.
#[derive(Args, Debug)]
pub(crate) struct TouchBeyondOptions {
    #[arg(long)]
    region: PathBuf,
}

/// The device as its driver describes it, read here once more and independently.
struct Device<'a> {
    path: &'a Path,
    attributes: PathBuf,
    bytes: u64,
    align_bytes: u64,
}

impl<'a> Device<'a> {
    fn read(path: &'a Path) -> Result<Self> {
        let name = path.file_name().context("the path of a device")?;
        let attributes = Path::new("/sys/bus/dax/devices").join(name);
        let number = |attribute: &str| -> Result<u64> {
            let text = fs::read_to_string(attributes.join(attribute))?;
            Ok(text.trim().parse()?)
        };
        let (bytes, align_bytes) = (number("size")?, number("align")?);
        Ok(Self { path, attributes, bytes, align_bytes })
    }

    fn map(&self, bytes: u64) -> Result<Result<Mapping, MapError>> {
        let file = OpenOptions::new().read(true).write(true).open(self.path)?;
        Ok(Mapping::shared(&file, bytes))
    }
}

type Misuse = fn(&Device) -> Result<String>;

const MISUSES: &[(&str, Misuse)] = &[
    ("size and alignment", size_and_alignment),
    ("length of a mapping", length_of_a_mapping),
    ("mapping beyond the end", mapping_beyond_the_end),
    ("alignment of offsets", alignment_of_offsets),
    ("a size the alignment does not divide", a_size_the_alignment_does_not_divide),
    ("an alignment that makes no sense", an_alignment_that_makes_no_sense),
    ("the device as a file", the_device_as_a_file),
    ("what is no devdax", what_is_no_devdax),
    ("a geometry of another size", a_geometry_of_another_size),
    ("a region of another size", a_region_of_another_size),
    ("touching all of it beforehand", touching_all_of_it_beforehand),
];

pub(crate) fn run(options: &Options) -> Result<String> {
    let device = Device::read(&options.region)?;
    for (name, misuse) in MISUSES {
        let said = misuse(&device).with_context(|| (*name).to_owned())?;
        println!("{name}: {said}");
    }
    Ok(format!(
        "refused={} bytes={} align_bytes={}",
        MISUSES.len(),
        device.bytes,
        device.align_bytes
    ))
}

fn size_and_alignment(device: &Device) -> Result<String> {
    let stat_bytes = fs::metadata(device.path)?.len();
    ensure!(stat_bytes == 0, "fstat says {stat_bytes}");
    let path = RegionPath::inspect(device.path, &Sysfs::default())?;
    path.require_kind(RegionKind::Devdax)?;
    let found = (path.bytes(), path.align_bytes());
    ensure!(found == (device.bytes, device.align_bytes), "taken for {found:?}");
    let mapped = Region::open(device.path, None)?.bytes();
    ensure!(mapped == device.bytes, "{mapped} bytes were mapped");
    let (bytes, align_bytes) = found;
    Ok(format!("fstat says 0 bytes, sysfs {bytes} in units of {align_bytes}"))
}

fn length_of_a_mapping(device: &Device) -> Result<String> {
    ensure!(device.align_bytes > PAGE_BYTES, "units of a page would allow these lengths");
    let mut said = String::new();
    for bytes in [0, 1, PAGE_BYTES, device.align_bytes + PAGE_BYTES, device.bytes - 1] {
        // The last rounds up to whole pages, and so to the whole device.
        match device.map(bytes)? {
            Err(error @ MapError::Map { .. }) => said = error.to_string(),
            Err(error) => return Err(error.into()),
            Ok(_) if bytes == device.bytes - 1 => {}
            Ok(_) => bail!("{bytes} bytes were mapped"),
        }
    }
    device.map(device.align_bytes)??;
    Ok(said)
}

fn mapping_beyond_the_end(device: &Device) -> Result<String> {
    let program = std::env::current_exe()?;
    let touch = Command::new(program)
        .arg("touch-beyond")
        .arg("--region")
        .arg(device.path)
        .stdout(Stdio::null())
        .status()?;
    ensure!(touch.signal() == Some(SIGBUS), "the touch ended with {touch}");
    let region = Region::open(device.path, None)?;
    let beyond = WordOffset::new(device.bytes).context("aligned")?;
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let touched = std::panic::catch_unwind(|| region.fabric().load(beyond));
    std::panic::set_hook(quiet);
    ensure!(touched.is_err(), "the fabric reached beyond the end");
    Ok("the kernel maps it and a touch is SIGBUS; the fabric refuses the offset".to_owned())
}

pub(crate) fn touch_beyond(options: &TouchBeyondOptions) -> Result<String> {
    let device = Device::read(&options.region)?;
    let fabric = MappedFabric::new(device.map(device.bytes + device.align_bytes)??)?;
    let beyond = WordOffset::new(device.bytes).context("aligned")?;
    Ok(format!("value={}", fabric.load(beyond)))
}

fn alignment_of_offsets(_: &Device) -> Result<String> {
    ensure!([1, 4, 63].map(WordOffset::new) == [None; 3], "a word at an odd offset");
    ensure!([8, 32, 65].map(LineOffset::new) == [None; 3], "a line at an odd offset");
    Ok("words and lines exist at whole offsets only, by their types".to_owned())
}

/// What `Region` says when sysfs says these things of the device.
fn described(device: &Device, bytes: u64, align_bytes: u64) -> Result<OpenError> {
    let root = std::env::temp_dir().join("dax-suite-sysfs");
    let node = fs::read_to_string(device.attributes.join("dev"))?;
    let attributes = root.join("dev/char").join(node.trim());
    fs::create_dir_all(&attributes)?;
    fs::write(attributes.join("size"), format!("{bytes}\n"))?;
    fs::write(attributes.join("align"), format!("{align_bytes}\n"))?;
    symlink("/sys/bus/dax", attributes.join("subsystem"))?;
    let found = RegionPath::inspect(device.path, &Sysfs { root: root.clone() });
    fs::remove_dir_all(root)?;
    match found {
        Err(error) => Ok(error),
        Ok(path) => bail!("taken for {path:?}"),
    }
}

fn a_size_the_alignment_does_not_divide(device: &Device) -> Result<String> {
    let error = described(device, device.bytes - PAGE_BYTES, device.align_bytes)?;
    ensure!(matches!(error, OpenError::Misaligned { .. }), "{error}");
    Ok(error.to_string())
}

fn an_alignment_that_makes_no_sense(device: &Device) -> Result<String> {
    let error = described(device, device.bytes, 3 * PAGE_BYTES)?;
    ensure!(matches!(error, OpenError::Sysfs { .. }), "{error}");
    Ok(error.to_string())
}

fn the_device_as_a_file(device: &Device) -> Result<String> {
    let Err(error) = Region::create_file(device.path, device.bytes) else {
        bail!("a file was created over it");
    };
    ensure!(matches!(error, CreateError::Exists { .. }), "{error}");
    let Err(error) = Region::open(device.path, None)?.remove_file() else {
        bail!("it was removed");
    };
    ensure!(matches!(error, RemoveError::Device { .. }), "{error}");
    let Err(error) = Region::open(device.path, Some(RegionKind::File)) else {
        bail!("it was opened as a file");
    };
    ensure!(matches!(error, OpenError::WrongKind { .. }), "{error}");
    Ok(error.to_string())
}

fn what_is_no_devdax(_: &Device) -> Result<String> {
    let mut said = String::new();
    for path in ["/dev/zero", "/dev/null", "/dev/ttyS0", "/dev"] {
        match Region::open(Path::new(path), None) {
            Err(error @ OpenError::NotRegion { .. }) => said = error.to_string(),
            Err(error) => return Err(error.into()),
            Ok(_) => bail!("{path} was opened"),
        }
    }
    let Err(error) = Region::open(Path::new("/dev/dax9.9"), None) else {
        bail!("a device that does not exist was opened");
    };
    ensure!(matches!(error, OpenError::Missing { .. }), "{error}");
    Ok(said)
}

/// A region of `region_bytes`, whatever the device has.
fn superblock(region_bytes: u64) -> Superblock {
    let chunk_bytes = 2 << 20;
    let (area_lines, host_words) = (64, 128);
    let geometry =
        Geometry { region_bytes, nodes: 2, locks: 16, chunk_bytes, area_lines, host_words };
    Superblock::new([1, 2], geometry, [0; 6])
}

fn a_geometry_of_another_size(device: &Device) -> Result<String> {
    let region = Region::open(device.path, None)?;
    for bytes in [device.bytes * 2, device.bytes / 2] {
        match format_superblock(region.fabric(), &superblock(bytes), |_, _| ()) {
            Err(FormatError::WrongSize { .. }) => {}
            outcome => bail!("formatting for {bytes} bytes: {outcome:?}"),
        }
    }
    let Err(error) = region.require_bytes(device.bytes + 1) else {
        bail!("it has more bytes than it has");
    };
    ensure!(matches!(error, OpenError::TooSmall { .. }), "{error}");
    Ok(error.to_string())
}

/// The device had half the size when it was formatted.
fn a_region_of_another_size(device: &Device) -> Result<String> {
    let half = MappedFabric::new(device.map(device.bytes / 2)??)?;
    format_superblock(&half, &superblock(device.bytes / 2), |_, _| ())?;
    read_superblock(&half)?;
    let region = Region::open(device.path, None)?;
    match read_superblock(region.fabric()) {
        Err(error @ SuperblockError::WrongSize { .. }) => Ok(error.to_string()),
        outcome => bail!("read as {outcome:?}"),
    }
}

fn touching_all_of_it_beforehand(device: &Device) -> Result<String> {
    let region = Region::open(device.path, None)?;
    let mut steps = 0;
    // Steps of a byte are rounded up to what the device can map.
    region.prefault(1, |_, _| steps += 1)?;
    ensure!(steps == device.bytes / device.align_bytes, "{steps} steps");
    Ok(format!("{steps} units"))
}

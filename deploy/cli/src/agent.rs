//! `rackline agent`: the process that owns the drives of a host.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use bytesize::ByteSize;
use clap::Args;
use cxl_shm::clock::{Clock as _, SystemClock};
use kv_cache::Watermarks;
use kv_drive::encoding::{EncodingChoice, EncodingOptions};
use kv_drive::policy::AdmissionKind;
use kv_drive::volume::{CAPACITY_BYTES_MIN, SILENT_AFTER};
use rackline_agent::{
    Agent, BackupSettings, DriveFolder, RestoreSettings, ScheduleSettings, Settings,
};

use crate::config::FileOptions;
use crate::drive_engine::Io;
use crate::metrics::MetricsOptions;
use crate::output::say;
use crate::page::Whose;
use crate::rack::Interrupt;

/// How long after a refusal blocks are tried again, in milliseconds.
const RETRY_MS: u64 = 10_000;

/// How often the program looks whether it is to end, in milliseconds.
const STOP_LOOK_MS: u64 = 20;

/// Run the agent of a host: NVMe drives behind the pool.
///
/// Start one agent on each host whose engines are to find blocks on drives. It copies the blocks of its host to the drives
/// while they are in the pool, and tells all hosts what the drives have. When a host asks for a
/// block that has left the pool, the agent brings the block back, if it can do so in time. Capacity
/// decides: a drive has room for many times the blocks of the pool.
///
/// Engines keep running when an agent stops, is killed, or is started again. While no agent runs
/// blocks on its drives are misses. The blocks stay on the drives, also when the region is formatted
/// anew: the next agent announces them again.
///
/// The region needs room to announce them: `rackline format --drive-bytes`. `rackline status` shows
/// what each agent has and does. The log goes to standard error. SIGTERM or SIGINT stops the agent
/// in order: what waits is written first, for up to 5 seconds. Under systemd the agent says when it
/// is ready, and feeds the watchdog.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  rackline agent --region /dev/dax0.0 --node 3 --drive /mnt/nvme0/kv:3TiB --drive /mnt/nvme1/kv:3TiB
  rackline agent --region /dev/dax0.0 --node 4
  rackline agent --config /etc/rackline.toml --check")]
pub(crate) struct Options {
    /// The region: a devdax device (/dev/daxX.Y), or a file on a single host.
    #[arg(long, value_name = "PATH", env = "RACKLINE_REGION")]
    region: PathBuf,

    /// This host's node number, that of the engines on this host.
    #[arg(long, value_name = "N", env = "RACKLINE_NODE")]
    node: u16,

    /// A folder on a drive, and how much of the drive it may take, for instance `:3TiB`. Without a
    /// size it takes nine tenths of the room that its file system has. Give the flag once for each
    /// folder: blocks are spread over them. The folder exists, and no other process uses it. Without
    /// any folder the agent follows: this host has no drives, and finds blocks on those of others.
    #[arg(long, value_name = "DIR[:SIZE]")]
    drive: Vec<Drive>,

    /// How payload reaches the drives.
    #[arg(long, value_enum, default_value_t = Io::Uring)]
    io: Io,

    /// Take folders over that another host has used. Make sure that the other host uses them no more.
    #[arg(long)]
    take_over: bool,

    /// How long a block is in the pool before it is copied to a drive. Blocks that leave the pool
    /// before that are on no drive.
    #[arg(long, value_name = "MS", default_value_t = 500)]
    backup_age_ms: u64,

    /// Which blocks are written: second-touch, those that are used or published again; frequency,
    /// those that are used more often than what leaves the drive; or all. The last one writes several
    /// times as much, and finds more.
    #[arg(long, value_name = "RULE", default_value_t = AdmissionKind::default())]
    admission: AdmissionKind,

    /// How many bytes of blocks may wait for the drives. Blocks beyond that are not written; they
    /// are looked at again later.
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    backlog: ByteSize,

    /// Written blocks are made durable, and announced, after this time at most.
    #[arg(long, value_name = "MS", default_value_t = 200)]
    commit_ms: u64,

    /// Or after so many bytes.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    commit_bytes: ByteSize,

    /// While no engine says when it computes, blocks are written when no block was read for so long.
    #[arg(long, value_name = "MS", default_value_t = 10)]
    idle_ms: u64,

    /// A block that has waited for so long is written whatever engines and reads do, one block at a
    /// time.
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    write_wait_ms: u64,

    /// Above this share of a drive's room blocks leave it: those that were used longest ago.
    #[arg(long, value_name = "PERCENT", default_value_t = 95)]
    high_percent: u16,

    /// They leave until this share is in use.
    #[arg(long, value_name = "PERCENT", default_value_t = 90)]
    low_percent: u16,

    /// How blocks are written: raw; lz4; lz4-planes, LZ4 of the low and the high bytes of elements of 2
    /// bytes, for bfloat16; or auto, what samples of the block say. The same bytes come back from each.
    /// `rackline spill measure` shows what each saves of the blocks in a folder.
    #[arg(long, value_name = "ENCODING", default_value_t = EncodingChoice::default())]
    encoding: EncodingChoice,

    /// What `--encoding auto` has to save of a block. Blocks that save less are written raw.
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u8).range(0..=99))]
    encoding_percent: u8,

    /// Reads of a drive that are under way at once, and writes.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=256))]
    depth: u64,

    /// Restores that wait for a drive at most. A host that asks for more is refused at once.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=65536))]
    queue: u64,

    /// Stop when the process that started this one ends.
    #[arg(long)]
    with_parent: bool,

    #[command(flatten)]
    metrics: MetricsOptions,

    #[command(flatten)]
    pub(crate) log: ::lock_manager::LogOptions,

    #[command(flatten)]
    file: FileOptions,
}

/// A folder of a drive as it is typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Drive(pub(crate) DriveFolder);

impl FromStr for Drive {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The last colon: a folder may have one in its name when it has a size behind it.
        let (path, capacity_bytes) = match text.rsplit_once(':') {
            None => (text, None),
            Some((path, size)) => {
                let bytes: ByteSize = size.parse().map_err(|error| {
                    format!("\"{size}\" is no size ({error}); write DIR:3TiB, or DIR alone")
                })?;
                (path, Some(bytes.as_u64()))
            }
        };
        if path.is_empty() {
            return Err("the name of the folder is missing; write DIR:3TiB".to_owned());
        }
        if capacity_bytes.is_some_and(|bytes| bytes < CAPACITY_BYTES_MIN) {
            return Err(format!(
                "a folder has {} at least; write DIR:3TiB",
                ByteSize(CAPACITY_BYTES_MIN)
            ));
        }
        Ok(Self(DriveFolder { path: path.into(), capacity_bytes }))
    }
}

impl Options {
    /// The settings of the agent.
    ///
    /// # Errors
    /// Those that do not go together.
    pub(crate) fn checked(&self) -> Result<Settings> {
        let settings = self.settings().and_then(|settings| {
            self.metrics.check()?;
            Ok(settings)
        });
        self.file.named(settings)
    }

    fn settings(&self) -> Result<Settings> {
        let mut folders = BTreeSet::new();
        if let Some(twice) = self.drive.iter().find(|drive| !folders.insert(&drive.0.path)) {
            bail!("--drive {} is there twice: give each folder once", twice.0.path.display());
        }
        let depth = usize::try_from(self.depth)?;
        Ok(Settings {
            region: self.region.clone(),
            node: self.node,
            drives: self.drive.iter().map(|drive| drive.0.clone()).collect(),
            engine: self.io.into(),
            take_over: self.take_over,
            restore: RestoreSettings { depth, queue_max: usize::try_from(self.queue)? },
            backup: BackupSettings {
                age_ms: self.backup_age_ms,
                admission: self.admission,
                backlog_bytes: self.backlog.as_u64(),
                commit_ms: self.commit_ms,
                commit_bytes: self.commit_bytes.as_u64(),
                silent_ms: u64::try_from(SILENT_AFTER.as_millis())?,
                retry_ms: RETRY_MS,
                schedule: ScheduleSettings {
                    depth,
                    idle_us: self.idle_ms.saturating_mul(1000),
                    write_wait_us: self.write_wait_ms.saturating_mul(1000),
                },
                watermarks: Watermarks::new(self.high_percent, self.low_percent)
                    .context("--high-percent and --low-percent")?,
                encoding: EncodingOptions {
                    choice: self.encoding,
                    least_saving_percent: self.encoding_percent,
                },
            },
        })
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let settings = options.checked()?;
    if options.file.check {
        say!("{}", options.file.checked());
        if settings.drives.is_empty() {
            say!(
                "no --drive: the agent of node {} would follow the drives of other hosts",
                settings.node
            );
        }
        return Ok(());
    }
    let interrupt = Interrupt::install()?;
    if options.with_parent {
        ::lock_manager::stop_with_parent()?;
    }
    let mut service = ::lock_manager::Service::start()
        .context("cannot start the thread that tells the service manager")?;
    let (region, node) = (settings.region.display().to_string(), settings.node);
    let whose = Whose { program: "agent", region: settings.region.clone(), node };
    let drives = settings.drives.len();
    let agent = Agent::start(settings)?;
    let server = options.metrics.serve(agent.metrics(), whose)?;
    if drives == 0 {
        tracing::info!("no --drive: the agent follows the drives of other hosts");
    }
    tracing::info!(region, node, drives, "the agent of this host is at work");
    let clock = SystemClock::start();
    let metrics = agent.metrics();
    while !interrupt.is_set() && !agent.has_ended() {
        service.is_at_work(if agent.is_ready() { "at work" } else { "reads its drives" });
        // The watchdog ends an agent whose threads do nothing. It does not for want of a drive.
        if metrics.looked_lately() {
            service.turn(clock.now_ms());
        }
        clock.sleep_ms(STOP_LOOK_MS);
    }
    service.stops();
    if interrupt.is_set() {
        tracing::info!("stops: writes what waits");
    }
    drop(server);
    agent.stop()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_may_have_a_size() {
        let drive = |text: &str| text.parse::<Drive>().map(|drive| drive.0);
        let folder = |path: &str, capacity_bytes| DriveFolder { path: path.into(), capacity_bytes };
        assert_eq!(drive("/mnt/a"), Ok(folder("/mnt/a", None)));
        assert_eq!(drive("/mnt/a:2GiB"), Ok(folder("/mnt/a", Some(2 << 30))));
        assert_eq!(drive("/mnt/a:b:1MiB"), Ok(folder("/mnt/a:b", Some(1 << 20))));
        for wrong in ["", ":1GiB", "/mnt/a:", "/mnt/a:much", "/mnt/a:1023KiB", "/mnt/a:0"] {
            let error = drive(wrong).unwrap_err();
            assert!(error.contains("DIR"), "{wrong}: {error}");
        }
    }
}

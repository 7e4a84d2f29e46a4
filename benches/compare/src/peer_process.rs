//! The processes of a contender: its servers, its writer and its reader.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use cxl_shm::clock::SystemClock;
use rackline_workers::{Conversation, Process};
use tempfile::TempDir;

use crate::contender::Contender;
use crate::protocol::{Order, Reply};
use crate::rounds::Plan;

/// How long a server may take until it listens.
const START_MS: u64 = 60_000;

/// A process that ends when this is dropped.
#[derive(Debug)]
struct Server(Process);

impl Server {
    /// Starts it. What it prints goes into a file beside the store.
    fn start(command: &mut Command, name: &str, log: &Path) -> Result<Self> {
        let log = File::create(log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(Self(Process::start(command, name, 0)?))
    }

    /// Waits until `ready`, as long as it runs.
    fn wait_for(&mut self, mut ready: impl FnMut() -> bool) -> Result<()> {
        let clock = SystemClock::start();
        while !ready() {
            if let Some(ended) = self.0.ended() {
                bail!(ended);
            }
            ensure!(clock.now_us() / 1000 < START_MS, "the {} does not listen", self.0.name());
            clock.sleep_ms(20);
        }
        Ok(())
    }
}

/// One side of a contender. It is waited for when this is dropped, however long it takes.
#[derive(Debug)]
pub(crate) struct Worker(Conversation<Order, Reply>);

impl Worker {
    fn start(command: &mut Command, name: String) -> Result<Self> {
        let mut worker = Self(Conversation::start(command, name, u64::MAX)?);
        // The first line says that it is ready.
        worker.reply()?;
        Ok(worker)
    }

    /// Has it carry out an order.
    pub(crate) fn order(&mut self, order: Order) -> Result<Reply> {
        self.0.give(&order)?;
        self.reply()
    }

    fn reply(&mut self) -> Result<Reply> {
        let reply = self.0.next(|| Ok(()))?;
        match reply.error {
            Some(error) => bail!("the {}: {error}", self.0.process().name()),
            None => Ok(reply),
        }
    }
}

/// A contender, ready to be measured. Fields are dropped in this order: workers before servers.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) contender: Contender,
    pub(crate) writer: Worker,
    pub(crate) reader: Worker,
    _servers: Vec<Server>,
    _place: TempDir,
}

impl Pair {
    /// Starts all processes of a contender.
    pub(crate) fn start(contender: Contender, plan: &Plan, folder: &Path) -> Result<Self> {
        let prefix = format!("rackline-compare-{contender}-");
        let place = tempfile::Builder::new().prefix(&prefix).tempdir_in(folder)?;
        let servers = start_servers(contender, plan, place.path())?;
        let worker = |side: &str| {
            let mut command = worker_command(contender, side, plan, place.path())?;
            Worker::start(&mut command, format!("{side} of {contender}"))
        };
        let (writer, reader) = (worker("writer")?, worker("reader")?);
        Ok(Self { contender, writer, reader, _servers: servers, _place: place })
    }
}

fn worker_command(contender: Contender, side: &str, plan: &Plan, place: &Path) -> Result<Command> {
    let mut command = if let Some((program, python)) = contender.peer_program() {
        peer_command(program, python)?
    } else {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", "--contender", contender.name()]);
        command
    };
    command.args(["--side", side, "--place"]).arg(place);
    command.args(["--round-bytes", &plan.round_bytes.to_string()]);
    command.args(["--run-bytes", &plan.run_bytes().to_string()]);
    Ok(command)
}

fn start_servers(contender: Contender, plan: &Plan, place: &Path) -> Result<Vec<Server>> {
    match contender {
        Contender::Memcpy | Contender::Stream => {
            // Several rounds, so that no block is in a cache when it is written again.
            let file = File::create_new(place.join("plain"))?;
            file.set_len(plan.round_bytes * 8)?;
            Ok(Vec::new())
        }
        Contender::Lmdb => Ok(Vec::new()),
        Contender::Redis => {
            let socket = place.join("redis.sock");
            let mut command = Command::new("redis-server");
            command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]);
            command.arg(&socket);
            let mut server =
                Server::start(&mut command, "redis-server", &place.join("server.log"))?;
            server.wait_for(|| socket.exists())?;
            Ok(vec![server])
        }
        Contender::Rackline => rackline_servers(plan, place),
        // The master, and the client that owns the memory which the workers share.
        Contender::Mooncake => peer_servers(contender, &["master", "owner"], plan, place),
        Contender::LmCache => peer_servers(contender, &["server"], plan, place),
    }
}

/// Formats a region as a user would, and runs its lock manager.
fn rackline_servers(plan: &Plan, place: &Path) -> Result<Vec<Server>> {
    let program = std::env::current_exe()?.with_file_name("rackline");
    ensure!(
        program.exists(),
        "{} is not there: build it with `cargo build --release -p rackline-cli`",
        program.display()
    );
    let region = place.join("region");
    // A quarter more than is published: chunks hold blocks of one size each.
    let bytes = (plan.run_bytes() + plan.run_bytes() / 4).next_multiple_of(64 << 20);
    let smallest = plan.cases.iter().map(|case| case.block_bytes).min().unwrap_or(1);
    let mut format = Command::new(&program);
    format.args(["format", "--nodes", "2", "--region"]).arg(&region);
    format.args(["--create", &format!("{bytes}B"), "--block", &format!("{smallest}B")]);
    let output = format.output().context("cannot run rackline format")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "rackline format failed: {said}");

    let mut command = Command::new(&program);
    command.args(["lock-manager", "--with-parent", "--node", "0", "--region"]).arg(&region);
    Ok(vec![Server::start(&mut command, "lock manager", &place.join("server.log"))?])
}

/// Starts the servers of a peer one after the other.
fn peer_servers(
    contender: Contender,
    names: &[&str],
    plan: &Plan,
    place: &Path,
) -> Result<Vec<Server>> {
    let (program, python) = contender.peer_program().context("it has no servers of its own")?;
    let mut servers = Vec::new();
    for name in names {
        let mut command = peer_command(program, python)?;
        command.args(["--serve", name, "--place"]).arg(place);
        command.args(["--round-bytes", &plan.round_bytes.to_string()]);
        let log = place.join(format!("{name}.log"));
        let mut process = Server::start(&mut command, &format!("{name} of {contender}"), &log)?;
        let ready = place.join(format!("{name}.ready"));
        process.wait_for(|| ready.exists())?;
        servers.push(process);
    }
    Ok(servers)
}

/// Runs a program of a peer with the Python that the variable names.
fn peer_command(program: &str, python: &str) -> Result<Command> {
    let interpreter = std::env::var_os(python).map(PathBuf::from).with_context(|| {
        format!(
            "{python} does not name a Python with the peer's package: start benches/compare/run"
        )
    })?;
    let mut command = Command::new(interpreter);
    command.arg(script(program)?);
    Ok(command)
}

/// A worker of another language, beside this package's sources.
fn script(name: &str) -> Result<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name);
    ensure!(path.exists(), "{} is not there", path.display());
    Ok(path)
}

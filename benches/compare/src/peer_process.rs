//! The processes of a contender: its servers, its writer and its reader.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use cxl_shm::clock::SystemClock;
use tempfile::TempDir;

use crate::contender::Contender;
use crate::protocol::{Order, Reply};
use crate::rounds::Plan;

/// How long a server may take until it listens.
const START_MS: u64 = 60_000;

/// A process that ends when this is dropped.
#[derive(Debug)]
struct Server(Child);

impl Server {
    /// Starts it. What it prints goes into a file beside the store.
    fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let program = command.get_program().display().to_string();
        let log = File::create(log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("cannot start {program}"))?;
        Ok(Self(child))
    }

    /// Waits until `ready`, as long as it runs.
    fn wait_for(&mut self, what: &str, mut ready: impl FnMut() -> bool) -> Result<()> {
        let clock = SystemClock::start();
        while !ready() {
            if let Some(status) = self.0.try_wait()? {
                bail!("{what} ended ({status})");
            }
            ensure!(clock.now_us() / 1000 < START_MS, "{what} does not listen");
            clock.sleep_ms(20);
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended in between, which is all we want.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One side of a contender.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    name: String,
    orders: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
}

impl Worker {
    fn start(command: &mut Command, name: String) -> Result<Self> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("cannot start {name}"))?;
        let orders = child.stdin.take();
        let replies = BufReader::new(child.stdout.take().context("no pipe")?);
        let mut worker = Self { child, name, orders, replies };
        // The first line says that it is ready.
        worker.reply()?;
        Ok(worker)
    }

    /// Has it carry out an order.
    pub(crate) fn order(&mut self, order: Order) -> Result<Reply> {
        let line = serde_json::to_string(&order)?;
        let orders = self.orders.as_mut().context("it was told to end")?;
        writeln!(orders, "{line}").with_context(|| format!("{} has ended", self.name))?;
        self.reply()
    }

    fn reply(&mut self) -> Result<Reply> {
        let mut line = String::new();
        self.replies.read_line(&mut line)?;
        ensure!(!line.is_empty(), "{} has ended; see what it printed above", self.name);
        let reply: Reply =
            serde_json::from_str(&line).with_context(|| format!("{} said: {line}", self.name))?;
        match reply.error {
            Some(error) => bail!("{}: {error}", self.name),
            None => Ok(reply),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It ends with its standard input.
        drop(self.orders.take());
        let _ = self.child.wait();
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
            Worker::start(&mut command, format!("the {side} of {contender}"))
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
            let mut server = Server::start(&mut command, &place.join("server.log"))?;
            server.wait_for("redis-server", || socket.exists())?;
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
    Ok(vec![Server::start(&mut command, &place.join("server.log"))?])
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
        let mut process = Server::start(&mut command, &place.join(format!("{name}.log")))?;
        let ready = place.join(format!("{name}.ready"));
        process.wait_for(&format!("the {name} of {contender}"), || ready.exists())?;
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

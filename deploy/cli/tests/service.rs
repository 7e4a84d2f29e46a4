//! The lock manager and the agent as services: what they tell a service manager, and what SIGHUP does.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod pool;

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use pool::Pool;

/// A service manager that listens.
struct Listener {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Listener {
    fn start(folder: &Path) -> Self {
        let path = folder.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { socket, path }
    }

    fn spawn(&self, command: &mut Command) -> Process {
        let command = command.env("NOTIFY_SOCKET", &self.path).env("WATCHDOG_USEC", "30000");
        Process(command.stderr(Stdio::null()).spawn().unwrap())
    }

    /// Waits for a message with `part` in it.
    fn wait_for(&self, part: &str) {
        let mut bytes = [0; 4096];
        loop {
            let count =
                self.socket.recv(&mut bytes).unwrap_or_else(|error| panic!("{part}: {error}"));
            let message = std::str::from_utf8(&bytes[..count]).unwrap();
            if message.contains(part) {
                return;
            }
        }
    }
}

/// A process that is killed when the test ends.
struct Process(Child);

impl Process {
    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn end(mut self) {
        self.send(Signal::TERM);
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_lock_manager_tells_what_it_does_and_reads_its_settings_again() {
    let folder = tempfile::tempdir().unwrap();
    let (pool, listener) = (Pool::format_in("/dev/shm"), Listener::start(folder.path()));
    let file = folder.path().join("rackline.toml");
    let write = |text: &str| std::fs::write(&file, format!("[lock_manager]\n{text}\n")).unwrap();
    write("declare_ms = 60000\ncpu = \"any\"");
    let mut command = pool.rackline(&["lock-manager", "--node", "0"]);
    let manager = listener.spawn(command.arg("--config").arg(&file));
    listener.wait_for("READY=1\nSTATUS=");
    (0..5).for_each(|_| listener.wait_for("WATCHDOG=1"));
    // A second one stands by, and is as ready.
    let other = Listener::start(&tempfile::tempdir_in(&folder).unwrap().keep());
    let standby = other.spawn(&mut pool.rackline(&["lock-manager", "--node", "1"]));
    other.wait_for("READY=1\nSTATUS=stands by");
    standby.end();
    other.wait_for("STOPPING=1");
    for text in ["declare_ms = 90000", "declare_ms = 1", "fence = \"command\""] {
        write(text);
        manager.send(Signal::HUP);
        listener.wait_for("RELOADING=1\nMONOTONIC_USEC=");
        listener.wait_for("READY=1\nSTATUS=grants locks, term ");
    }
    manager.end();
    listener.wait_for("STOPPING=1");
}

#[test]
fn an_agent_tells_what_it_does() {
    let folder = tempfile::tempdir().unwrap();
    let (pool, listener) = (Pool::format_in("/dev/shm"), Listener::start(folder.path()));
    let drive = format!("{}:64MiB", tempfile::tempdir_in(&folder).unwrap().keep().display());
    let mut command = pool.rackline(&["agent", "--node", "0", "--drive", &drive]);
    let agent = listener.spawn(&mut command);
    listener.wait_for("STATUS=at work");
    listener.wait_for("WATCHDOG=1");
    agent.end();
    listener.wait_for("STOPPING=1");
}

#[test]
fn a_cpu_that_may_not_be_used_is_refused() {
    let pool = Pool::format_in("/dev/shm");
    let refused = |cpu: &str| {
        let output =
            pool.rackline(&["lock-manager", "--node", "0", "--cpu", cpu]).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused("99999").contains("this process may not use that CPU; it may use"));
    assert!(refused("fast").contains("give near, any, or the number"));
}

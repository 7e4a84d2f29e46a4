//! `rackline top` on a terminal, as a reader sees it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use cxl_shm::clock::{Clock as _, SystemClock};
use rackline::{BlockHash, Model, Namespace, NewBlock, Pool, SessionOptions};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tempfile::TempDir;

const MODEL: Model<'_> = Model {
    name: "model",
    revision: "1",
    dtype: "f16",
    layout_version: 1,
    block_tokens: 16,
    tensor_parallel_rank: 0,
    tensor_parallel_size: 1,
    layers: 1,
    kv_heads: 1,
    head_dim: 1,
};
/// More than any test takes, also where much else runs.
const LIMIT_MS: u64 = 120_000;

fn formatted() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let region = folder.path().join("pool");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    command.args(["format", "--create", "32MiB", "--chunk", "1MiB", "--block", "64KiB"]);
    let command = command.args(["--nodes", "9", "--lock", "bakery", "--region"]).arg(&region);
    assert!(command.output().unwrap().status.success());
    (folder, region)
}

/// A terminal of 110 columns and 36 lines with the command in it.
struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    fn start(region: &Path) -> Self {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let size = Winsize { ws_row: 36, ws_col: 110, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&keyboard, size).unwrap();
        let name = ptsname(&keyboard, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        let line = || Stdio::from(rustix::fs::open(&name, flags, Mode::empty()).unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
        command.args(["top", "--region"]).arg(region);
        let child = command.stdin(line()).stdout(line()).stderr(line()).spawn().unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(36, 110, 0)));
        let keyboard = File::from(keyboard);
        let (mut output, drawn) = (keyboard.try_clone().unwrap(), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // An error once no process has the terminal.
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                drawn.lock().unwrap().process(&bytes[..count]);
            }
        });
        Self { child, keyboard, screen }
    }

    fn resize(&self, rows: u16) {
        let size = Winsize { ws_row: rows, ws_col: 110, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keyboard, size).unwrap();
        self.screen.lock().unwrap().screen_mut().set_size(rows, 110);
        // More than two turns of the command: it draws at this size.
        SystemClock::start().sleep_ms(400);
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for a screen that has all `texts`.
    fn shows(&mut self, texts: &[&str]) -> String {
        self.shows_without("\0", texts)
    }

    /// Waits for a screen that has all `texts`, and not `hidden`.
    fn shows_without(&mut self, hidden: &str, texts: &[&str]) -> String {
        let clock = SystemClock::start();
        loop {
            let text = self.screen.lock().unwrap().screen().contents();
            if texts.iter().all(|it| text.contains(it)) && !text.contains(hidden) {
                return text;
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}, not {texts:?}: {text}");
            assert!(clock.now_ms() < LIMIT_MS, "no {texts:?} in\n{text}");
            clock.sleep_ms(20);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It has ended, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_rack_is_shown_on_a_terminal() {
    let (_folder, region) = formatted();
    let pool = Pool::attach(&region, 8).unwrap();
    let tenant = Namespace::new("tenant", b"");
    let options = SessionOptions::new(MODEL, 64 << 10).with_namespace(tenant);
    let session = pool.session(options).unwrap();
    let mut terminal = Terminal::start(&region);
    terminal.shows(&["Nodes (n)", "Tenants (t)", "No block is in the pool."]);
    let (hash, bytes) = (BlockHash::new([9; 32]), vec![5; 64 << 10]);
    let block = NewBlock { hash, depth: 0, bytes: [bytes.as_slice()] };
    assert_eq!(session.publish(&[block]).unwrap().available(), 1);
    let found = session.lookup(&[hash]).unwrap();
    let key: String =
        found.blocks()[0].key.as_bytes()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let mut fetched = vec![0; 64 << 10];
    let report = session.fetch(found.blocks(), vec![vec![fetched.as_mut_slice()]]).unwrap();
    assert_eq!(report.valid_blocks(), 1);
    let all = ["joined", &key, "64.0 KiB", "no dead host is detected", "Hits", "Fetched"];
    println!("{}", terminal.shows(&all));
    for (part, texts) in [
        ("n", ["Nodes (n)", "joined", "publish/s"]),
        ("p", ["Hottest first blocks of prompts (p)", &key, "used by"]),
        ("t", ["Tenants (t)", "namespace", "64.0 KiB"]),
        ("l", ["Locks", "Not known: locks of this region need no lock manager.", ""]),
        ("d", ["Drives (d)", "No agent has served drives.", ""]),
        ("e", ["Lately (e)", "this program began to look", ""]),
        ("w", ["What is wrong (w)", "lock manager: none has run yet", "bad"]),
    ] {
        terminal.press(part);
        terminal.shows_without("Hits", &texts);
    }
    terminal.press("o");
    terminal.shows(&["Nodes (n)", "Tenants (t)", "Lately (e)"]);
    // As small as a terminal can be: nothing is cut into pieces that are not there.
    for rows in [1, 3, 4, 6, 8, 12, 36] {
        terminal.resize(rows);
        terminal.press("n");
        terminal.press("o");
    }
    terminal.shows(&["Nodes (n)", "Tenants (t)", "Lately (e)"]);
    terminal.press("q");
    assert!(terminal.child.wait().unwrap().success());
}

#[test]
fn a_region_that_is_gone_is_said_and_one_formatted_anew_is_shown() {
    let (_folder, region) = formatted();
    let mut terminal = Terminal::start(&region);
    terminal.shows(&["No node has joined yet."]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    command.args(["format", "--force", "--chunk", "1MiB", "--nodes", "2", "--region"]).arg(&region);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    terminal.shows(&["formatted anew"]);
    terminal.shows_without("cannot be looked at", &["No node has joined yet."]);
    terminal.press("\u{3}");
    assert!(terminal.child.wait().unwrap().success());
}

#[test]
fn without_a_terminal_it_says_what_to_use() {
    let (_folder, region) = formatted();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rackline"));
    let command = command.args(["top", "--region"]).arg(&region).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("no terminal; `rackline status` prints one look"), "{said}");
}

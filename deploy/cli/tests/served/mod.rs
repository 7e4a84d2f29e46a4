//! Programs that serve the page, and an engine that gives them something to show.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use cxl_shm::clock::SystemClock;
use rackline::{
    Attention, BlockHash, Dtype, KvGeometry, ModelFingerprint, NewBlock, SessionOptions,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::pool::Pool;

const BLOCK_BYTES: usize = 16 << 10;
pub(crate) const BLOCKS: u8 = 6;
/// Far longer than it takes: to end a hang, and not to measure.
pub(crate) const LIMIT_MS: u64 = 600_000;

/// A program with a page, which is killed when the test ends.
pub(crate) struct Program {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Program {
    pub(crate) fn start(command: &mut Command) -> Self {
        let command = command.args(["--metrics", "127.0.0.1:0"]).env("RUST_LOG", "info");
        let mut child = command.env("NO_COLOR", "1").stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = log.by_ref().map(Result::unwrap).find_map(|line| {
            let (_, behind) = line.split_once("address=")?;
            behind.split_whitespace().next()?.parse().ok()
        });
        // A full pipe would stop the program.
        std::thread::spawn(move || log.count());
        Self { child, address: address.unwrap() }
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The head and the body of the answer.
    pub(crate) fn ask(&self, path: &str, host: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    pub(crate) fn get(&self, path: &str) -> String {
        let (head, body) = self.ask(path, "localhost");
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
        body
    }

    pub(crate) fn rack(&self) -> Value {
        serde_json::from_str(&self.get("/rack.json")).unwrap()
    }

    /// The first answer that is as `wanted`.
    pub(crate) fn rack_with(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let clock = SystemClock::start();
        loop {
            let rack = self.rack();
            if wanted(&rack) {
                return rack;
            }
            assert!(clock.now_us() / 1000 < LIMIT_MS, "it never got there: {what}: {rack:#}");
            clock.sleep_ms(50);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn lock_manager(pool: &Pool) -> Program {
    Program::start(&mut pool.rackline(&["lock-manager", "--node", "1"]))
}

fn fingerprint() -> ModelFingerprint {
    let heads = Attention::Heads { kv_heads: 1, head_dim: 64 };
    KvGeometry::new(1, heads, Dtype::F16, 64).unwrap().model("model", "1", 1).fingerprint()
}

/// Publishes blocks, and looks all of them up and one more that nobody has.
pub(crate) fn work(engine: &rackline::Pool) {
    let session = engine.session(SessionOptions::new(fingerprint(), BLOCK_BYTES as u64)).unwrap();
    let hashes: Vec<_> = (0..=BLOCKS).map(|number| BlockHash::new([number; 32])).collect();
    for number in 0..BLOCKS {
        let bytes = [number; BLOCK_BYTES];
        let hash = hashes[usize::from(number)];
        let block = NewBlock { hash, depth: number.into(), bytes: [&bytes[..]] };
        assert_eq!(session.publish(&[block]).unwrap().published(), 1);
    }
    assert_eq!(session.lookup(&hashes).unwrap().blocks().len(), usize::from(BLOCKS));
}

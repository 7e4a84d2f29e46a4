//! Sessions whose calling thread does the work.

use std::sync::mpsc;
use std::thread::{self, ThreadId};
use std::time::Duration;

use kv_cache::BlockHash;

use super::tests::{BLOCK_BYTES, attach, block, options, region};
use super::*;
use crate::block::NewBlock;

/// Bytes that say which thread copies them, and may keep this thread waiting.
#[derive(Debug)]
struct Told {
    tell: Mutex<mpsc::Sender<ThreadId>>,
    until: Option<Mutex<mpsc::Receiver<()>>>,
    bytes: Vec<u8>,
}

impl Source for Told {
    fn parts(&self) -> Vec<&[u8]> {
        self.tell.lock().unwrap().send(thread::current().id()).unwrap();
        if let Some(until) = &self.until {
            until.lock().unwrap().recv().unwrap();
        }
        vec![&self.bytes]
    }
}

/// A block, and who copies it.
fn told(
    number: u8,
    until: Option<mpsc::Receiver<()>>,
) -> (NewBlock<Told>, mpsc::Receiver<ThreadId>) {
    let (tell, who) = mpsc::channel();
    let (tell, until) = (Mutex::new(tell), until.map(Mutex::new));
    let bytes = Told { tell, until, bytes: vec![number; BLOCK_BYTES] };
    (NewBlock { hash: BlockHash::new([number; 32]), depth: 0, bytes }, who)
}

#[test]
fn the_calling_thread_does_short_work_before_the_call_returns() {
    let (_folder, path) = region();
    let pool = attach(&path, 0, 8);
    let session = pool.session(options()).unwrap();
    assert!(!session.is_by_caller());
    let session = session.by_caller();
    assert!(session.is_by_caller() && session.clone().is_by_caller());
    assert!(!session.by_threads().is_by_caller());

    let (block_1, who) = told(1, None);
    let published = session.publish(vec![block_1]).unwrap().poll().unwrap();
    assert_eq!(published.expect("done").report.unwrap().published(), 1);
    assert_eq!(who.recv().unwrap(), thread::current().id());
    let hash = BlockHash::new([1; 32]);
    let found = session.lookup(vec![hash]).unwrap().poll().unwrap().expect("done").unwrap();
    assert_eq!(session.present(vec![hash]).unwrap().poll(), Ok(Some(Ok(vec![true]))));
    let fetch = session.fetch(found.into_blocks(), vec![vec![0; BLOCK_BYTES]]).unwrap();
    let fetched = fetch.poll().unwrap().expect("done");
    assert_eq!(fetched.report.unwrap().valid_blocks(), 1);
    assert!(fetched.destinations[0] == vec![1; BLOCK_BYTES]);

    // More than a piece.
    let long = session.publish((10..30).map(block).collect()).unwrap();
    assert_eq!(long.wait().unwrap().report.unwrap().published(), 20);
}

#[test]
fn a_thread_of_the_pool_does_what_the_calling_thread_cannot() {
    let (_folder, path) = region();
    let pool = attach(&path, 0, 8);
    let session = pool.session(options()).unwrap().by_caller();
    let (open, gate) = mpsc::channel();
    let (slow, who_slow) = told(1, Some(gate));
    let works = {
        let session = session.clone();
        thread::spawn(move || session.publish(vec![slow]).unwrap().wait().unwrap())
    };
    assert_eq!(who_slow.recv().unwrap(), works.thread().id());

    let (block_2, who) = told(2, None);
    let mut publish = session.publish(vec![block_2]).unwrap();
    let published = publish.wait_timeout(Duration::from_secs(60)).unwrap().expect("it is queued");
    assert_eq!(published.report.unwrap().published(), 1);
    assert_ne!(who.recv().unwrap(), thread::current().id());
    open.send(()).unwrap();
    assert_eq!(works.join().unwrap().report.unwrap().published(), 1);
}

#[test]
fn a_closed_pool_takes_nothing_from_a_calling_thread() {
    let (_folder, path) = region();
    let pool = attach(&path, 0, 8);
    let session = pool.session(options()).unwrap().by_caller();
    pool.close();
    assert!(session.publish(vec![block(1)]).unwrap_err().kind == SubmitErrorKind::Closed);
    let refused = session.lookup(vec![block(1).hash]).unwrap_err();
    assert!(refused.kind == SubmitErrorKind::Closed);
}

//! A store that serves askers on threads of the CPU.

use std::collections::HashMap;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use kv_cache::{BlockKey, NamespaceTag};

use super::*;
use crate::format::{ALL_LAYERS, Encoding, Page};
use crate::io::{Buffer, EngineKind};
use crate::store::{Access, FolderOptions, Store, StoreOptions};
use crate::volume::{BlockSpec, checksum};

const BLOCKS: u64 = 24;
const BYTES: usize = 5000;

fn key(number: u64) -> BlockKey {
    bytemuck::cast([number + 1, number.wrapping_mul(31), 5])
}

fn payload(number: u64) -> Vec<u8> {
    (0..BYTES as u64).map(|at| u8::try_from((at * 7 + number) % 251).unwrap()).collect()
}

fn store_with_blocks(folder: &std::path::Path) -> Store {
    let options = StoreOptions {
        engine: EngineKind::Posix,
        host: [1; 16],
        take_over: false,
        access: Access::Write,
    };
    let folder = FolderOptions { path: folder.to_owned(), capacity_bytes: 8 << 20 };
    let store = Store::open(&[folder], options).unwrap();
    store.scan(|_, _| {}).unwrap();
    for number in 0..BLOCKS {
        let bytes = payload(number);
        let (length, crc) = (u32::try_from(BYTES).unwrap(), checksum(&bytes));
        let page = Page {
            fingerprint: 1,
            layout_version: 1,
            layer: ALL_LAYERS,
            first_token: 0,
            last_token: 15,
            encoding: Encoding::Raw,
            offset_bytes: 0,
            bytes: length,
            crc,
        };
        let tag = NamespaceTag::from_bits(0);
        let spec = BlockSpec {
            key: key(number),
            tag,
            depth: 0,
            bytes: length,
            stored_bytes: length,
            crc,
            pages: &[page],
        };
        store.put(&spec, Buffer::of(&bytes).unwrap()).1.unwrap();
    }
    store.commit();
    store
}

/// The server: reads blocks from the store into places, until `requests` were answered.
fn serve(store: &Store, server: &mut Server, places: &Mutex<HashMap<u64, Vec<u8>>>, requests: u64) {
    let mut answered = 0;
    while answered < requests {
        let Some(asked) = server.take() else {
            thread::yield_now();
            continue;
        };
        answered += 1;
        let Request { block, place } = asked.request();
        let buffer = Buffer::zeroed(BYTES).unwrap();
        match store.get(key(block), buffer, Duration::from_secs(10)) {
            Ok((buffer, bytes)) => {
                let bytes = buffer.bytes().unwrap()[..bytes as usize].to_vec();
                places.lock().unwrap().insert(place, bytes);
                asked.filled();
            }
            Err(_) => asked.missed(),
        }
    }
}

#[test]
fn a_store_serves_many_askers() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with_blocks(folder.path());
    let (ring, mut server, words) = Ring::new(3);
    let places = Mutex::default();
    // Each asks for all blocks, and for one that is not there.
    let (askers, each) = (4, BLOCKS + 1);
    thread::scope(|scope| {
        for asker in 0..askers {
            let (ring, words, places) = (&ring, &words, &places);
            scope.spawn(move || {
                for block in 0..each {
                    let place = asker * each + block;
                    let outcome = ask(ring, words, Request { block, place });
                    if block == BLOCKS {
                        assert_eq!(outcome, Outcome::Missed);
                        continue;
                    }
                    assert_eq!(outcome, Outcome::Filled);
                    let places: &Mutex<HashMap<u64, Vec<u8>>> = places;
                    assert_eq!(places.lock().unwrap()[&place], payload(block));
                }
            });
        }
        serve(&store, &mut server, &places, askers * each);
    });
    drop(server);
    let late = Request { block: 0, place: 0 };
    assert_eq!(ask(&ring, &words, late), Outcome::Closed);
}

/// Asks until there is room, and polls for the answer.
fn ask(ring: &Ring, words: &AskerWords, request: Request) -> Outcome {
    let mut ticket = loop {
        match ring.ask(words, request) {
            Ok(ticket) => break ticket,
            Err(RingFull) => thread::yield_now(),
        }
    };
    loop {
        match ring.poll(words, ticket) {
            Ok(outcome) => return outcome,
            Err(again) => ticket = again,
        }
        thread::yield_now();
    }
}

#[test]
fn a_full_ring_refuses_and_a_dropped_request_fails() {
    let (ring, mut server, words) = Ring::new(2);
    let request = |block| Request { block, place: 0 };
    let first = ring.ask(&words, request(1)).unwrap();
    let second = ring.ask(&words, request(2)).unwrap();
    assert_eq!(ring.ask(&words, request(3)).unwrap_err(), RingFull);
    let asked = server.take().unwrap();
    assert_eq!(asked.request(), request(1));
    drop(asked);
    server.take().unwrap().filled();
    // Answered out of order, and read out of order: the slot of the third is that of the first.
    assert_eq!(ring.poll(&words, second).unwrap(), Outcome::Filled);
    assert_eq!(ring.ask(&words, request(3)).unwrap_err(), RingFull);
    assert_eq!(ring.poll(&words, first).unwrap(), Outcome::Failed);
    let third = ring.ask(&words, request(3)).unwrap();
    let fourth = ring.ask(&words, request(4)).unwrap();
    let held = server.take().unwrap();
    drop(server);
    let third = ring.poll(&words, third).unwrap_err();
    held.missed();
    assert_eq!(ring.poll(&words, third).unwrap(), Outcome::Missed);
    assert_eq!(ring.poll(&words, fourth).unwrap(), Outcome::Closed);
}

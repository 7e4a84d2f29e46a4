//! Every block is read and checked.

use crossbeam_channel::bounded;
use kv_cache::BlockKey;

use super::{GetMiss, Store};
use crate::io::Buffer;
use crate::volume::{ReadMiss, Unverified};

/// Reads that are under way at once.
const READS: usize = 16;

/// A block, and what reading it showed: its length in bytes, or why it is a miss.
pub type Verified = (BlockKey, Result<u32, GetMiss>);

impl Store {
    /// Reads every block that is found, and tells `each` what it showed. What is damaged leaves the
    /// store with the next commit. `each` ends the reading by `false`.
    pub fn verify(&self, mut each: impl FnMut(Verified) -> bool) {
        let mut spare: Vec<Buffer> = Vec::new();
        for (_, volume) in self.volumes() {
            for keys in (0..).map_while(|part| volume.keys(part)) {
                let (tell, told) = bounded::<Unverified>(READS);
                let (mut keys, mut under_way) = (keys.into_iter().peekable(), 0);
                while under_way > 0 || keys.peek().is_some() {
                    if let Some(key) = keys.next_if(|_| under_way < READS) {
                        let Some(block) = volume.block(&key) else { continue };
                        let bytes = block.buffer_bytes();
                        let fits = |buffer: &Buffer| buffer.capacity() >= bytes;
                        let found = spare.iter().position(fits).map(|at| spare.swap_remove(at));
                        let buffer = match found.map_or_else(|| Buffer::zeroed(bytes), Ok) {
                            Ok(buffer) => buffer,
                            Err(error) => {
                                let miss = ReadMiss::System(error).into();
                                if !each((key, Err(miss))) {
                                    return;
                                }
                                continue;
                            }
                        };
                        let tell = tell.clone();
                        let done = Box::new(move |unverified| drop(tell.send(unverified)));
                        match volume.read(key, buffer, done) {
                            Ok(()) => under_way += 1,
                            Err((buffer, miss)) => {
                                spare.push(buffer);
                                if !each((key, Err(miss.into()))) {
                                    return;
                                }
                            }
                        }
                        continue;
                    }
                    // `tell` is open, so only a drive that stops in the middle never answers.
                    let Ok(unverified) = told.recv() else { return };
                    under_way -= 1;
                    let key = unverified.key();
                    let (buffer, outcome) = match unverified.verify() {
                        Ok((buffer, bytes)) => (buffer, Ok(bytes)),
                        Err((buffer, miss)) => (buffer, Err(miss.into())),
                    };
                    spare.push(buffer);
                    spare.truncate(READS);
                    if !each((key, outcome)) {
                        return;
                    }
                }
            }
        }
    }
}

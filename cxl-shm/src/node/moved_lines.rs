//! Adds the lines that a thread moved to the figures of its host.

use super::Member;
use super::backend::Backend;
use crate::fabric::{Fabric, HostMemory, MovedLines};

const WRITTEN_BACK: usize = 0;
const DROPPED: usize = 1;
const READ_BACK: usize = 2;

impl<B: Backend> Member<B> {
    /// Adds the lines that this thread has moved since the last call to those of its host. Called once
    /// a call, and not once a line. Memory that does not count adds nothing.
    pub fn count_moved_lines(&self) {
        let MovedLines { written_back, dropped, read_back } = self.fabric.take_moved();
        let words = self.handle.tier().moved_lines();
        for (word, lines) in
            [(WRITTEN_BACK, written_back), (DROPPED, dropped), (READ_BACK, read_back)]
        {
            if lines > 0 {
                words.count(word, lines);
            }
        }
    }

    /// Lines that the processes of this host have moved, since the host joined.
    #[must_use]
    pub fn moved_lines(&self) -> MovedLines {
        let words = self.handle.tier().moved_lines();
        MovedLines {
            written_back: words.counted(WRITTEN_BACK),
            dropped: words.counted(DROPPED),
            read_back: words.counted(READ_BACK),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::fabric::{MappedFabric, MappedHostMemory, Mapping, ReadBack};
    use crate::host::{HostIdentity, HostTier, ProcLiveness, ProcessIdentity};
    use crate::layout::{Superblock, format_superblock};
    use crate::node::MappedBackend;
    use crate::units::{LineOffset, LineRange};
    use crate::verify::fixture::SMALL;

    fn mapping(bytes: u64) -> Mapping {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(bytes).unwrap();
        Mapping::shared(&file, bytes).unwrap()
    }

    #[test]
    fn a_host_has_the_lines_that_its_threads_moved() {
        for read_back in [ReadBack::Needed, ReadBack::NotNeeded] {
            let fabric = MappedFabric::new(mapping(SMALL.region_bytes)).unwrap();
            let fabric = fabric.with_read_back(read_back);
            let superblock = Superblock::new([1, 2], SMALL, [0; 6]);
            format_superblock(&fabric, &superblock, |_, _| ()).unwrap();
            let memory = MappedHostMemory::new(mapping(HostTier::words_of(&SMALL) as u64 * 8));
            let (identity, me) = (HostIdentity::simulated(0), ProcessIdentity::current().unwrap());
            let clock = SystemClock::start();
            let member: Member<MappedBackend> =
                Member::join(fabric, memory, 0, &identity, me, ProcLiveness, &clock).unwrap();
            member.count_moved_lines();
            let before = member.moved_lines();
            assert!(before.written_back > 0 && before.dropped > 0, "it was formatted, and joined");

            let free = LineOffset::new(SMALL.region_bytes - 4096).unwrap();
            let lines = move |count| LineRange::new(free, count).unwrap();
            let fabric = member.fabric().clone();
            fabric.publish(lines(5));
            fabric.refresh(lines(3));
            std::thread::spawn(move || fabric.refresh(lines(7))).join().unwrap();
            assert_eq!(member.moved_lines(), before, "not before the call ends");
            for _ in 0..2 {
                member.count_moved_lines();
                let moved = MovedLines {
                    written_back: before.written_back + 5,
                    // What another thread moved, that one adds.
                    dropped: before.dropped + 3,
                    read_back: before.read_back + if read_back == ReadBack::Needed { 5 } else { 0 },
                };
                assert_eq!(member.moved_lines(), moved);
            }
            assert!(member.beat());
            assert!(member.moved_lines().written_back > before.written_back + 5, "it beats");
        }
    }
}

//! Both engines move the same bytes; buffers come back; a drive that fails says so.

use std::io;
use std::ptr::NonNull;

use crossbeam_channel::bounded;

use super::faulty::{Call, Fault, Faults, FaultyDrive};
use super::recorded::RecordedDrive;
use super::*;

const PAGE: usize = PAGE_BYTES as usize;

fn transfer(file: FileId, direction: Direction, offset: u64, buffer: Buffer) -> Transfer {
    let bytes = buffer.capacity();
    Transfer { file, offset, buffer, buffer_offset: 0, bytes, direction }
}

/// Waits for the end.
fn carry_out(drive: &dyn Drive, transfer: Transfer) -> (Buffer, io::Result<()>) {
    let (tell, told) = bounded(1);
    let done = move |it: Finished| tell.send((it.buffer, it.outcome)).expect("the test waits");
    drive.submit(transfer, Box::new(done)).expect("the queue has room");
    told.recv().expect("the transfer ends")
}

fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| u8::try_from((at * 31 + seed * 7) % 251).unwrap()).collect()
}

fn drives(folder: &std::path::Path) -> Vec<Box<dyn Drive>> {
    let open = |name: &str, engine| {
        std::fs::create_dir(folder.join(name)).unwrap();
        FolderDrive::open(&folder.join(name), engine).unwrap()
    };
    vec![
        Box::new(open("uring", EngineKind::Uring)),
        Box::new(open("posix", EngineKind::Posix)),
        Box::new(RecordedDrive::default()),
    ]
}

#[test]
fn payload_comes_back_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    for drive in drives(folder.path()) {
        let file = drive.create("a", Content::Payload, 64 * PAGE as u64).unwrap();
        for at in 0..8 {
            let buffer = Buffer::of(&pattern(at, 3 * PAGE)).unwrap();
            let offset = (at * 4 * PAGE) as u64;
            let (_, outcome) = carry_out(&*drive, transfer(file, Direction::Write, offset, buffer));
            outcome.unwrap_or_else(|error| panic!("{}: {error}", drive.engine()));
        }
        drive.sync(file).unwrap();
        drive.close(file);
        let file = drive.open("a", Content::Payload).unwrap();
        // More than the kernel takes at once.
        let (tell, told) = bounded(400);
        for at in 0..400_usize {
            let tell = tell.clone();
            let buffer = Buffer::zeroed(3 * PAGE).unwrap();
            let wanted = transfer(file, Direction::Read, (at % 8 * 4 * PAGE) as u64, buffer);
            let done = move |it: Finished| tell.send((at, it)).unwrap();
            drive.submit(wanted, Box::new(done)).expect("the queue has room");
        }
        for _ in 0..400 {
            let (at, finished) = told.recv().unwrap();
            finished.outcome.unwrap();
            assert_eq!(finished.buffer.bytes().unwrap(), pattern(at % 8, 3 * PAGE));
        }
        assert_eq!(drive.length(file).unwrap(), 64 * PAGE as u64);
        // Metadata of the file system may be counted too.
        assert!(drive.allocated(file).unwrap() >= 64 * PAGE as u64);
        drive.punch(file, 0, 32 * PAGE as u64).unwrap();
        assert!(drive.allocated(file).unwrap() < 64 * PAGE as u64);
        assert_eq!(drive.length(file).unwrap(), 64 * PAGE as u64);
    }
}

#[test]
fn a_transfer_that_is_not_aligned_is_refused_on_every_file_system() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    for drive in drives(folder.path()) {
        let file = drive.create("a", Content::Payload, 4 * PAGE as u64).unwrap();
        let whole = |direction| transfer(file, direction, 0, Buffer::zeroed(PAGE).unwrap());
        let wrong = [
            Transfer { offset: 512, ..whole(Direction::Write) },
            Transfer { bytes: 512, ..whole(Direction::Write) },
            Transfer { buffer_offset: PAGE, ..whole(Direction::Read) },
            Transfer { buffer_offset: usize::MAX, ..whole(Direction::Read) },
        ];
        for wrong in wrong {
            let (_, outcome) = carry_out(&*drive, wrong);
            assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}

#[test]
fn reads_beyond_the_end_and_of_closed_files_fail() {
    let folder = tempfile::tempdir().unwrap();
    for drive in drives(folder.path()) {
        let file = drive.create("a", Content::Payload, PAGE as u64).unwrap();
        let far = |file| transfer(file, Direction::Read, 0, Buffer::zeroed(2 * PAGE).unwrap());
        let (_, outcome) = carry_out(&*drive, far(file));
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "{}", drive.engine());
        let mut bytes = [0; 8];
        assert!(drive.read(file, PAGE as u64 - 4, &mut bytes).is_err());
        drive.close(file);
        assert!(carry_out(&*drive, far(file)).1.is_err());
        assert!(drive.sync(file).is_err());
    }
}

#[test]
fn names_change_as_asked() {
    let folder = tempfile::tempdir().unwrap();
    for drive in drives(folder.path()) {
        let file = drive.create("new", Content::Records, 0).unwrap();
        drive.write(file, 3, b"bytes").unwrap();
        drive.rename("new", "old").unwrap();
        drive.sync_folder().unwrap();
        let names = drive.names().unwrap();
        assert!(names.contains(&"old".to_owned()) && !names.contains(&"new".to_owned()));
        let mut bytes = [1; 8];
        let again = drive.open("old", Content::Records).unwrap();
        drive.read(again, 0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0\0\0bytes");
        drive.remove("old").unwrap();
        assert!(drive.open("old", Content::Records).is_err());
        assert!(drive.room().unwrap() > 0);
    }
}

#[test]
fn a_folder_has_one_owner() {
    let folder = tempfile::tempdir().unwrap();
    let first = FolderDrive::open(folder.path(), EngineKind::Posix).unwrap();
    let refused = FolderDrive::open(folder.path(), EngineKind::Posix).unwrap_err();
    assert!(matches!(refused, OpenFolderError::Owned { .. }), "{refused}");
    drop(first);
    FolderDrive::open(folder.path(), EngineKind::Posix).unwrap();
    let missing = FolderDrive::open(&folder.path().join("none"), EngineKind::Posix).unwrap_err();
    assert!(missing.to_string().contains("check that the folder exists"), "{missing}");
}

#[test]
fn lent_memory_is_moved_without_a_copy() {
    let folder = tempfile::tempdir().unwrap();
    for engine in [EngineKind::Uring, EngineKind::Posix] {
        let path = folder.path().join(engine.to_string());
        std::fs::create_dir(&path).unwrap();
        let drive = FolderDrive::open(&path, engine).unwrap();
        let file = drive.create("a", Content::Payload, 0).unwrap();
        let mut mapping = memmap2::MmapMut::map_anon(4 * PAGE).unwrap();
        mapping[PAGE..3 * PAGE].copy_from_slice(&pattern(1, 2 * PAGE));
        let start = NonNull::new(mapping.as_mut_ptr()).unwrap();
        super::buffer::lend(start, 4 * PAGE, true, |source| {
            assert!(source.bytes().is_none());
            let out = transfer(file, Direction::Write, 0, source);
            carry_out(&drive, Transfer { buffer_offset: PAGE, bytes: 2 * PAGE, ..out }).1.unwrap();
        });
        super::buffer::lend(start, 4 * PAGE, true, |source| {
            let (_, outcome) = carry_out(&drive, transfer(file, Direction::Read, 0, source));
            assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        });
        mapping.fill(0);
        super::buffer::lend(start, 4 * PAGE, false, |memory| {
            let part = Transfer { bytes: 2 * PAGE, ..transfer(file, Direction::Read, 0, memory) };
            carry_out(&drive, part).1.unwrap();
        });
        assert_eq!(mapping[..2 * PAGE], pattern(1, 2 * PAGE));
    }
}

#[test]
fn a_crash_keeps_what_was_synced_and_any_subset_of_the_rest() {
    let drive = RecordedDrive::default();
    let file = drive.create("a", Content::Records, 0).unwrap();
    drive.write(file, 0, &pattern(1, PAGE)).unwrap();
    drive.sync(file).unwrap();
    assert!(RecordedDrive::after(&drive.crash(|_| false)).names().unwrap().is_empty());
    drive.sync_folder().unwrap();
    assert_eq!(drive.pending(), 0);
    drive.write(file, 0, &pattern(2, 2 * PAGE)).unwrap();
    drive.rename("a", "b").unwrap();
    // A length, two pages, a name.
    assert_eq!(drive.pending(), 4);
    let after = RecordedDrive::after(&drive.crash(|at| at == 0 || at == 2));
    let file = after.open("a", Content::Records).unwrap();
    let mut bytes = vec![0; 2 * PAGE];
    after.read(file, 0, &mut bytes).unwrap();
    assert_eq!(bytes[..PAGE], pattern(1, PAGE));
    assert_eq!(bytes[PAGE..], pattern(2, 2 * PAGE)[PAGE..]);
    assert_eq!(RecordedDrive::after(&drive.crash(|_| true)).names().unwrap(), ["b"]);
    drive.stop_after(1);
    drive.sync_folder().unwrap();
    assert!(drive.sync_folder().is_err());
}

#[test]
fn planned_faults_happen_once_and_where_they_are_planned() {
    let faults = Faults::default();
    let drive = FaultyDrive::new(RecordedDrive::default(), faults.clone());
    let file = drive.create("a", Content::Payload, 8 * PAGE as u64).unwrap();
    let write = || transfer(file, Direction::Write, 0, Buffer::of(&pattern(1, 2 * PAGE)).unwrap());
    let read = || transfer(file, Direction::Read, 0, Buffer::zeroed(2 * PAGE).unwrap());
    faults.plan(Some(Call::WritePayload), 1, 1, Fault::Half(libc::EIO));
    carry_out(&drive, write()).1.unwrap();
    assert!(carry_out(&drive, write()).1.is_err());
    carry_out(&drive, write()).1.unwrap();
    faults.plan(Some(Call::ReadPayload), 0, 1, Fault::FlippedBit);
    assert_ne!(carry_out(&drive, read()).0.bytes().unwrap(), pattern(1, 2 * PAGE));
    assert_eq!(carry_out(&drive, read()).0.bytes().unwrap(), pattern(1, 2 * PAGE));
    faults.plan(Some(Call::ReadPayload), 0, 1, Fault::Delay);
    let (tell, told) = bounded(1);
    drive.submit(read(), Box::new(move |it| tell.send(it.outcome).unwrap())).unwrap();
    assert!(told.try_recv().is_err());
    assert_eq!(faults.release(), 1);
    told.recv().unwrap().unwrap();
    faults.vanish();
    assert_eq!(drive.sync(file).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    assert!(
        drive.names().is_err()
            && drive.room().is_err()
            && drive.open("a", Content::Records).is_err()
    );
    faults.clear();
    faults.plan(Some(Call::Write), 0, 1, Fault::Lost);
    drive.write(file, 0, b"x").unwrap();
    assert_eq!(carry_out(&drive, read()).0.bytes().unwrap(), pattern(1, 2 * PAGE));
    assert!(faults.calls() > 10);
}

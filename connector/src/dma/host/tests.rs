use std::fs::File;

use crc_fast::CrcAlgorithm;
use cxl_shm::fabric::Mapping;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

const REGION: usize = 2 * 1024 * 1024;
const REGION_BYTES: u64 = REGION as u64;
/// What the region and the buffers hold before a test.
const BEFORE: u8 = 0xa5;

fn region() -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(REGION_BYTES).unwrap();
    let dma = engine(&file, Arrival::Fence);
    let old = vec![BEFORE; REGION];
    let all = StoreJob { payload: Extent::new(0, REGION_BYTES).unwrap(), parts: &[&old[..]] };
    assert!(dma.store(&[all])[0].is_ok());
    file
}

fn engine(file: &File, arrival: Arrival) -> HostDma {
    let mapping = Mapping::shared(file, REGION_BYTES).unwrap();
    HostDma::with_arrival(MappedFabric::new(mapping).unwrap(), arrival)
}

fn contents(file: &File) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; REGION];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Bytes of which no two neighbouring lines are alike.
fn pattern(bytes: usize) -> Vec<u8> {
    let word = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (1..).flat_map(word).take(bytes).collect()
}

/// `bytes` bytes cut at the places chosen.
fn cut(bytes: usize, cuts: &[Index]) -> Vec<usize> {
    let mut ends: Vec<_> = cuts.iter().map(|cut| cut.index(bytes + 1)).collect();
    ends.push(bytes);
    ends.sort_unstable();
    let starts = std::iter::once(0).chain(ends.clone());
    ends.iter().zip(starts).map(|(end, start)| end - start).collect()
}

/// Loads `payload` into buffers of the given lengths, each `skew` bytes off a line, with guard
/// bytes on both sides. Returns what came, and the checksum.
fn load(dma: &HostDma, payload: Extent, lengths: &[usize], skew: usize) -> (Vec<u8>, Checksum) {
    let mut buffers: Vec<Vec<u8>> = lengths.iter().map(|n| vec![BEFORE; n + 192]).collect();
    let starts: Vec<usize> =
        buffers.iter().map(|buffer| buffer.as_ptr().align_offset(64) + skew).collect();
    let ranges = || starts.iter().zip(lengths).map(|(start, n)| *start..start + n);
    let parts = buffers.iter_mut().zip(ranges()).map(|(buffer, range)| &mut buffer[range]);
    let result = dma.load(&mut [LoadJob { payload, parts: parts.collect() }]).remove(0);
    let mut found = Vec::new();
    for (buffer, range) in buffers.iter().zip(ranges()) {
        let guards = buffer[..range.start].iter().chain(&buffer[range.end..]);
        assert!(guards.copied().all(|byte| byte == BEFORE), "a byte beside a part changed");
        found.extend_from_slice(&buffer[range]);
    }
    (found, result.unwrap())
}

fn payload_bytes() -> impl Strategy<Value = usize> {
    // Around lines, blocks and windows of the refresh.
    prop_oneof![0..300usize, 1900..2300usize, 8100..8300usize, 262_000..600_000usize]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_split_and_alignment_comes_back(
        bytes in payload_bytes(),
        line in 0..100usize,
        gathered in prop::collection::vec(any::<Index>(), 0..12),
        scattered in prop::collection::vec(any::<Index>(), 0..12),
        source_skew in 0..64usize,
        target_skew in 0..64usize,
        read_back in any::<bool>(),
    ) {
        let file = region();
        let arrival = if read_back { Arrival::ReadBack } else { Arrival::Fence };
        let dma = engine(&file, arrival);
        let payload = Extent::new(line as u64 * 64, bytes as u64).unwrap();
        let skewed = pattern(source_skew + bytes);
        let source = &skewed[source_skew..];

        let mut rest = source;
        let mut parts = Vec::new();
        for length in cut(bytes, &gathered) {
            let (part, later) = rest.split_at(length);
            parts.push(part);
            rest = later;
        }
        let stored = dma.store(&[StoreJob { payload, parts: &parts }]).remove(0).unwrap();
        let expected = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, source);
        prop_assert_eq!(u64::from(stored.0), expected);

        // The payload's lines and no others changed.
        let all = contents(&file);
        let (start, end) = (line * 64, line * 64 + bytes);
        prop_assert!(all[start..end] == *source);
        prop_assert!(all[..start].iter().all(|byte| *byte == BEFORE));
        prop_assert!(all[end..end.next_multiple_of(64)].iter().all(|byte| *byte == 0));
        prop_assert!(all[end.next_multiple_of(64)..].iter().all(|byte| *byte == BEFORE));

        let (found, loaded) = load(&dma, payload, &cut(bytes, &scattered), target_skew);
        prop_assert!(found == source);
        prop_assert_eq!(loaded, stored);
    }
}

#[test]
fn another_mapping_sees_the_bytes() {
    let file = region();
    let (writer, reader) = (engine(&file, Arrival::Fence), engine(&file, Arrival::ReadBack));
    let slots: Vec<_> =
        (0..5).map(|i| Extent::new(i * 400_000 / 64 * 64, 300_000).unwrap()).collect();
    for generation in 1..4 {
        let sources: Vec<_> = (0..5).map(|i| pattern(300_000 + i * generation)).collect();
        let parts: Vec<_> = sources.iter().map(|bytes| [&bytes[bytes.len() - 300_000..]]).collect();
        let jobs: Vec<_> = slots
            .iter()
            .zip(&parts)
            .map(|(payload, parts)| StoreJob { payload: *payload, parts })
            .collect();
        let stored = writer.store(&jobs);
        let mut found = vec![vec![0; 300_000]; 5];
        let mut jobs: Vec<_> = slots
            .iter()
            .zip(&mut found)
            .map(|(payload, bytes)| LoadJob { payload: *payload, parts: vec![&mut bytes[..]] })
            .collect();
        assert_eq!(reader.load(&mut jobs), stored);
        assert!(found.iter().zip(&parts).all(|(found, part)| found == part[0]));
    }
}

#[test]
fn refused_stores_write_nothing_and_stop_nobody() {
    let file = region();
    let dma = engine(&file, Arrival::ReadBack);
    let source = pattern(128);
    let job =
        |offset, bytes, parts| StoreJob { payload: Extent::new(offset, bytes).unwrap(), parts };
    let parts: [&[u8]; 1] = [&source];
    let results = dma.store(&[
        job(REGION_BYTES, 128, &parts),
        job(REGION_BYTES - 64, 128, &parts),
        job(4096, 127, &parts),
        job(4096, 129, &parts),
        job(4100, 128, &parts),
        job(8192, 128, &parts),
    ]);
    assert!(matches!(results[0], Err(DmaError::OutOfRange { .. })));
    assert!(matches!(results[1], Err(DmaError::OutOfRange { region_bytes: REGION_BYTES, .. })));
    assert!(matches!(results[2], Err(DmaError::LengthMismatch { parts_bytes: 128, .. })));
    assert!(matches!(results[3], Err(DmaError::LengthMismatch { payload_bytes: 129, .. })));
    assert!(matches!(results[4], Err(DmaError::Misaligned { .. })));
    assert_eq!(results[5], Ok(Checksum::of(&parts)));
    let all = contents(&file);
    assert_eq!(all[8192..8320], source);
    let untouched = all[..8192].iter().chain(&all[8320..]);
    assert!(untouched.copied().all(|byte| byte == BEFORE));
}

#[test]
fn refused_loads_change_no_part() {
    let file = region();
    let dma = engine(&file, Arrival::ReadBack);
    let mut buffers = [[1; 64], [2; 64], [3; 64]];
    let [a, b, c] = &mut buffers;
    let at = |offset| Extent::new(offset, 64).unwrap();
    let results = dma.load(&mut [
        LoadJob { payload: at(REGION_BYTES), parts: vec![a] },
        LoadJob { payload: at(0), parts: vec![&mut b[..63]] },
        LoadJob { payload: at(64), parts: vec![c] },
    ]);
    assert!(matches!(results[0], Err(DmaError::OutOfRange { .. })));
    assert!(matches!(results[1], Err(DmaError::LengthMismatch { parts_bytes: 63, .. })));
    assert_eq!(results[2], Ok(Checksum::of(&[&[BEFORE; 64]])));
    assert_eq!(buffers, [[1; 64], [2; 64], [BEFORE; 64]]);
}

use std::fs::File;

use crc_fast::CrcAlgorithm;
use cxl_shm::fabric::Mapping;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::dma::CopyLayer;

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

/// A source whose layers are all ready but those from `ready` on.
struct Ready<'a> {
    /// For each payload, the parts of each layer.
    payloads: &'a [Vec<Vec<&'a [u8]>>],
    ready: usize,
}

impl LayeredSource<HostDma> for Ready<'_> {
    fn layer(&mut self, layer: usize, copy: &mut CopyLayer<'_, HostDma>) -> bool {
        if layer < self.ready {
            let parts: Vec<_> = self.payloads.iter().map(|layers| layers[layer].clone()).collect();
            copy(&parts);
        }
        layer < self.ready
    }
}

/// `bytes` cut into parts of these lengths.
fn parts<'b>(bytes: &'b [u8], lengths: &[usize]) -> Vec<&'b [u8]> {
    let mut rest = bytes;
    let mut parts = Vec::new();
    for length in lengths {
        let (part, later) = rest.split_at(*length);
        parts.push(part);
        rest = later;
    }
    parts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn layers_come_back_and_are_read_one_after_the_other(
        bytes in payload_bytes(),
        layer_cuts in prop::collection::vec(any::<Index>(), 0..6),
        part_cuts in prop::collection::vec(any::<Index>(), 0..6),
        payloads in 1..4usize,
    ) {
        let file = region();
        let dma = engine(&file, Arrival::ReadBack);
        let lengths = cut(bytes, &layer_cuts);
        let layers = Layers::new(lengths.iter().map(|length| *length as u64));
        let at: Vec<_> = (0..payloads as u64)
            .map(|number| Extent::new(64 + number * 610_048, bytes as u64).unwrap())
            .collect();
        let sources: Vec<_> = (0..payloads).map(|n| pattern(n * 8 + bytes)).collect();
        let sources: Vec<_> = sources.iter().map(|source| &source[source.len() - bytes..]).collect();

        // Each layer in two parts.
        let in_layers: Vec<Vec<_>> = sources
            .iter()
            .map(|source| {
                let halves = |layer: &'_ [u8]| layer.len() / 3;
                let layers = parts(source, &lengths).into_iter();
                layers.map(|layer| {
                    let (a, b) = layer.split_at(halves(layer));
                    vec![a, b]
                }).collect()
            })
            .collect();
        let mut source = Ready { payloads: &in_layers, ready: usize::MAX };
        let stored = dma.store_by_layers(&at, &layers, &mut source).unwrap();
        let all = contents(&file);
        let mut end = 0;
        for ((at, source), stored) in at.iter().zip(&sources).zip(&stored) {
            prop_assert_eq!(stored, &Ok(Checksum::of(&[source])), "that of the whole payload");
            let start = usize::try_from(at.offset()).unwrap();
            prop_assert!(all[start..start + bytes] == **source);
            prop_assert!(all[end..start].iter().all(|byte| *byte == BEFORE));
            end = (start + bytes).next_multiple_of(64);
        }
        prop_assert!(all[end..].iter().all(|byte| *byte == BEFORE));

        // What is in the region changes as soon as a layer is said to have been read, and what was
        // read did not. Later layers are as they are then.
        let writer = engine(&file, Arrival::Fence);
        let mut found = vec![vec![0; bytes]; payloads];
        let mut told = Vec::new();
        let jobs: Vec<_> = at.iter().zip(&mut found).map(|(at, found)| {
            let mut rest = found.as_mut_slice();
            let mut parts = Vec::new();
            for length in cut(bytes, &part_cuts) {
                let (part, later) = rest.split_at_mut(length);
                parts.push(part);
                rest = later;
            }
            LoadJob { payload: *at, parts }
        }).collect();
        let loaded = dma.load_by_layers(jobs, &layers, &mut |layer| {
            let new = vec![u8::try_from(layer).unwrap(); bytes];
            // The last of the lines that were read, and all after it.
            let read_bytes = layers.read_with(at[0], layer).end() - at[0].offset();
            let from = read_bytes.saturating_sub(64) / 64 * 64;
            for at in &at {
                let payload = at.part(from, at.bytes() - from).unwrap();
                let parts = &[&new[..usize::try_from(payload.bytes()).unwrap()]];
                assert!(writer.store(&[StoreJob { payload, parts }])[0].is_ok());
            }
            told.push(layer);
        });
        prop_assert_eq!(told, (0..lengths.len()).collect::<Vec<_>>());
        for ((found, loaded), source) in found.iter().zip(&loaded).zip(&sources) {
            prop_assert_eq!(loaded, &Ok(Checksum::of(&[found])), "of what was loaded");
            for layer in 0..lengths.len() {
                let lines = layers.read_with(at[0], layer);
                let start = usize::try_from(lines.offset() - at[0].offset()).unwrap();
                let lines = start..start + usize::try_from(lines.bytes()).unwrap();
                match layer.checked_sub(1) {
                    None => prop_assert!(found[lines.clone()] == source[lines]),
                    Some(before) => {
                        let new = u8::try_from(before).unwrap();
                        prop_assert!(found[lines].iter().all(|byte| *byte == new), "layer {layer}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_store_by_layers_that_is_broken_off_says_so() {
    let file = region();
    let dma = engine(&file, Arrival::ReadBack);
    let (a, b) = (pattern(100), pattern(156));
    let payloads = [vec![vec![&a[..]], vec![&b[..]]]];
    let at = [Extent::new(4096, 256).unwrap()];
    let layers = Layers::new([100, 156]);
    for (ready, stored) in [(0, false), (1, false), (2, true)] {
        let mut source = Ready { payloads: &payloads, ready };
        assert_eq!(dma.store_by_layers(&at, &layers, &mut source).is_some(), stored);
    }
}

#[test]
fn layers_of_other_lengths_are_refused() {
    let file = region();
    let dma = engine(&file, Arrival::ReadBack);
    let at = |offset| Extent::new(offset, 128).unwrap();
    let bytes = pattern(128);
    let layers = Layers::new([64, 64]);
    let (whole, short) = (bytes.split_at(64), bytes.split_at(63));
    let payloads = [
        vec![vec![whole.0], vec![whole.1]],
        vec![vec![short.0], vec![short.1]],
        vec![vec![whole.0], vec![whole.1]],
    ];
    let mut source = Ready { payloads: &payloads, ready: 2 };
    let places = [at(64), at(256), at(REGION_BYTES)];
    let stored = dma.store_by_layers(&places, &layers, &mut source).unwrap();
    assert_eq!(stored[0], Ok(Checksum::of(&[&bytes])));
    assert!(matches!(stored[1], Err(DmaError::LengthMismatch { parts_bytes: 63, .. })));
    assert!(matches!(stored[2], Err(DmaError::OutOfRange { .. })));

    let mut buffers = [[1; 128], [2; 128]];
    let [a, b] = &mut buffers;
    let jobs = vec![
        LoadJob { payload: at(REGION_BYTES), parts: vec![&mut a[..]] },
        LoadJob { payload: at(64), parts: vec![&mut b[..]] },
    ];
    let loaded = dma.load_by_layers(jobs, &layers, &mut |_| ());
    assert!(matches!(loaded[0], Err(DmaError::OutOfRange { .. })));
    assert_eq!(loaded[1], Ok(Checksum::of(&[&bytes])));
    let jobs = vec![LoadJob { payload: at(64), parts: vec![&mut b[..]] }];
    let loaded = dma.load_by_layers(jobs, &Layers::new([128, 1]), &mut |_| ());
    assert!(matches!(loaded[0], Err(DmaError::LengthMismatch { parts_bytes: 129, .. })));
    assert_eq!(buffers[0], [1; 128]);
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

//! Encoded payloads come back as they were, and hostile ones are errors: never a panic, never memory
//! that a page asks for.

use kv_cache::BlockKey;
use proptest::prelude::*;

use super::frame::{DecodeError, FRAME_BYTES, seal};
use super::*;
use crate::format::{Encoding, pages_of};
use crate::io::{Buffer, PAGE_BYTES};
use crate::volume::checksum;

fn key(number: u64) -> BlockKey {
    bytemuck::cast([number, 3, 5])
}

/// Random bytes.
fn noise(bytes: usize) -> Vec<u8> {
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()
    };
    (0..bytes.div_ceil(8)).flat_map(|_| next()).take(bytes).collect()
}

/// Elements of 2 bytes whose high bytes have few values, as those of bfloat16 have.
fn floats(bytes: usize) -> Vec<u8> {
    let mut values = noise(bytes);
    values.iter_mut().skip(1).step_by(2).for_each(|high| *high = 0x3c + (*high & 3));
    values
}

fn encoder(choice: EncodingChoice, least_saving_percent: u8) -> Encoder {
    Encoder::new(EncodingOptions { choice, least_saving_percent })
}

/// Encodes a payload; the bytes are those that are to be written.
fn encode(encoder: &mut Encoder, payload: &[u8]) -> (Encoding, Vec<u8>) {
    let mut into = Buffer::of(&vec![0xee; payload.len().next_multiple_of(4096)]).unwrap();
    let plain = Plain { key: key(1), payload, crc: checksum(payload) };
    let encoded = encoder.encode(&plain, false, &mut into);
    let bytes = encoded.stored_bytes as usize;
    let pages = &into.bytes().unwrap()[..bytes.next_multiple_of(4096).min(into.capacity())];
    if encoded.encoding == Encoding::Raw {
        return (Encoding::Raw, payload.to_vec());
    }
    assert!(pages[bytes..].iter().all(|byte| *byte == 0), "zeros behind it");
    (encoded.encoding, pages.to_vec())
}

fn expected(encoding: Encoding, payload: &[u8]) -> Expected {
    let bytes = u32::try_from(payload.len()).unwrap();
    Expected { key: key(1), encoding, bytes, crc: checksum(payload) }
}

fn decoded(encoding: Encoding, stored: &[u8], payload: &[u8]) -> Result<(), DecodeError> {
    let mut bytes = vec![0x55; payload.len()];
    decode(stored, &expected(encoding, payload), &mut bytes)?;
    assert_eq!(bytes, payload);
    Ok(())
}

#[test]
fn payloads_come_back_as_they_were() {
    for bytes in [8193, 61_440, 61_441, 122_880, 122_881, 300_001, 1 << 20] {
        for payload in [vec![7; bytes], floats(bytes)] {
            for choice in [EncodingChoice::Lz4, EncodingChoice::Lz4Planes, EncodingChoice::Auto] {
                let (encoding, stored) = encode(&mut encoder(choice, 10), &payload);
                if encoding != Encoding::Raw {
                    assert!(stored.len() < payload.len(), "{choice}");
                    decoded(encoding, &stored, &payload).unwrap();
                }
                let pays = payload[1] == 7 || choice != EncodingChoice::Lz4;
                assert_eq!(encoding != Encoding::Raw, pays, "{choice}, {bytes} bytes");
            }
        }
    }
}

#[test]
fn a_block_that_saves_too_little_is_written_raw() {
    // Nothing is saved of noise, and 15 of 64 pages of this.
    let quarter: Vec<u8> = [noise(48 * 4096), vec![1; 16 * 4096]].concat();
    for (percent, pays) in [(0, true), (20, true), (23, true), (24, false), (90, false)] {
        let (encoding, _) = encode(&mut encoder(EncodingChoice::Auto, percent), &quarter);
        assert_eq!(encoding != Encoding::Raw, pays, "{percent} %");
    }
    for choice in [EncodingChoice::Lz4, EncodingChoice::Lz4Planes, EncodingChoice::Auto] {
        assert_eq!(encode(&mut encoder(choice, 0), &noise(1 << 18)).0, Encoding::Raw);
        assert_eq!(encode(&mut encoder(choice, 0), &[0; 4096]).0, Encoding::Raw, "one page");
    }
    let mut raw = encoder(EncodingChoice::Raw, 0);
    assert_eq!(encode(&mut raw, &[0; 1 << 16]).0, Encoding::Raw);
    assert_eq!(raw.figures().cpu_ns, 0);
}

#[test]
fn figures_add_up_and_hurried_blocks_are_raw() {
    let mut encoder = encoder(EncodingChoice::Auto, 10);
    let mut into = Buffer::zeroed(1 << 17).unwrap();
    for (payload, hurries) in [
        (floats(1 << 17), false),
        (floats(1 << 17), true),
        (noise(1 << 17), false),
        (vec![1; 100_000], false),
    ] {
        let plain = Plain { key: key(1), payload: &payload, crc: checksum(&payload) };
        encoder.encode(&plain, hurries, &mut into);
    }
    let EncoderFigures { raw_blocks, hurried_blocks, lz4_blocks, lz4_planes_blocks, .. } =
        encoder.figures();
    assert_eq!((raw_blocks, hurried_blocks, lz4_blocks + lz4_planes_blocks), (2, 1, 2));
    let EncoderFigures { bytes_before, bytes_after, cpu_ns, .. } = encoder.figures();
    assert_eq!(bytes_before, (3 << 17) + 25 * 4096);
    assert!(bytes_after < bytes_before - (100_000 - 4096) && bytes_after > 2 << 17);
    assert!(cpu_ns > 0);
}

#[test]
fn payloads_that_do_not_pay_are_tried_seldom() {
    let mut auto = encoder(EncodingChoice::Auto, 10);
    let (dull, good) = (noise(1 << 17), floats(1 << 17));
    for _ in 0..8 {
        assert_eq!(encode(&mut auto, &dull).0, Encoding::Raw);
    }
    let raw = (0..40).take_while(|_| encode(&mut auto, &good).0 == Encoding::Raw).count();
    assert!((1..=16).contains(&raw), "{raw}");
    assert_ne!(encode(&mut auto, &good).0, Encoding::Raw, "they pay again");
}

#[test]
fn each_flipped_bit_is_seen_before_anything_is_decoded() {
    let payload = floats(70_000);
    let (encoding, mut stored) = encode(&mut encoder(EncodingChoice::Lz4Planes, 0), &payload);
    let length = u32::from_le_bytes(*stored[8..].first_chunk().unwrap()) as usize;
    for bit in (0..FRAME_BYTES * 8).chain((FRAME_BYTES * 8..length * 8).step_by(997)) {
        stored[bit / 8] ^= 1 << (bit % 8);
        assert!(check(&stored, &expected(encoding, &payload)).is_err(), "bit {bit}");
        stored[bit / 8] ^= 1 << (bit % 8);
    }
    decoded(encoding, &stored, &payload).unwrap();
    for torn in [0, FRAME_BYTES - 1, FRAME_BYTES, 4096, stored.len() - 4096] {
        let found = decoded(encoding, &stored[..torn], &payload);
        assert_eq!(found, Err(DecodeError::Seal), "{torn} bytes");
    }
}

#[test]
fn encoded_bytes_of_another_block_are_not_decoded() {
    let payload = floats(70_000);
    let (encoding, stored) = encode(&mut encoder(EncodingChoice::Lz4Planes, 0), &payload);
    let right = expected(encoding, &payload);
    for other in [
        Expected { key: key(2), ..right },
        Expected { crc: right.crc ^ 1, ..right },
        Expected { bytes: right.bytes - 2, ..right },
        Expected { encoding: Encoding::Lz4, ..right },
    ] {
        let mut bytes = vec![0; other.bytes as usize];
        assert_eq!(decode(&stored, &other, &mut bytes), Err(DecodeError::Foreign), "{other:?}");
    }
    let unknown = Expected { encoding: Encoding::Unknown(9), ..right };
    assert_eq!(decode(&stored, &unknown, &mut [0; 9]), Err(DecodeError::Unknown(9)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Chunks that an attacker has sealed.
    #[test]
    fn hostile_chunks_are_errors(
        bytes in 1_usize..200_000,
        chunks in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..300),
            prop::collection::vec(prop_oneof![Just(0_u8), Just(0xff), Just(0x80), Just(0x0f)], 0..99),
        ],
        planes: bool,
    ) {
        let payload = vec![0; bytes];
        let encoding = if planes { Encoding::Lz4Planes } else { Encoding::Lz4 };
        let mut stored = [vec![0; FRAME_BYTES], chunks].concat();
        seal(&mut stored, &expected(encoding, &payload));
        let mut into = payload.clone();
        let outcome = decode(&stored, &expected(encoding, &payload), &mut into);
        prop_assert!(matches!(outcome, Ok(()) | Err(DecodeError::Chunks(_))), "{outcome:?}");
    }

    /// Right chunks in which some bytes are others, sealed again: LZ4 itself is attacked.
    #[test]
    fn changed_chunks_are_errors_or_other_bytes(
        bytes in 20_000_usize..140_000,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        planes: bool,
    ) {
        let choice = if planes { EncodingChoice::Lz4Planes } else { EncodingChoice::Lz4 };
        let payload: Vec<u8> = floats(bytes / 2).into_iter().chain(vec![9; bytes / 2]).collect();
        let (encoding, mut stored) = encode(&mut encoder(choice, 0), &payload);
        let length = u32::from_le_bytes(*stored[8..].first_chunk().unwrap()) as usize;
        stored.truncate(length);
        for (at, byte) in changes {
            stored[FRAME_BYTES + at.index(length - FRAME_BYTES)] = byte;
        }
        seal(&mut stored, &expected(encoding, &payload));
        let mut into = vec![0; payload.len()];
        let outcome = decode(&stored, &expected(encoding, &payload), &mut into);
        prop_assert!(matches!(outcome, Ok(()) | Err(DecodeError::Chunks(_))), "{outcome:?}");
    }

    #[test]
    fn any_payload_comes_back(
        parts in prop::collection::vec((0_usize..70_000, any::<u8>(), any::<bool>()), 1..5),
        planes: bool,
    ) {
        let part = |(bytes, value, is_noise): &(usize, u8, bool)| {
            if *is_noise { noise(*bytes) } else { vec![*value; *bytes] }
        };
        let payload: Vec<u8> = parts.iter().flat_map(part).collect();
        prop_assume!(!payload.is_empty());
        let choice = if planes { EncodingChoice::Lz4Planes } else { EncodingChoice::Lz4 };
        let (encoding, stored) = encode(&mut encoder(choice, 0), &payload);
        if encoding != Encoding::Raw {
            let bytes = u32::try_from(stored.len()).unwrap();
            prop_assert!(bytes / PAGE_BYTES < pages_of(u32::try_from(payload.len()).unwrap()));
            decoded(encoding, &stored, &payload).unwrap();
        }
    }
}

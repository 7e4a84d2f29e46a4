//! Bytes that tell where they belong.

/// Bytes that look random, other ones for each `seed`.
pub(crate) fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        // SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    };
    let mut content: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| next()).collect();
    content.truncate(bytes);
    content
}

/// Where two runs of bytes differ first.
pub(crate) fn difference(found: &[u8], expected: &[u8]) -> Option<String> {
    if found.len() != expected.len() {
        return Some(format!("{} bytes instead of {}", found.len(), expected.len()));
    }
    let at = found.iter().zip(expected).position(|(found, expected)| found != expected)?;
    Some(format!("byte {at} of {} is {:#x}, not {:#x}", found.len(), found[at], expected[at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_differ_by_seed_and_have_their_length() {
        assert_eq!(content(1, 13), content(1, 16)[..13]);
        assert_ne!(content(1, 13), content(2, 13));
    }

    #[test]
    fn a_difference_is_found_where_it_is() {
        assert_eq!(difference(&[1, 2], &[1, 2]), None);
        assert_eq!(difference(&[1, 3], &[1, 2]).unwrap(), "byte 1 of 2 is 0x3, not 0x2");
        assert_eq!(difference(&[1], &[1, 2]).unwrap(), "1 bytes instead of 2");
    }
}

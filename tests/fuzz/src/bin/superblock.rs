//! Fuzzes `rackline_tests::hostile::damaged_superblock`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rackline_tests::hostile::damaged_superblock(input));

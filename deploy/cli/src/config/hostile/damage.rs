//! Damage in a file with settings.

use cxl_shm::verify::simulated::Random;

/// What stands where a value should.
const VALUES: &[&str] = &[
    "",
    "-1",
    "0",
    "1",
    "99",
    "100",
    "101",
    "256",
    "257",
    "65535",
    "65536",
    "65537",
    "1499",
    "1500",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "18446744073709551616",
    "1e400",
    "1.5",
    "-0.0",
    "nan",
    "+inf",
    "-inf",
    "0x7fffffffffffffff",
    "0o17",
    "0b1",
    "1_000",
    "_1",
    "true",
    "false",
    "\"\"",
    "\"text\"",
    "\"--check\"",
    "\"-1\"",
    "\"\\u0000\"",
    "\"/mnt/a\\u0000b\"",
    "\"/mnt/a\\nb\"",
    "\"\\ud800\"",
    "'''\nmany\nlines'''",
    "\"\"\"",
    "[]",
    "[[[]]]",
    "[1, \"a\"]",
    "{}",
    "{ a = 1 }",
    "{ a = { a = { a = {} } } }",
    "1979-05-27",
    "00:00:00",
    "[\"/mnt/a\", \"/mnt/a\"]",
    "[\"/mnt/a\", \"/mnt/a/.\"]",
    "[\"\"]",
    "[\":1GiB\"]",
    "[\"/mnt/a:1\"]",
    "[\"/mnt/a:\"]",
    "[\"/mnt/a:99999999999EiB\"]",
    "\"-3GiB\"",
    "\"1e3GiB\"",
    "\"3 tib\"",
    "\"1.9\"",
    "\"nanGiB\"",
    "\"\u{663}GiB\"",
];

/// Lines that no settings have.
const LINES: &[&str] = &[
    "unknown = 1",
    "\"\" = 1",
    "'' = 1",
    "= 1",
    "node",
    "node = 1",
    "region = 'x'",
    "[agent]",
    "[[agent]]",
    "[agent.drive]",
    "[lock_manager]",
    "[nodes]",
    "[nodes]\na = 1\nb = 1",
    "nodes = { a = 70000 }",
    "nodes = { a = -1 }",
    "[[[",
    "]",
    "[",
    "agent = 1",
    "agent.depth = 3",
    "agent = { depth = 3 }",
    "lock_manager = []",
    "\u{feff}",
    "# \u{0}",
];

/// `text`, damaged in up to three places.
pub(super) fn damaged(random: &mut Random, text: &str) -> Vec<u8> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for _ in 0..random.below(3) {
        damage_line(random, &mut lines);
    }
    let end = if random.one_in(20) { "\r\n" } else { "\n" };
    let mut bytes = lines.join(end).into_bytes();
    if random.one_in(3) {
        damage_bytes(random, &mut bytes);
    }
    bytes
}

fn one_of<'a>(random: &mut Random, from: &[&'a str]) -> &'a str {
    random.index(from.len()).map_or("", |at| from[at])
}

/// A value, sometimes a long or a deep one.
fn value(random: &mut Random) -> String {
    let length = 1 << random.below(17);
    match random.below(20) {
        0 => format!("\"{}\"", "x".repeat(length)),
        1 => format!("{}{}", "[".repeat(length), "]".repeat(length)),
        2 => "{ a = ".repeat(length),
        3 => "9".repeat(length),
        4 => format!("\"{}\"", random.magnitude(u64::MAX)),
        5 => random.magnitude(u64::MAX).to_string(),
        _ => one_of(random, VALUES).to_owned(),
    }
}

fn damage_line(random: &mut Random, lines: &mut Vec<String>) {
    let Some(at) = random.index(lines.len()) else { return };
    let (key, old) = match lines[at].split_once(" = ") {
        Some((key, old)) => (key.to_owned(), old.to_owned()),
        None => (lines[at].clone(), String::new()),
    };
    match random.below(12) {
        // The value of another key.
        0 => {
            let other = random.index(lines.len()).unwrap_or(0);
            let value = lines[other].split_once(" = ").map_or("", |(_, value)| value);
            lines[at] = format!("{key} = {value}");
        }
        1 => lines[at] = format!("{} = {old}", misspelt(random, &key)),
        2 => lines.insert(at, lines[at].clone()),
        3 => drop(lines.remove(at)),
        // Into another section.
        4 => {
            let other = random.index(lines.len()).unwrap_or(0);
            lines.swap(at, other);
        }
        5 => lines.insert(at, one_of(random, LINES).to_owned()),
        _ => lines[at] = format!("{key} = {}", value(random)),
    }
}

fn misspelt(random: &mut Random, key: &str) -> String {
    match random.below(8) {
        0 => key.replace('_', "-"),
        1 => key.to_uppercase(),
        2 => format!("\"{key}\""),
        3 => format!("agent.{key}"),
        4 => format!("{key}.{key}"),
        5 => "k".repeat(1 << random.below(17)),
        6 => key.chars().rev().collect(),
        _ => format!("{key}s"),
    }
}

fn damage_bytes(random: &mut Random, bytes: &mut Vec<u8>) {
    let at = random.index(bytes.len()).unwrap_or(0);
    let byte = random.next_u64().to_le_bytes()[0];
    match random.below(5) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, byte),
        2 => drop(bytes.drain(at..(at + 8).min(bytes.len()))),
        3 => {
            let noise: Vec<_> = (0..8).flat_map(|_| random.next_u64().to_le_bytes()).collect();
            drop(bytes.splice(at..at, noise));
        }
        _ => {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
    }
}

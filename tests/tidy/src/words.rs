//! What no file of the repository says: unfinished work, the machine it was written on, and phrases
//! that nobody outside of the project understands.

use super::source_tree::{SourceFile, SourceTree};
use super::violation::Violation;

/// Marks of unfinished work, as whole words. Put together here, so that this file has none.
const UNFINISHED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("HA", "CK"),
    concat!("for ", "now"),
    concat!("unimplemented", "!"),
    concat!("todo", "!"),
    concat!("#[", "ignore"),
];

/// Phrases that make readers look for a noun, or guess what is meant, and what to write instead.
const DIALECT: &[(&str, &str)] = &[
    (concat!("who", "ever"), "name the host, process or thread"),
    (concat!("who ", "comes"), "say: the joining host"),
    (concat!("who ", "joins"), "say: the joining host"),
    (concat!("who ", "leaves"), "name the host, process or thread"),
    (concat!("to be ", "had"), "say: available, or acquired"),
    (concat!("was not ", "had"), "say: was not available, or not acquired"),
];

/// Words that only this project used, and what to write instead. In prose, and as parts of names.
const RETIRED: &[(&str, &str)] = &[
    (concat!("do", "or"), ADMISSION),
    (concat!("do", "ors"), ADMISSION),
    (concat!("k", "nock"), CLAIM),
    (concat!("k", "nocks"), CLAIM),
    (concat!("k", "nocked"), CLAIM),
    (concat!("tw", "in"), "say: double-buffered record"),
    (concat!("tw", "ins"), "say: double-buffered records"),
    (concat!("hea", "rt"), "say: heartbeat"),
    (concat!("hea", "rts"), "say: heartbeats"),
    (concat!("home", "coming"), "say: rejoin"),
    (concat!("se", "at"), "say: node handle"),
    (concat!("se", "ats"), "say: node handles"),
    (concat!("sta", "mp"), STATE),
    (concat!("sta", "mps"), STATE),
    (concat!("sta", "mped"), STATE),
    (concat!("set", "tle"), OUTCOME),
    (concat!("set", "tles"), OUTCOME),
    (concat!("set", "tled"), OUTCOME),
    (concat!("set", "tling"), OUTCOME),
    (concat!("unset", "tled"), OUTCOME),
    (concat!("bu", "ry"), "say: finalize a recovery"),
    (concat!("bu", "ries"), "say: finalizes a recovery"),
    (concat!("bu", "ried"), "say: finalized"),
    (concat!("m", "oot"), "say: superseded"),
    (concat!("du", "ty"), "say: the role of a lock manager"),
    (concat!("pati", "ence"), "name the time-out or the limit"),
    (concat!("ca", "res"), "say: pending cases"),
];
const ADMISSION: &str = "say: admission to a node slot, or its join marks";
const CLAIM: &str = "say: claim word, or: write the claim word";
const STATE: &str = "say: lock state, or reader word";
const OUTCOME: &str = "say: flush, end, resolve, drain or wait, whichever is meant";

/// Absolute paths that exist on one machine only.
const MACHINE_PATHS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/t", "mp/")];

/// Hosts of package registries: which one is asked is for the user's own settings to say.
const REGISTRY_HOSTS: &[&str] = &[
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("files.python", "hosted"),
    concat!("registry.npm", "js"),
    concat!("deb.deb", "ian.org"),
    concat!("security.deb", "ian.org"),
    concat!("archive.ubu", "ntu.com"),
    concat!("proxy.go", "lang.org"),
    concat!("static.rust", "-lang.org"),
];

/// Written by others: a tool and the Apache foundation.
const NOT_OURS: &[&str] = &["Cargo.lock", "tests/fuzz/Cargo.lock", "LICENSE"];

/// Files with such words.
#[must_use]
pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in tree.files.iter().filter(|file| !NOT_OURS.contains(&file.path.as_str())) {
        for (line, text) in file.text.lines().enumerate() {
            let mut found = |what: &str, advice: &str| {
                let message = format!("\"{what}\": {advice}");
                violations.push(Violation::at(&file.path, line + 1, message));
            };
            let lower = text.to_ascii_lowercase();
            for word in UNFINISHED {
                // A phrase may start a sentence; a mark is in capitals, a macro is not.
                let text = if word.contains(' ') { &lower } else { text };
                if has_word(text, word) {
                    found(word, "finish it, or leave it out");
                }
            }
            for (phrase, advice) in DIALECT {
                if has_word(&lower, phrase) {
                    found(phrase, advice);
                }
            }
            for (word, advice) in RETIRED {
                if lower.contains(word) && parts(text).any(|part| part.eq_ignore_ascii_case(word)) {
                    found(word, advice);
                }
            }
            for path in MACHINE_PATHS {
                if has_word(text, path) {
                    found(path, "a path of one machine");
                }
            }
            for host in REGISTRY_HOSTS {
                if lower.contains(host) {
                    found(host, "which registry is used is for the user's settings to say");
                }
            }
        }
    }
    violations
}

/// Sources with characters outside ASCII: prose may have them.
#[must_use]
pub fn check_ascii(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in tree.files.iter().filter(|file| is_source(file)) {
        for (line, text) in file.text.lines().enumerate() {
            if let Some(odd) = text.chars().find(|character| !character.is_ascii()) {
                let message = format!("\"{}\": sources are ASCII", odd.escape_unicode());
                violations.push(Violation::at(&file.path, line + 1, message));
            }
        }
    }
    violations
}

fn is_source(file: &SourceFile) -> bool {
    matches!(file.extension(), "rs" | "py" | "toml" | "sh" | "c" | "h")
        || file.path.starts_with(".ci/")
}

/// Whether `text` has `word` with nothing of a longer word or path around it.
fn has_word(text: &str, word: &str) -> bool {
    let word_like = |character: char| character.is_alphanumeric() || character == '_';
    let path_like = |character: char| word_like(character) || "/.}-~".contains(character);
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        if word.starts_with('/') {
            !before.is_some_and(path_like)
        } else {
            let open_end = !word.ends_with(char::is_alphanumeric);
            !before.is_some_and(word_like) && (open_end || !after.is_some_and(word_like))
        }
    })
}

/// The words of `text`, and the parts of its names: of `node_count` and `NodeCount`, both parts.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !character.is_ascii_alphabetic()).flat_map(|name| {
        let bytes = name.as_bytes();
        let begins =
            |at: &usize| bytes[at - 1].is_ascii_lowercase() && bytes[*at].is_ascii_uppercase();
        let mut starts: Vec<usize> = (1..bytes.len()).filter(begins).collect();
        starts.push(name.len());
        let mut from = 0;
        starts.into_iter().map(move |to| &name[std::mem::replace(&mut from, to)..to])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        let found = check(&SourceTree::of(&[("a.md", text)]));
        found.into_iter().map(|found| found.line).collect()
    }

    #[test]
    fn each_banned_word_is_found() {
        let dialect: Vec<_> = DIALECT.iter().map(|(phrase, _)| *phrase).collect();
        for word in [UNFINISHED, MACHINE_PATHS, REGISTRY_HOSTS, &dialect].concat() {
            assert_eq!(lines(&format!("fine\nsay {word}")), [2], "{word}");
            assert_eq!(lines(&format!("(\"{word}\", 1)")), [1], "{word}");
        }
        for (word, _) in RETIRED {
            let capital = word[..1].to_ascii_uppercase() + &word[1..];
            for name in [
                format!("the {word}."),
                format!("{word}_at(1)"),
                format!("is_{word}"),
                format!("The{capital}Word"),
                format!("{}_MAX", word.to_ascii_uppercase()),
            ] {
                assert_eq!(lines(&name), [1], "{name}");
            }
        }
        assert_eq!(lines(concat!("For ", "now it")), [1]);
        assert_eq!(lines(concat!("Who", "ever asks")), [1]);
        assert_eq!(lines(concat!("#[", "ignore = \"slow\"]")), [1]);
    }

    #[test]
    fn parts_of_longer_words_pass() {
        for text in [
            "mktemp /dev/shm/rackline.XXXXXX",
            "wait for now_ms",
            "the ignored part",
            "$directory/tmp/x and ../tmp/x and ${DIRECTORY}/tmp/x",
            "hackney",
            "a doorbell, entwined, heartbeat_ms, Seattle, timestamp, patiently",
        ] {
            assert_eq!(lines(text), [0; 0], "{text}");
        }
    }

    #[test]
    fn what_others_wrote_is_not_looked_at() {
        let word = concat!("crates", ".io");
        assert_eq!(check(&SourceTree::of(&[("Cargo.lock", word), ("LICENSE", word)])), []);
    }

    #[test]
    fn odd_characters_are_found_in_sources_only() {
        let odd = "fine\n\u{2014}";
        for path in ["a/lib.rs", "a.py", "Cargo.toml", ".ci/run"] {
            let found = check_ascii(&SourceTree::of(&[(path, odd)]));
            assert_eq!(found.len(), 1, "{path}");
            assert_eq!(found[0].line, 2);
        }
        assert_eq!(check_ascii(&SourceTree::of(&[("README.md", odd)])), []);
    }
}

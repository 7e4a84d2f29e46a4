//! Numbered rules have names that do not collide: a prefix, a letter and a number, as in
//! `LOCK-A1`. Each is stated once, and cited where the code relies on it.
//!
//! A rule is stated by a name at the beginning of bold text, after two asterisks. Every other
//! mention is a citation. Two names with "to" between them cite all rules of the range.
//! `docs/rules.md` has the table of all rules, which [`table`] makes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::{SourceTree, Violation};

/// Groups of rules, and what each is about.
pub const GROUPS: &[(&str, &str)] = &[
    ("AGENT-B", "backups of blocks to drives"),
    ("AGENT-C", "clears of the blocks on drives"),
    ("AGENT-Q", "the queue of a drive's restores"),
    ("AGENT-R", "restores of blocks from drives"),
    ("AGENT-W", "when blocks are written to drives"),
    ("ASYNC-P", "requests in pieces"),
    ("ASYNC-Q", "the queues of a process"),
    ("AUDIT-F", "checks of a region, and repairs"),
    ("BEAT-G", "heartbeats: the agent of a host, and what a watcher may conclude"),
    ("BLOCK-D", "descriptors of blocks"),
    ("BLOCK-E", "the heap lock, and what a dead process was writing"),
    ("BLOCK-P", "payload slots"),
    ("CAPI-I", "the C interface"),
    ("CLEAR-D", "directives: clearing and pinning a namespace on all nodes, and draining a node"),
    ("CUDA-E", "errors of a GPU"),
    ("CUDA-R", "pieces of the pool that are registered with a GPU's driver"),
    ("CUDA-V", "checksums of what a GPU copies"),
    ("DEATH-C", "agreeing on a death"),
    ("DEATH-R", "recovering a dead host"),
    ("DRIVE-C", "clears that a folder has carried out"),
    ("DRIVE-D", "what is durable on a drive, and when"),
    ("DRIVE-E", "encoded blocks of a drive"),
    ("DRIVE-G", "room on a drive"),
    ("DRIVE-I", "transfers between a drive and memory"),
    ("DRIVE-P", "which blocks are put on a drive, and which leave"),
    ("DRIVE-S", "stores of several folders"),
    ("ENGINE-E", "an engine whose process lost its membership"),
    ("EVICT-H", "holds"),
    ("EVICT-V", "eviction"),
    ("FAULT-C", "chunks whose memory failed"),
    ("FAULT-F", "memory errors of the device, and what a process does"),
    ("HOST-N", "places of the registry of a host's processes"),
    ("INDEX-G", "publication logs"),
    ("INDEX-R", "replicas of the index"),
    ("INDEX-S", "segments: the hash table of a node's descriptors"),
    ("JOIN-J", "admission of hosts that race for a node slot"),
    ("LMCACHE-C", "the storage plugin of LMCache"),
    ("LMCACHE-D", "the adapter for LMCache's server"),
    ("LOCK-A", "locks granted by a lock manager"),
    ("LOCK-B", "the bakery lock"),
    ("LOCK-H", "words in a host's memory that name their holder"),
    ("LOCK-L", "locks between hosts: refresh, intents, fairness, holders that died"),
    ("LOCK-Q", "the queue of a host"),
    ("LOCK-S", "words of a node that a lock manager polls"),
    ("LOCK-T", "terms, and the take-over of a lock manager"),
    ("MEM-M", "access to memory without coherence"),
    ("OBJECT-N", "named roots"),
    ("OBJECT-O", "objects, and which are kept"),
    ("ORPHAN-W", "writing the area of a vacant node"),
    ("PLAN-C", "placements: what runs, what waits, and when a new plan is made"),
    ("PLAN-D", "placements: tokens that are computed before the reader is to have them"),
    ("PLAN-E", "placements: streaming offloaded layers from the pool"),
    ("PLAN-L", "placements: how long a decode iteration takes"),
    ("PLAN-M", "placements: how much memory they take on the GPU"),
    ("PLAN-S", "placements: searching the best"),
    ("PLAN-W", "placements: how long a plan holds"),
    ("PLAN-X", "placements: from a plan to moves, fetches and one plan for all ranks"),
    ("PYTHON-Y", "the native half of the Python package"),
    ("PYTHON-Z", "log lines on their way to Python"),
    ("RACK-R", "serving on a rack: which worker serves a request, and when"),
    ("RACK-S", "serving on a rack: what a system keeps, and how KV moves"),
    ("RACK-V", "serving on a rack, in virtual time"),
    ("READ-F", "fetches"),
    ("RING-R", "requests for blocks that a GPU makes itself"),
    ("SGLANG-S", "the storage backend of SGLang"),
    ("SIM-D", "decoding, simulated"),
    ("TIER-D", "blocks on drives: announcing them"),
    ("TIER-F", "when engines compute, told to the agent of their host"),
    ("TIER-H", "blocks on drives: the table of a host"),
    ("TIER-P", "blocks on drives: asking for them ahead of a lookup"),
    ("TIER-Q", "blocks on drives: requests to restore them"),
    ("TRACE-T", "traces like those of TraCT"),
    ("VLLM-H", "blocks that engines of other sizes share"),
    ("VLLM-T", "the tier behind vLLM's CPU tier"),
    ("VLLM-V", "the scheduler's half of the vLLM connector"),
    ("VLLM-W", "the worker's half of the vLLM connector"),
    ("WRITE-B", "publishes"),
];

/// Where the table is.
const TABLE: &str = "docs/rules.md";

/// Group, number, and part, as the letter in `T2a`.
type Rule = (String, u32, Option<char>);
/// File and line.
type Place = (String, usize);

/// A mention of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Mention {
    rule: Rule,
    /// Whether it states the rule.
    states: bool,
    /// Whether it ends a range that the mention before it begins.
    ends_range: bool,
}

/// Rules that are cited and stated nowhere, stated twice, or cited nowhere; and a table of rules
/// that is not current.
#[must_use]
pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let mut stated = BTreeMap::new();
    let mut cited = BTreeMap::new();
    let mut violations = Vec::new();
    for file in tree.files.iter().filter(|file| file.path != TABLE) {
        for (line, text) in file.text.lines().enumerate() {
            let place = (file.path.clone(), line + 1);
            let mut before: Option<Rule> = None;
            for mention in mentions(text) {
                let rule = mention.rule;
                if mention.states {
                    if let Some((path, line)) = stated.insert(rule.clone(), place.clone()) {
                        let message = format!("{} is stated in {path}:{line} too", name(&rule));
                        violations.push(Violation::at(&place.0, place.1, message));
                    }
                } else {
                    let first = match &before {
                        Some((group, first, None)) if mention.ends_range && *group == rule.0 => {
                            *first
                        }
                        _ => rule.1,
                    };
                    for number in first..=rule.1 {
                        cited
                            .entry((rule.0.clone(), number, rule.2))
                            .or_insert_with(|| place.clone());
                    }
                }
                before = Some(rule);
            }
        }
    }
    for (rule, (path, line)) in cited.iter().filter(|(rule, _)| !stated.contains_key(*rule)) {
        let message = format!("{} is stated nowhere: name a rule that exists", name(rule));
        violations.push(Violation::at(path, *line, message));
    }
    for (rule, (path, line)) in stated.iter().filter(|(rule, _)| !cited.contains_key(*rule)) {
        let message = format!("{} is cited nowhere: cite it where it is relied on", name(rule));
        violations.push(Violation::at(path, *line, message));
    }
    let table = table(&stated);
    if !tree.get(TABLE).is_some_and(|file| file.text.ends_with(&table)) {
        let message = format!("its table is not current; it is to end with:\n{table}");
        violations.push(Violation::of_file(TABLE, message));
    }
    violations
}

/// The table of all rules, by group: numbers, what they are about, where each is stated.
fn table(stated: &BTreeMap<Rule, Place>) -> String {
    let mut table = "| rules | about | stated in |\n|---|---|---|\n".to_owned();
    for (group, about) in GROUPS {
        let of_group = stated.iter().filter(|((of, ..), _)| of == group);
        let mut files: Vec<_> = of_group.clone().map(|(_, (path, _))| path.as_str()).collect();
        files.sort_unstable();
        files.dedup();
        let numbers = || of_group.clone().map(|((_, number, _), _)| number);
        let (Some(first), Some(last)) = (numbers().min(), numbers().max()) else { continue };
        let places: Vec<_> = files.iter().map(|path| format!("`{path}`")).collect();
        let places = places.join(", ");
        writeln!(table, "| {group}{first} to {group}{last} | {about} | {places} |")
            .expect("a string takes everything");
    }
    table
}

fn name((group, number, part): &Rule) -> String {
    format!("{group}{number}{}", part.map_or_else(String::new, String::from))
}

/// The rules that a line names, in order.
fn mentions(text: &str) -> Vec<Mention> {
    let mut found: Vec<Mention> = Vec::new();
    let mut end_of_last = 0;
    for (dash, _) in text.match_indices('-') {
        let from = text[..dash].rfind(|c: char| !c.is_ascii_uppercase()).map_or(0, |at| at + 1);
        let Some(group) = text.get(from..dash + 2) else { continue };
        let before = text[..from].chars().next_back();
        let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-');
        if in_word || !GROUPS.iter().any(|(known, _)| *known == group) {
            continue;
        }
        let digits: String = text[dash + 2..].chars().take_while(char::is_ascii_digit).collect();
        let Ok(number) = digits.parse() else { continue };
        let end = dash + 2 + digits.len();
        let part = text[end..].chars().next().filter(char::is_ascii_lowercase);
        let between = text.get(end_of_last..from).unwrap_or_default();
        found.push(Mention {
            rule: (group.to_owned(), number, part),
            states: text[..from].ends_with("**"),
            ends_range: !found.is_empty() && between.trim() == "to",
        });
        end_of_last = end;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATED: &str = "//! - **{}1** One.\n//! - **{}2 Two.**\n//! - **{}3** Three.";
    const TABLE_OF_STATED: &str = "# Rules\n\n| rules | about | stated in |\n|---|---|---|\n\
         | {}1 to {}3 | locks granted by a lock manager | `a.rs` |\n";

    /// `{}` in the texts stands for a group, so that this file itself names no rule.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let group = concat!("LOCK", "-A");
        let texts: Vec<_> =
            files.iter().map(|(path, text)| (*path, text.replace("{}", group))).collect();
        let files: Vec<_> = texts.iter().map(|(path, text)| (*path, text.as_str())).collect();
        check(&SourceTree::of(&files)).iter().map(ToString::to_string).collect()
    }

    #[track_caller]
    fn assert_one(found: &[String], path: &str, says: &str) {
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(path) && found[0].contains(says), "{found:?}");
    }

    #[test]
    fn rules_that_are_stated_and_cited_pass() {
        let cited = "// As {}1 to {}3 say, and {}2.";
        assert_eq!(found(&[("a.rs", STATED), ("b.rs", cited), (TABLE, TABLE_OF_STATED)]), [""; 0]);
    }

    #[test]
    fn a_citation_of_no_rule_is_found() {
        let cited = "fn f() {} // {}1 to {}3\n// {}4, as ever";
        let found = found(&[("a.rs", STATED), ("b.rs", cited), (TABLE, TABLE_OF_STATED)]);
        assert_one(&found, "b.rs:2:", "stated nowhere");
    }

    #[test]
    fn a_rule_that_is_cited_nowhere_is_found() {
        let found = found(&[("a.rs", STATED), ("b.md", "{}1, {}3"), (TABLE, TABLE_OF_STATED)]);
        assert_one(&found, "a.rs:2:", "cited nowhere");
    }

    #[test]
    fn a_rule_that_is_stated_twice_is_found() {
        let again = "//! **{}1** Other\n// {}1 to {}3";
        let found = found(&[("a.rs", again), ("a.rs", STATED), (TABLE, TABLE_OF_STATED)]);
        assert_one(&found, "a.rs:1:", "a.rs:1 too");
    }

    #[test]
    fn a_table_that_is_not_current_is_found() {
        let table = TABLE_OF_STATED.replace("{}3", "{}2");
        let found = found(&[("a.rs", STATED), ("b.rs", "// {}1 to {}3"), (TABLE, &table)]);
        assert_one(&found, TABLE, "not current");
    }

    #[test]
    fn other_capitals_are_no_rules() {
        let other = "S3-FIFO, CRC-32C, UN{}1, x_{}1, a-{}1, LOCK-free, LOCK-X1, {}";
        assert_eq!(mentions(&other.replace("{}", concat!("LOCK", "-A"))), []);
    }
}

//! The identities of blocks in a pool, as `rackline status` lists them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use crate::output::say;

/// Most identities that are printed. Each name of weights is one, and stays until it is evicted.
const SHOWN_MAX: usize = 16;

/// What the blocks of some engines are, in words.
#[derive(Debug, Serialize)]
pub(crate) struct IdentityStatus {
    /// Name and value of each word.
    words: BTreeMap<String, Value>,
    /// The nodes that have this identity in their memory.
    nodes: Vec<u16>,
}

/// All identities in the pool, and how they differ.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Identities {
    identities: Vec<IdentityStatus>,
    /// Words that not all of them have with the same value.
    identities_differ_in: Vec<String>,
}

impl Identities {
    /// From the texts that nodes have. A text that is no JSON object is shown whole.
    pub(crate) fn new(found: impl IntoIterator<Item = (u16, String)>) -> Self {
        let mut nodes_of: BTreeMap<String, BTreeSet<u16>> = BTreeMap::new();
        for (node, text) in found {
            nodes_of.entry(text).or_default().insert(node);
        }
        let identity = |(text, nodes): (String, BTreeSet<u16>)| {
            let words = serde_json::from_str(&text)
                .unwrap_or_else(|_| BTreeMap::from([("identity".to_owned(), Value::String(text))]));
            IdentityStatus { words, nodes: nodes.into_iter().collect() }
        };
        let identities: Vec<_> = nodes_of.into_iter().map(identity).collect();
        let names: BTreeSet<&String> = identities.iter().flat_map(|it| it.words.keys()).collect();
        let differs = |name: &&&String| {
            identities.iter().any(|it| it.words.get(**name) != identities[0].words.get(**name))
        };
        let identities_differ_in =
            names.iter().filter(differs).map(|name| (*name).clone()).collect();
        Self { identities, identities_differ_in }
    }

    /// The words that differ between engines of one model, which share nothing; none where they do.
    pub(crate) fn differ_by_mistake(&self) -> Option<String> {
        let differ = &self.identities_differ_in;
        let is_meant = differ.iter().any(|word| matches!(word.as_str(), "model" | "name"));
        (!differ.is_empty() && !is_meant).then(|| differ.join(", ").escape_debug().to_string())
    }

    /// Engines of different identities share nothing, so the words that differ are shown.
    pub(crate) fn print(&self) {
        for line in self.lines() {
            say!("{line}");
        }
    }

    fn lines(&self) -> Vec<String> {
        let count = self.identities.len();
        let mut lines = Vec::new();
        match count {
            0 => {}
            1 => lines.push("identities of blocks: 1, all engines share".to_owned()),
            _ => lines.push(format!(
                "identities of blocks: {count}, which share nothing; they differ in {}",
                self.identities_differ_in.join(", ").escape_debug()
            )),
        }
        for identity in self.identities.iter().take(SHOWN_MAX) {
            let shown = |name: &&String| {
                matches!(name.as_str(), "model" | "name")
                    || self.identities_differ_in.contains(name)
            };
            let words: Vec<_> = identity.words.keys().filter(shown).collect();
            let words: Vec<_> =
                words.into_iter().map(|name| shown_word(name, &identity.words[name])).collect();
            let words = words.join(" ");
            lines.push(format!("  in the memory of nodes {:?}: {words}", identity.nodes));
        }
        if count > SHOWN_MAX {
            let more = count - SHOWN_MAX;
            lines.push(format!("  and {more} more, which `rackline status --json` lists"));
        }
        lines
    }
}

/// A word for a terminal: every host of the rack can write any text. JSON escapes some control
/// characters of a value, and not all.
fn shown_word(name: &str, value: &Value) -> String {
    let shown = |letter: char| match letter {
        '"' | '\\' => letter.to_string(),
        _ => letter.escape_debug().to_string(),
    };
    let value: String = value.to_string().chars().map(shown).collect();
    format!("{}={value}", name.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_do_not_steer_a_terminal() {
        let text = r#"{"\u001b[2Jname\u009b":"\u001b[2J\u009b31m\u202e","model":"Model \"m\""}"#;
        let all = Identities::new([(0, text.to_owned())]);
        let words: Vec<_> =
            all.identities[0].words.iter().map(|(name, value)| shown_word(name, value)).collect();
        assert!(words.concat().chars().all(|letter| !letter.is_control()), "{words:?}");
        assert!(!words.concat().contains('\u{202e}'), "{words:?}");
        assert_eq!(words[1], r#"model="Model \"m\"""#);
    }

    /// Weights that changed a thousand times in a pool that was never full, on 32 nodes.
    #[test]
    fn a_thousand_identities_leave_room_for_the_rest_of_the_status() {
        let text = |number: usize| format!(r#"{{"model":"m","name":"weights {number}"}}"#);
        let found = (0..1000).flat_map(|number| (0..32).map(move |node| (node, number)));
        let all = Identities::new(found.map(|(node, number)| (node, text(number))));
        let lines = all.lines();
        assert_eq!((all.identities.len(), lines.len()), (1000, 18));
        assert!(lines[0].starts_with("identities of blocks: 1000, which share nothing"));
        assert_eq!(lines[17], "  and 984 more, which `rackline status --json` lists");
        assert_eq!(Identities::new([]).lines(), [""; 0]);
    }

    #[test]
    fn identities_differ_in_words() {
        let text = |dtype: &str| format!(r#"{{"model":"m","dtype":"{dtype}"}}"#);
        let found = [(0, text("a")), (1, text("a")), (1, text("b")), (2, text("a"))];
        let all = Identities::new(found);
        assert_eq!(all.identities_differ_in, ["dtype"]);
        assert_eq!(all.identities[0].nodes, [0, 1, 2]);
        assert_eq!(all.identities[1].nodes, [1]);
        let one = Identities::new([(3, text("a"))]);
        assert_eq!(one.identities_differ_in, [""; 0]);
        let strange = Identities::new([(0, "?".to_owned()), (1, text("a"))]);
        assert_eq!(strange.identities_differ_in, ["dtype", "identity", "model"]);
        assert!(Identities::new([]).identities.is_empty());
    }
}

//! Conversations over documents, planned so that requests share long prefixes.
//!
//! Every document gets several conversations. Their system text is the same: an instruction and the
//! document, cut to a number of tokens; so after one of them was answered, all others find almost
//! their whole prompt cached. A second turn shares its conversation's first turn and answer too.
//! The prompt of a later turn depends on the generated answers, so the plan holds texts, and
//! [`chat::Conversation`](crate::chat::Conversation) makes the tokens.

/// A text to talk about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// What to call it, for example a file name.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// How much to plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Tokens of a document that go into the prompt, at most.
    pub document_tokens: usize,
    /// Conversations about each document.
    pub conversations: usize,
    /// Questions in each conversation.
    pub turns: usize,
}

impl Default for Size {
    fn default() -> Self {
        Self { document_tokens: 1000, conversations: 3, turns: 2 }
    }
}

/// One planned conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dialogue {
    /// Name of the document it is about.
    pub document: String,
    /// The system text; equal for all dialogues about one document.
    pub system: String,
    /// The questions, one for each turn.
    pub questions: Vec<String>,
}

/// One request of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Index into [`Plan::dialogues`].
    pub dialogue: usize,
    /// Index into [`Dialogue::questions`].
    pub turn: usize,
}

/// The planned conversations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// All conversations, those about one document apart from each other, so that two in a row are
    /// about different documents.
    pub dialogues: Vec<Dialogue>,
}

impl Plan {
    /// All requests in an order that respects turns: first every dialogue's first turn, then every
    /// second one. A turn may be asked once the one before it was answered.
    pub fn requests(&self) -> Vec<Request> {
        let turns = self.dialogues.iter().map(|dialogue| dialogue.questions.len()).max();
        (0..turns.unwrap_or(0))
            .flat_map(|turn| {
                let asked = move |(dialogue, planned): (usize, &Dialogue)| {
                    (turn < planned.questions.len()).then_some(Request { dialogue, turn })
                };
                self.dialogues.iter().enumerate().filter_map(asked)
            })
            .collect()
    }
}

/// Why there is nothing to plan.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
    /// There is no document with text in it.
    #[error("there is no text to talk about: give at least one document that is not empty")]
    NoText,
    /// A number in [`Size`] is zero.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
}

const INSTRUCTION: &str = "You answer questions about the text below. Keep answers short: one or \
                           two plain sentences.";

/// First questions, which any text answers.
const OPENING: [&str; 6] = [
    "What is this text about?",
    "Name one important fact from the text.",
    "Who is this text written for?",
    "What is the main point of the first paragraph?",
    "Give this text a short title.",
    "Which problem does the text deal with?",
];

/// Later questions, which refer to the answer before.
const FOLLOWING: [&str; 4] = [
    "Say that in simpler words.",
    "Why does that matter?",
    "Give one example from the text.",
    "Say it again in at most ten words.",
];

/// Plans conversations about `documents`; `count_tokens` says how long a text is in tokens.
/// Documents without text are left out.
///
/// # Errors
/// No document has text, or a number in `size` is zero.
pub fn plan(
    documents: &[Document],
    size: Size,
    count_tokens: impl Fn(&str) -> usize,
) -> Result<Plan, PlanError> {
    for (number, name) in [
        (size.document_tokens, "document_tokens"),
        (size.conversations, "conversations"),
        (size.turns, "turns"),
    ] {
        if number == 0 {
            return Err(PlanError::Zero(name));
        }
    }
    let systems: Vec<(&str, String)> = documents
        .iter()
        .map(|document| (document, cut(document.text.trim(), size.document_tokens, &count_tokens)))
        .filter(|(_, text)| !text.is_empty())
        .map(|(document, text)| {
            let system = format!("{INSTRUCTION}\n\nText \"{}\":\n\n{text}", document.name);
            (document.name.as_str(), system)
        })
        .collect();
    if systems.is_empty() {
        return Err(PlanError::NoText);
    }
    let dialogues = (0..size.conversations)
        .flat_map(|round| {
            systems.iter().enumerate().map(move |(at, (document, system))| Dialogue {
                document: (*document).to_owned(),
                system: system.clone(),
                questions: questions(round + at, round, size.turns),
            })
        })
        .collect();
    Ok(Plan { dialogues })
}

/// The questions of one dialogue: `opening` and `following` say where in the lists to start.
fn questions(opening: usize, following: usize, turns: usize) -> Vec<String> {
    (0..turns)
        .map(|turn| match turn.checked_sub(1) {
            None => OPENING[opening % OPENING.len()],
            Some(later) => FOLLOWING[(following + later) % FOLLOWING.len()],
        })
        .map(str::to_owned)
        .collect()
}

/// The longest beginning of `text` with at most `tokens` tokens that ends with a line; if not even
/// the first line fits, with a word.
fn cut(text: &str, tokens: usize, count_tokens: &impl Fn(&str) -> usize) -> String {
    let longest = |separator: char| {
        let ends: Vec<usize> =
            text.match_indices(separator).map(|(at, _)| at).chain([text.len()]).collect();
        // Longer beginnings never have fewer tokens.
        let fitting = ends.partition_point(|&end| count_tokens(text[..end].trim_end()) <= tokens);
        fitting.checked_sub(1).map_or("", |last| text[..ends[last]].trim_end())
    };
    let lines = longest('\n');
    if lines.is_empty() { longest(' ').to_owned() } else { lines.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> usize {
        text.split_whitespace().count()
    }

    fn document(name: &str, text: &str) -> Document {
        Document { name: name.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn texts_are_cut_at_lines_else_at_words() {
        let text = "one two three\nfour five\n\nsix";
        assert_eq!(cut(text, 100, &words), text);
        assert_eq!(cut(text, 5, &words), "one two three\nfour five");
        assert_eq!(cut(text, 4, &words), "one two three");
        assert_eq!(cut(text, 2, &words), "one two");
        assert_eq!(cut("", 2, &words), "");
    }

    #[test]
    fn dialogues_about_one_document_share_their_system_text() {
        let documents = [document("a", "text of a"), document("b", "text of b")];
        let size = Size { document_tokens: 50, conversations: 3, turns: 2 };
        let plan = plan(&documents, size, words).unwrap();
        let order: Vec<&str> = plan.dialogues.iter().map(|d| d.document.as_str()).collect();
        assert_eq!(order, ["a", "b", "a", "b", "a", "b"]);
        let about_a: Vec<&Dialogue> =
            plan.dialogues.iter().filter(|dialogue| dialogue.document == "a").collect();
        assert!(about_a.iter().all(|dialogue| dialogue.system == about_a[0].system));
        assert!(about_a[0].system.contains("text of a"));
        assert_ne!(about_a[0].system, plan.dialogues[1].system);
        for (at, one) in about_a.iter().enumerate() {
            assert!(about_a[..at].iter().all(|other| other.questions[0] != one.questions[0]));
        }
    }

    #[test]
    fn turns_are_asked_in_order() {
        let documents = [document("a", "text")];
        let size = Size { document_tokens: 50, conversations: 2, turns: 3 };
        let requests = plan(&documents, size, words).unwrap().requests();
        let order: Vec<_> = requests.iter().map(|r| (r.turn, r.dialogue)).collect();
        assert_eq!(order, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]);
    }

    #[test]
    fn plans_without_content_are_refused() {
        let empty = [document("a", " \n ")];
        assert_eq!(plan(&empty, Size::default(), words), Err(PlanError::NoText));
        assert_eq!(plan(&[], Size::default(), words), Err(PlanError::NoText));
        let none = Size { turns: 0, ..Size::default() };
        let documents = [document("a", "text")];
        assert_eq!(plan(&documents, none, words), Err(PlanError::Zero("turns")));
    }
}

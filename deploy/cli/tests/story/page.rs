//! The page as the test reads it: sections, and in each of them commands and what they show.

const PAGE: &str = include_str!("../../../docs/story.md");

/// Any text.
const ANYTHING: &str = "<...>";
/// A number that is not 0.
const NUMBER: &str = "<n>";

/// Commands, and the lines that the last one shows.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) commands: Vec<String>,
    /// In this order, among others.
    pub(crate) shows: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) heading: String,
    pub(crate) steps: Vec<Step>,
}

/// The sections that have commands, in the order of the page.
pub(crate) fn sections() -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let mut lines = PAGE.lines();
    while let Some(line) = lines.next() {
        if let Some(heading) = line.strip_prefix("## ") {
            sections.push(Section { heading: heading.to_owned(), steps: Vec::new() });
        }
        let Some(language) = line.strip_prefix("```") else { continue };
        let fenced = lines.by_ref().take_while(|line| *line != "```").map(str::to_owned).collect();
        let steps = &mut sections.last_mut().expect("a heading before the commands").steps;
        match language {
            "sh" => steps.push(Step { commands: fenced, shows: Vec::new() }),
            "text" => {
                let step = steps.last_mut().expect("commands before what they show");
                assert!(step.shows.is_empty(), "{fenced:?} follows what a command shows");
                step.shows = fenced;
            }
            other => panic!("nothing is known of code in {other:?}"),
        }
    }
    sections.retain(|section| !section.steps.is_empty());
    sections
}

/// The first line of `shows` that `output` does not have, in its order.
pub(crate) fn missing<'s>(shows: &'s [String], output: &str) -> Option<&'s str> {
    let mut lines = output.lines();
    let shown = |wanted: &&String| !lines.any(|line| has(line, wanted));
    shows.iter().find(shown).map(String::as_str)
}

/// Whether the line has the parts of `wanted`, one after the other.
fn has(line: &str, wanted: &str) -> bool {
    let mut rest = line;
    for part in wanted.split_inclusive('>') {
        let (text, is_number) = match (part.strip_suffix(ANYTHING), part.strip_suffix(NUMBER)) {
            (Some(text), _) => (text, false),
            (_, Some(text)) => (text, true),
            _ => (part, false),
        };
        let Some((_, behind)) = rest.split_once(text.trim()) else { return false };
        let number = behind.trim_start().split(|it: char| !it.is_ascii_digit()).next();
        if is_number && !number.is_some_and(|it| it.chars().any(|digit| digit != '0')) {
            return false;
        }
        rest = behind;
    }
    true
}

#[test]
fn lines_are_found_in_their_order() {
    let output = "one two three\nfour\nfive six\nmany 10\nempty 0";
    let missing = |shows: &[&str]| {
        let shows: Vec<_> = shows.iter().map(|it| (*it).to_owned()).collect();
        missing(&shows, output).map(str::to_owned)
    };
    assert_eq!(missing(&["one<...>three", "five <...>", "many <n>"]), None);
    assert_eq!(missing(&["empty <n>"]), Some("empty <n>".to_owned()));
    assert_eq!(missing(&["four", "one"]), Some("one".to_owned()));
    assert_eq!(missing(&["three<...>one"]), Some("three<...>one".to_owned()));
}

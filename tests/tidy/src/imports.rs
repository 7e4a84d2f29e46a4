//! What a Rust file declares and names: its modules, items and paths, without those of its tests.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use proc_macro2::{Delimiter, Ident, LexError, TokenStream, TokenTree};
use syn::UseTree;

/// A path as it stands in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Named {
    /// Its segments; the first is `crate`, `self`, `super` or a name.
    pub path: Vec<String>,
    /// Where it stands, counted from 1.
    pub line: usize,
}

/// A module of a file: the file itself, or one whose content is in it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Content {
    /// The modules in files of their own.
    pub files: BTreeSet<String>,
    /// The modules whose content follows.
    pub inline: BTreeMap<String, Content>,
    /// The items that it defines.
    pub items: BTreeSet<String>,
    /// What it imports: a name, and the path that it stands for.
    pub imports: BTreeMap<String, Vec<String>>,
    /// The modules of which it imports everything.
    pub globs: Vec<Vec<String>>,
    /// All paths in it, those of its imports among them.
    pub named: Vec<Named>,
}

/// The content of the Rust file `text`. What is compiled for tests alone is left out.
///
/// # Errors
/// Where it is no Rust.
pub fn content(text: &str) -> Result<Content, LexError> {
    let mut content = Content::default();
    read(TokenStream::from_str(text)?, &mut content);
    Ok(content)
}

fn read(tokens: TokenStream, content: &mut Content) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        at = match &tokens[at] {
            TokenTree::Punct(mark) if mark.as_char() == '#' => match tokens.get(at + 1) {
                Some(TokenTree::Group(attribute)) if is_for_tests(attribute.stream()) => {
                    past_item(&tokens, at + 2)
                }
                // Attributes name no modules.
                Some(TokenTree::Group(_)) => at + 2,
                _ => at + 1,
            },
            TokenTree::Ident(word) => read_word(&tokens, at, word, content),
            TokenTree::Group(group) => {
                read(group.stream(), content);
                at + 1
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => at + 1,
        };
    }
}

/// Reads what begins with `word`; where it ends.
fn read_word(tokens: &[TokenTree], at: usize, word: &Ident, content: &mut Content) -> usize {
    match word.to_string().as_str() {
        "use" => {
            let end = tokens[at..].iter().position(|token| is_mark(token, ';'));
            let end = end.map_or(tokens.len(), |length| at + length);
            let tree = tokens[at + 1..end].iter().cloned().collect();
            if let Ok(tree) = syn::parse2(tree) {
                read_use(&tree, &[], word.span().start().line, content);
            }
            end
        }
        "mod" => match (tokens.get(at + 1), tokens.get(at + 2)) {
            (Some(TokenTree::Ident(name)), Some(TokenTree::Group(body))) => {
                read(body.stream(), content.inline.entry(name.to_string()).or_default());
                at + 3
            }
            (Some(TokenTree::Ident(name)), Some(token)) if is_mark(token, ';') => {
                content.files.insert(name.to_string());
                at + 3
            }
            _ => at + 1,
        },
        "struct" | "enum" | "union" | "fn" | "const" | "static" | "trait" | "type" => {
            if let Some(TokenTree::Ident(name)) = tokens.get(at + 1) {
                content.items.insert(name.to_string());
            }
            at + 1
        }
        // `pub(in crate::a)` names who may look, which is always above.
        "in" => at + 1 + path_at(tokens, at + 1).1,
        _ => {
            let (path, length) = path_at(tokens, at);
            if path.len() > 1 {
                content.named.push(Named { path, line: word.span().start().line });
            }
            at + length.max(1)
        }
    }
}

/// The path that begins there, and how many tokens it has.
fn path_at(tokens: &[TokenTree], at: usize) -> (Vec<String>, usize) {
    let mut path = Vec::new();
    let mut next = at;
    while let Some(TokenTree::Ident(word)) = tokens.get(next) {
        path.push(word.to_string());
        next += 1;
        let is_colon = |at: usize| tokens.get(at).is_some_and(|token| is_mark(token, ':'));
        if !(is_colon(next) && is_colon(next + 1)) {
            break;
        }
        next += 2;
    }
    (path, next - at)
}

fn read_use(tree: &UseTree, before: &[String], line: usize, content: &mut Content) {
    let with = |name: &Ident| [before, &[name.to_string()]].concat();
    let (path, name) = match tree {
        UseTree::Path(path) => {
            return read_use(&path.tree, &with(&path.ident), line, content);
        }
        UseTree::Group(group) => {
            return group.items.iter().for_each(|tree| read_use(tree, before, line, content));
        }
        UseTree::Glob(_) => {
            content.globs.push(before.to_vec());
            (before.to_vec(), None)
        }
        UseTree::Name(name) if name.ident == "self" => (before.to_vec(), before.last().cloned()),
        UseTree::Name(name) => (with(&name.ident), Some(name.ident.to_string())),
        UseTree::Rename(name) => (with(&name.ident), Some(name.rename.to_string())),
    };
    if let Some(name) = name {
        content.imports.insert(name, path.clone());
    }
    content.named.push(Named { path, line });
}

fn is_mark(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == mark)
}

/// Whether an attribute with this content keeps what follows out of all programs but tests.
fn is_for_tests(attribute: TokenStream) -> bool {
    let mut tokens = attribute.into_iter();
    let is_cfg = matches!(tokens.next(), Some(TokenTree::Ident(name)) if name == "cfg");
    let mut words = BTreeSet::new();
    tokens.for_each(|token| collect_words(token, &mut words));
    is_cfg && words.contains("test") && !words.contains("any") && !words.contains("not")
}

fn collect_words(token: TokenTree, words: &mut BTreeSet<String>) {
    match token {
        TokenTree::Ident(word) => {
            words.insert(word.to_string());
        }
        TokenTree::Group(group) => {
            group.stream().into_iter().for_each(|token| collect_words(token, words));
        }
        TokenTree::Punct(_) | TokenTree::Literal(_) => {}
    }
}

/// Behind the item that begins there.
fn past_item(tokens: &[TokenTree], at: usize) -> usize {
    let ends = |token: &TokenTree| {
        let is_body =
            matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
        is_body || is_mark(token, ';')
    };
    // The braces of an import are not a body.
    let is_use = |token: &TokenTree| matches!(token, TokenTree::Ident(word) if *word == "use");
    let end = match tokens[at..].iter().position(ends) {
        Some(length) if tokens[at..at + length].iter().any(is_use) => {
            tokens[at..].iter().position(|token| is_mark(token, ';'))
        }
        found => found,
    };
    end.map_or(tokens.len(), |length| at + length + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        content(text).unwrap().named.iter().map(|named| named.path.join("::")).collect()
    }

    #[test]
    fn imports_and_paths_are_found() {
        let text = "use a::{self, b::{C, D as E}, f::*};\n\
                    pub(in crate::x) fn g(h: crate::i::J) -> super::K { l::<self::M>() }";
        let expected = ["a", "a::b::C", "a::b::D", "a::f", "crate::i::J", "super::K", "self::M"];
        assert_eq!(paths(text), expected);
        let content = content(text).unwrap();
        let names: Vec<_> = content.imports.keys().cloned().collect();
        assert_eq!(names, ["C", "E", "a"]);
        assert_eq!(content.globs, [["a", "f"]]);
        assert!(content.items.contains("g"));
        assert_eq!(content.named[4].line, 2);
    }

    #[test]
    fn modules_are_found_with_what_is_in_them() {
        let content = content("mod a;\nmod b { use super::c; mod d; }").unwrap();
        assert!(content.files.contains("a"));
        let b = &content.inline["b"];
        assert_eq!(b.named[0].path, ["super", "c"]);
        assert!(b.files.contains("d"));
    }

    #[test]
    fn tests_are_left_out() {
        for test in ["#[cfg(test)]", "#[cfg(all(test, loom))]", "#[cfg(test)] #[allow(x)]"] {
            for item in ["mod a { use b::C; }", "use b::{C, D};", "fn f<A, B>() { b::c() }"] {
                assert_eq!(paths(&format!("{test} {item} use d::E;")), ["d::E"], "{test} {item}");
            }
        }
        for kept in ["#[cfg(any(test, feature = \"f\"))]", "#[cfg(not(test))]", "#[doc = \"test\"]"]
        {
            assert_eq!(paths(&format!("{kept} use a::B;")), ["a::B"], "{kept}");
        }
    }
}

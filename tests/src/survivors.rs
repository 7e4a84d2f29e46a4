//! The list of flushes and fences whose removal no test notices, each with the reason.
//!
//! One a line: `file | operation | source | reason`. Empty lines are skipped, and so are comments,
//! which start with `#`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::mutation::SiteText;

/// Why the list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// The list.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line of it is not an entry.
    #[error(
        "{}:{line}: not `file | operation | source | reason` with a reason in words", .path.display()
    )]
    Malformed {
        /// The list.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// Two lines of it say the same.
    #[error("{}: listed twice: {entry}", .path.display())]
    Twice {
        /// The list.
        path: PathBuf,
        /// What is listed twice.
        entry: SiteText,
    },
}

/// The entries of the list and their reasons.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listed {
    reasons: BTreeMap<SiteText, String>,
}

/// How a list and a run of the mutation suite differ.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// Survivors that are not listed.
    pub unlisted: Vec<SiteText>,
    /// Entries that are noticed by now, or whose site is gone.
    pub outdated: Vec<SiteText>,
}

impl Listed {
    /// Reads the list.
    ///
    /// # Errors
    /// [`ListError`].
    pub fn read(path: &Path) -> Result<Self, ListError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ListError::Read { path: path.to_owned(), source })?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ListError> {
        let mut reasons = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let malformed = || ListError::Malformed { path: path.to_owned(), line: index + 1 };
            let (entry, reason) = entry(line).ok_or_else(malformed)?;
            if reasons.insert(entry.clone(), reason).is_some() {
                return Err(ListError::Twice { path: path.to_owned(), entry });
            }
        }
        Ok(Self { reasons })
    }

    /// Whether the list has an entry for the site.
    #[must_use]
    pub fn contains(&self, site: &SiteText) -> bool {
        self.reasons.contains_key(site)
    }

    /// Compares the list with what came of a run: `removed` are all sites, `survivors` those of
    /// them that nobody missed.
    #[must_use]
    pub fn judge(&self, removed: &[SiteText], survivors: &[SiteText]) -> Verdict {
        debug_assert!(survivors.iter().all(|survivor| removed.contains(survivor)));
        let unlisted = survivors.iter().filter(|site| !self.reasons.contains_key(site));
        let outdated = self.reasons.keys().filter(|entry| !survivors.contains(entry));
        Verdict { unlisted: unlisted.cloned().collect(), outdated: outdated.cloned().collect() }
    }
}

/// The source may itself contain the separator: it is what is left between the others.
fn entry(line: &str) -> Option<(SiteText, String)> {
    const SEPARATOR: &str = " | ";
    let (file, rest) = line.split_once(SEPARATOR)?;
    let (op, rest) = rest.split_once(SEPARATOR)?;
    let (source, reason) = rest.rsplit_once(SEPARATOR)?;
    let in_words = reason.split_whitespace().count() >= 4;
    let site = SiteText { file: file.to_owned(), op: op.to_owned(), source: source.to_owned() };
    in_words.then(|| (site, reason.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(source: &str) -> SiteText {
        SiteText { file: "a.rs".to_owned(), op: "Fence".to_owned(), source: source.to_owned() }
    }

    fn listed(text: &str) -> Result<Listed, ListError> {
        Listed::parse(Path::new("list"), text)
    }

    #[test]
    fn what_is_not_listed_and_what_is_listed_in_vain_are_told() {
        let list = "# why\n\na.rs | Fence | x(|y | z) | the next one waits too\n\
                    a.rs | Fence | gone() | the next one waits too\n";
        let list = listed(list).unwrap();
        let (known, new) = (site("x(|y | z)"), site("w()"));
        let removed = [known.clone(), new.clone(), site("v()")];
        let verdict = list.judge(&removed, &[known, new.clone()]);
        assert_eq!(verdict, Verdict { unlisted: vec![new], outdated: vec![site("gone()")] });
    }

    #[test]
    fn an_entry_without_a_reason_is_refused() {
        for text in ["a.rs | Fence | x()", "a.rs | Fence | x() | -", "nothing of the kind"] {
            let refused = listed(text);
            assert!(matches!(refused, Err(ListError::Malformed { line: 1, .. })), "{refused:?}");
        }
        let twice = "a.rs | Fence | x() | one two three four\n".repeat(2);
        assert!(matches!(listed(&twice), Err(ListError::Twice { .. })));
    }
}

//! The rules of the house: what the compiler and clippy cannot say about the sources.
//!
//! A rule is a function from the [`SourceTree`] to the [`Violation`]s it finds; `house_rules` runs
//! each over this repository. Beside each rule its own tests show it a tree that breaks it, so that
//! a rule cannot fall silent.

pub mod dead_files;
pub mod dependencies;
pub mod file_size;
pub mod manifest;
pub mod names;
pub mod rust_source;
pub mod source_tree;
pub mod unsafe_code;
pub mod words;

use std::fmt;

pub use source_tree::{SourceFile, SourceTree};

/// A rule that is broken, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// File, relative to the root of the repository.
    pub path: String,
    /// Line, counted from 1; 0 when the whole file is meant.
    pub line: usize,
    /// What is wrong and what to do.
    pub message: String,
}

impl Violation {
    fn of_file(path: &str, message: impl Into<String>) -> Self {
        Self::at(path, 0, message)
    }

    fn at(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

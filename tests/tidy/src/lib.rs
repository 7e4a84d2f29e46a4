//! The rules of the house: what the compiler and clippy cannot say about the sources.
//!
//! A rule is a function from the [`SourceTree`] to the [`Violation`]s it finds;
//! `tests/repository.rs` runs each over this repository. Beside each rule its own tests show it a
//! tree that breaks it, so that a rule cannot fall silent.

pub mod dead_files;
pub mod dependencies;
pub mod file_size;
pub mod floors;
pub mod imports;
pub mod licences;
pub mod module_tree;
pub mod modules;
pub mod names;
pub mod packages;
pub mod rule_names;
pub mod shipped;
pub mod source_tree;
pub mod unsafe_code;
pub mod violation;
pub mod words;

pub use packages::Package;
pub use source_tree::{SourceFile, SourceTree};
pub use violation::Violation;

//! The modules of a package, and where what they name is defined.

use std::collections::BTreeMap;

use super::imports::{Content, content};
use super::source_tree::SourceTree;
use super::violation::Violation;

/// A module, by the names of those from the root of the package down to it.
pub type ModulePath = Vec<String>;

/// A module and its place.
#[derive(Clone, Debug)]
pub struct Node {
    /// The file that it is in.
    pub file: String,
    /// What is in it.
    pub content: Content,
}

/// All modules of a package.
#[derive(Clone, Debug, Default)]
pub struct ModuleTree {
    /// The modules.
    pub modules: BTreeMap<ModulePath, Node>,
}

/// So many imports of imports are followed.
const IMPORTS_MAX: usize = 16;

impl ModuleTree {
    /// The modules of the package whose first file is `root`.
    ///
    /// # Errors
    /// The files that are no Rust.
    pub fn of(tree: &SourceTree, root: &str) -> Result<Self, Vec<Violation>> {
        let mut modules = Self::default();
        let mut violations = Vec::new();
        let folder = root.rsplit_once('/').map_or("", |(folder, _)| folder);
        modules.load(tree, root, folder, &[], &mut violations);
        if violations.is_empty() { Ok(modules) } else { Err(violations) }
    }

    fn load(
        &mut self,
        tree: &SourceTree,
        path: &str,
        folder: &str,
        module: &[String],
        violations: &mut Vec<Violation>,
    ) {
        let Some(file) = tree.get(path) else { return };
        match content(&file.text) {
            Ok(content) => self.add(tree, path, folder, module, content, violations),
            Err(error) => {
                let line = error.span().start().line;
                violations.push(Violation::at(path, line, format!("no Rust: {error}")));
            }
        }
    }

    fn add(
        &mut self,
        tree: &SourceTree,
        file: &str,
        folder: &str,
        module: &[String],
        content: Content,
        violations: &mut Vec<Violation>,
    ) {
        for name in &content.files {
            let (child, inside) = (below(module, name), format!("{folder}/{name}"));
            for path in [format!("{inside}.rs"), format!("{inside}/mod.rs")] {
                self.load(tree, &path, &inside, &child, violations);
            }
        }
        for (name, inline) in &content.inline {
            let (child, inside) = (below(module, name), format!("{folder}/{name}"));
            self.add(tree, file, &inside, &child, inline.clone(), violations);
        }
        self.modules.insert(module.to_vec(), Node { file: file.to_owned(), content });
    }

    /// The module that defines what `module` names by `path`; `None` when it is not of this
    /// package.
    #[must_use]
    pub fn definer(&self, module: &[String], path: &[String]) -> Option<ModulePath> {
        self.follow(module, path, IMPORTS_MAX)
    }

    fn follow(&self, module: &[String], path: &[String], imports: usize) -> Option<ModulePath> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => self.walk(&[], rest, imports),
            "self" => self.walk(module, rest, imports),
            "super" => {
                let (_, parent) = module.split_last()?;
                match rest.first() {
                    Some(next) if next == "super" => self.follow(parent, rest, imports),
                    _ => self.walk(parent, rest, imports),
                }
            }
            _ if self.knows(module, first) => self.walk(module, path, imports),
            _ => None,
        }
    }

    /// Whether `name` alone is something of this package, for `module`.
    fn knows(&self, module: &[String], name: &String) -> bool {
        let node = self.modules.get(module);
        let imported = node.and_then(|node| node.content.imports.get(name));
        self.modules.contains_key(&below(module, name))
            || imported.is_some_and(|path| path.first() != Some(name))
    }

    /// The module that defines what is at `path` below `module`.
    fn walk(&self, module: &[String], path: &[String], imports: usize) -> Option<ModulePath> {
        let node = self.modules.get(module)?;
        let Some((name, rest)) = path.split_first() else { return Some(module.to_vec()) };
        let child = below(module, name);
        if self.modules.contains_key(&child) {
            return self.walk(&child, rest, imports);
        }
        if node.content.items.contains(name) || imports == 0 {
            return Some(module.to_vec());
        }
        if let Some(import) = node.content.imports.get(name) {
            return self.follow(module, &[import, rest].concat(), imports - 1);
        }
        let globs = node.content.globs.iter();
        let through = globs.filter_map(|glob| {
            let definer = self.follow(module, glob, imports - 1)?;
            if definer == module { None } else { self.defines(&definer, path, imports - 1) }
        });
        Some(through.into_iter().next().unwrap_or_else(|| module.to_vec()))
    }

    /// As [`Self::walk`], if there is such a thing.
    fn defines(&self, module: &[String], path: &[String], imports: usize) -> Option<ModulePath> {
        let content = &self.modules.get(module)?.content;
        let name = path.first()?;
        let there = content.items.contains(name)
            || content.imports.contains_key(name)
            || self.modules.contains_key(&below(module, name));
        if there { self.walk(module, path, imports) } else { None }
    }
}

/// The module `name` in `module`.
fn below(module: &[String], name: &str) -> ModulePath {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Vec<String> {
        text.split("::").map(str::to_owned).collect()
    }

    #[test]
    fn what_is_named_is_found_where_it_is_defined() {
        let tree = SourceTree::of(&[
            ("p/src/lib.rs", "mod low; mod high; pub use low::Thing;"),
            (
                "p/src/low/mod.rs",
                "mod deep; pub use deep::{Thing, Other as Renamed}; pub use deep::*;",
            ),
            ("p/src/low/deep.rs", "pub struct Thing; pub struct Other; pub fn loose() {}"),
            ("p/src/high.rs", "use crate::low; use std::fmt; mod inner { }"),
        ]);
        let modules = ModuleTree::of(&tree, "p/src/lib.rs").unwrap();
        let definer = |of: &str, named: &str| {
            modules.definer(&path(of), &path(named)).map(|module| module.join("::"))
        };
        for named in [
            "crate::Thing::new",
            "crate::low::Thing",
            "crate::low::Renamed",
            "crate::low::loose",
            "super::low::deep::Other",
            "low::Thing",
        ] {
            assert_eq!(definer("high", named).as_deref(), Some("low::deep"), "{named}");
        }
        assert_eq!(definer("high", "self::inner::x").as_deref(), Some("high::inner"));
        assert_eq!(
            definer("high::inner", "super::super::low::Thing").as_deref(),
            Some("low::deep")
        );
        assert_eq!(definer("high", "crate::unknown").as_deref(), Some(""));
        for foreign in ["std::fmt", "fmt::Debug", "other::Thing"] {
            assert_eq!(definer("high", foreign), None, "{foreign}");
        }
    }

    #[test]
    fn files_that_are_no_rust_are_told_of() {
        let tree = SourceTree::of(&[("p/src/lib.rs", "mod a;"), ("p/src/a.rs", "fn {")]);
        assert_eq!(ModuleTree::of(&tree, "p/src/lib.rs").unwrap_err()[0].path, "p/src/a.rs");
    }
}

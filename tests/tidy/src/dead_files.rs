//! Every Rust file is compiled: a target starts with it, or a `mod` names it.

use std::collections::BTreeSet;

use super::modules::{Module, modules};
use super::packages::Package;
use super::source_tree::{SourceFile, SourceTree};
use super::violation::Violation;

/// Rust files that no target of `packages` reaches.
#[must_use]
pub fn check(tree: &SourceTree, packages: &[Package]) -> Vec<Violation> {
    let roots: BTreeSet<_> = packages.iter().flat_map(|package| &package.targets).collect();
    let mut violations = Vec::new();
    let mut reached = BTreeSet::new();
    let mut open: Vec<_> = roots.iter().filter_map(|path| tree.get(path)).collect();
    while let Some(file) = open.pop() {
        if !reached.insert(file.path.as_str()) {
            continue;
        }
        match modules(&file.text) {
            Ok(modules) => {
                let folder = own_folder(file, roots.contains(&file.path));
                let named = modules.iter().flat_map(|module| files_of(module, file, &folder));
                open.extend(named.filter_map(|path| tree.get(&path)));
            }
            Err(error) => {
                let line = error.span().start().line;
                violations.push(Violation::at(&file.path, line, format!("no Rust: {error}")));
            }
        }
    }
    let rust = tree.files.iter().filter(|file| file.is_rust());
    let dead = rust.filter(|file| !reached.contains(file.path.as_str()));
    let message = "no target reaches it: declare it with `mod`, or remove it";
    violations.extend(dead.map(|file| Violation::of_file(&file.path, message)));
    violations
}

/// The folder in which the modules of `file` are.
fn own_folder(file: &SourceFile, is_root: bool) -> String {
    let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    match name.strip_suffix(".rs") {
        Some(stem) if !is_root && stem != "mod" => format!("{folder}/{stem}"),
        _ => folder.to_owned(),
    }
}

/// Where a module that `file` declares may be.
fn files_of(module: &Module, file: &SourceFile, own_folder: &str) -> Vec<String> {
    if module.is_inline {
        return Vec::new();
    }
    if let Some(named) = &module.file {
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        return vec![format!("{folder}/{named}")];
    }
    let path = module.path.join("/");
    vec![format!("{own_folder}/{path}.rs"), format!("{own_folder}/{path}/mod.rs")]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(targets: &[&str], files: &[(&str, &str)]) -> Vec<String> {
        let targets = targets.iter().map(|path| (*path).to_owned()).collect();
        let package = Package { targets, ..Package::default() };
        let found = check(&SourceTree::of(files), &[package]);
        found.into_iter().map(|found| found.path).collect()
    }

    #[test]
    fn what_targets_reach_is_alive() {
        let files = [
            (
                "a/src/lib.rs",
                "pub mod b;\n#[cfg(test)]\nmod c;\nfn f() { if x { } }\nmod i { mod j; }",
            ),
            ("a/src/b.rs", "mod inner;\n#[path = \"odd.rs\"]\nmod even;"),
            ("a/src/odd.rs", ""),
            ("a/src/b/inner.rs", ""),
            ("a/src/c/mod.rs", "mod deep;"),
            ("a/src/c/deep.rs", ""),
            ("a/src/i/j.rs", ""),
            ("a/tests/suite.rs", "mod part;"),
            ("a/tests/part/mod.rs", ""),
            ("a/benches/speed/main.rs", "mod lap;"),
            ("a/benches/speed/lap.rs", ""),
        ];
        let targets = ["a/src/lib.rs", "a/tests/suite.rs", "a/benches/speed/main.rs"];
        assert_eq!(dead(&targets, &files), [""; 0]);
    }

    #[test]
    fn what_nothing_names_is_dead() {
        let files = [
            ("a/src/lib.rs", "// mod b;\nmod c { }\nconst D: &str = \"mod d;\";"),
            ("a/src/b.rs", "mod e;"),
            ("a/src/b/e.rs", ""),
            ("a/src/c.rs", ""),
            ("a/src/d.rs", ""),
            ("a/tests/part/mod.rs", ""),
            ("stray.rs", ""),
        ];
        let all_but_the_root: Vec<_> = files[1..].iter().map(|(path, _)| *path).collect();
        assert_eq!(dead(&["a/src/lib.rs"], &files), all_but_the_root);
    }

    #[test]
    fn what_is_no_rust_is_told() {
        assert_eq!(dead(&["a/src/lib.rs"], &[("a/src/lib.rs", "mod {")]), ["a/src/lib.rs"]);
    }
}

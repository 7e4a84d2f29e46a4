//! Every Rust file is compiled: a target starts with it, or a `mod` names it.

use std::collections::BTreeSet;

use super::manifest::Manifest;
use super::rust_source::{code_only, words};
use super::{SourceFile, SourceTree, Violation};

/// Rust files that no target reaches.
#[must_use]
pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<_> = tree.files.iter().filter(|file| is_root(tree, file)).collect();
    let roots: BTreeSet<_> = open.iter().map(|file| file.path.as_str()).collect();
    while let Some(file) = open.pop() {
        if reached.insert(file.path.as_str()) {
            let named = named_by(file, roots.contains(file.path.as_str()));
            open.extend(named.iter().filter_map(|path| tree.get(path)));
        }
    }
    let rust = tree.files.iter().filter(|file| file.is_rust());
    let dead = rust.filter(|file| !reached.contains(file.path.as_str()));
    let message = "no target reaches it: declare it with `mod`, or remove it";
    dead.map(|file| Violation::of_file(&file.path, message)).collect()
}

/// Whether a target starts with `file`.
fn is_root(tree: &SourceTree, file: &SourceFile) -> bool {
    Manifest::all(tree).any(|manifest| {
        if manifest.target_paths.contains(&file.path) {
            return true;
        }
        let Some(path) = file.path.strip_prefix(manifest.folder()) else {
            return false;
        };
        match path.split('/').collect::<Vec<_>>()[..] {
            ["build.rs"] | ["src", "lib.rs" | "main.rs"] => true,
            ["tests" | "benches" | "examples", name] | ["src", "bin", name] => {
                name.ends_with(".rs")
            }
            ["tests" | "benches" | "examples", _, "main.rs"] | ["src", "bin", _, "main.rs"] => true,
            _ => false,
        }
    })
}

/// Where the modules that `file` declares may be.
fn named_by(file: &SourceFile, is_root: bool) -> Vec<String> {
    let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    let folder = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    let mut paths: Vec<_> = file
        .text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("#[path = \"")?.strip_suffix("\"]"))
        .map(|path| format!("{folder}{path}"))
        .collect();

    let own = match name.strip_suffix(".rs") {
        Some(stem) if !is_root && stem != "mod" => format!("{folder}{stem}/"),
        _ => folder,
    };
    // The modules around the current place; `None` for any other block.
    let mut blocks: Vec<Option<&str>> = Vec::new();
    let code = code_only(&file.text);
    let (mut before, mut last) = ("", "");
    for (_, word) in words(&code) {
        let declared = (before == "mod").then_some(last);
        match word {
            "{" => blocks.push(declared),
            "}" => {
                blocks.pop();
            }
            ";" => {
                if let Some(module) = declared {
                    let inside: String =
                        blocks.iter().flatten().map(|block| format!("{block}/")).collect();
                    paths.push(format!("{own}{inside}{module}.rs"));
                    paths.push(format!("{own}{inside}{module}/mod.rs"));
                }
            }
            _ => {}
        }
        (before, last) = (last, word);
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: (&str, &str) = ("a/Cargo.toml", "[package]\nname = \"a\"\n");

    fn dead(files: &[(&str, &str)]) -> Vec<String> {
        let files = [&[MANIFEST], files].concat();
        check(&SourceTree::of(&files)).into_iter().map(|found| found.path).collect()
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
            ("a/src/bin/tool.rs", ""),
            ("a/src/main.rs", ""),
            ("a/build.rs", ""),
            ("a/tests/suite.rs", "mod part;"),
            ("a/tests/part/mod.rs", ""),
            ("a/benches/speed/main.rs", "mod lap;"),
            ("a/benches/speed/lap.rs", ""),
        ];
        assert_eq!(dead(&files), [""; 0]);
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
        assert_eq!(dead(&files), all_but_the_root);
    }

    #[test]
    fn targets_may_be_named_in_the_manifest() {
        let manifest = "[package]\nname = \"b\"\n[[bench]]\npath = \"speed/it.rs\"\n";
        let files =
            [("b/Cargo.toml", manifest), ("b/speed/it.rs", "mod lap;"), ("b/speed/lap.rs", "")];
        assert_eq!(dead(&files), [""; 0]);
    }
}

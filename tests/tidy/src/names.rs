//! Names say what is inside.

use super::modules::modules;
use super::source_tree::SourceTree;
use super::violation::Violation;

/// Names of files, folders and modules that say nothing.
const SAY_NOTHING: &[&str] =
    &["common", "helper", "helpers", "manager2", "misc", "util", "utilities", "utils"];

/// Files, folders and modules with names that say nothing.
#[must_use]
pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in &tree.files {
        let stems = file.path.split('/').map(|part| part.split('.').next().unwrap_or(part));
        for stem in stems.filter(|stem| SAY_NOTHING.contains(stem)) {
            violations.push(Violation::of_file(&file.path, message(stem)));
        }
        if !file.is_rust() {
            continue;
        }
        for module in modules(&file.text).unwrap_or_default() {
            if let Some(name) = module.path.last()
                && SAY_NOTHING.contains(&name.as_str())
            {
                violations.push(Violation::at(&file.path, module.line, message(name)));
            }
        }
    }
    violations
}

fn message(name: &str) -> String {
    format!("\"{name}\" says nothing: name it after what it does")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_say_nothing_are_found() {
        for (path, text) in [
            ("a/src/utils.rs", ""),
            ("a/src/utils/mod.rs", ""),
            ("tests/common/mod.rs", ""),
            ("python/helpers.py", ""),
            ("a/src/lib.rs", "fn f() {}\npub mod misc {}"),
        ] {
            let found = check(&SourceTree::of(&[(path, text)]));
            assert_eq!(found.len(), 1, "{path}: {found:?}");
        }
    }

    #[test]
    fn names_that_contain_such_a_word_pass() {
        let text = "// mod utils;\nmod commonplace; fn common() {}";
        assert_eq!(check(&SourceTree::of(&[("a/src/futility.rs", text)])), []);
    }
}

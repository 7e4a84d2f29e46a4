//! One idea a file: files are short.

use super::source_tree::SourceTree;
use super::violation::Violation;

/// Most lines a file may have.
const LINES_MAX: usize = 800;
/// Half of the files have fewer lines than this.
const LINES_MEDIAN: usize = 200;

/// Files that are too long, or a tree whose files are long as a rule.
#[must_use]
pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let code = tree.files.iter().filter(|file| matches!(file.extension(), "rs" | "py"));
    let sized = code.map(|file| (file.text.lines().count(), file.path.as_str()));
    let mut sizes: Vec<_> = sized.collect();
    sizes.sort_unstable();

    let too_long = sizes.iter().filter(|(lines, _)| *lines > LINES_MAX);
    let mut violations: Vec<_> = too_long
        .map(|(lines, path)| {
            Violation::of_file(path, format!("has {lines} lines, {LINES_MAX} at most: split it"))
        })
        .collect();
    if let Some((lines, path)) = sizes.get(sizes.len() / 2)
        && *lines >= LINES_MEDIAN
    {
        let message = format!(
            "has {lines} lines and is the median: half of all files are to be under {LINES_MEDIAN}"
        );
        violations.push(Violation::of_file(path, message));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(files: &[(&str, usize)]) -> Vec<String> {
        let texts: Vec<_> = files.iter().map(|(_, lines)| "x\n".repeat(*lines)).collect();
        let files: Vec<_> =
            files.iter().zip(&texts).map(|((path, _), text)| (*path, &**text)).collect();
        check(&SourceTree::of(&files)).into_iter().map(|found| found.path).collect()
    }

    #[test]
    fn the_limit_is_kept_to_the_line() {
        assert_eq!(paths(&[("a.rs", 800), ("b.py", 1), ("c.rs", 1)]), [""; 0]);
        assert_eq!(paths(&[("a.rs", 801), ("b.py", 1), ("c.rs", 1)]), ["a.rs"]);
        assert_eq!(paths(&[("a.rs", 1), ("b.py", 801), ("c.rs", 1)]), ["b.py"]);
        assert_eq!(paths(&[("data.txt", 9000)]), [""; 0]);
    }

    #[test]
    fn the_median_is_kept_to_the_line() {
        assert_eq!(paths(&[("a.rs", 1), ("b.rs", 199), ("c.rs", 700)]), [""; 0]);
        assert_eq!(paths(&[("a.rs", 1), ("b.rs", 200), ("c.rs", 700)]), ["b.rs"]);
        assert_eq!(paths(&[]), [""; 0]);
    }
}

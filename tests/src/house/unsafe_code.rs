//! `unsafe` is where the design wants it, and argued for.

use super::rust_source::{code_only, words};
use super::{SourceTree, Violation};

/// The files that may have unsafe code. One that needs none any more leaves the list.
pub const ALLOWED: &[&str] = &[
    "connector/capi/src/attached.rs",
    "connector/capi/src/error.rs",
    "connector/capi/src/heap.rs",
    "connector/capi/src/init.rs",
    "connector/capi/src/locks.rs",
    "connector/capi/src/memory.rs",
    "connector/capi/src/per_process.rs",
    "connector/capi/src/roots.rs",
    "connector/capi/src/session/arguments.rs",
    "connector/capi/src/session/error.rs",
    "connector/capi/src/session/fetch.rs",
    "connector/capi/src/session/gpu.rs",
    "connector/capi/src/session/hashes.rs",
    "connector/capi/src/session/lent.rs",
    "connector/capi/src/session/lookup.rs",
    "connector/capi/src/session/model.rs",
    "connector/capi/src/session/opening.rs",
    "connector/capi/src/session/options.rs",
    "connector/capi/src/session/pool.rs",
    "connector/capi/src/session/prefix.rs",
    "connector/capi/src/session/publish.rs",
    "connector/capi/src/session/reason.rs",
    "connector/capi/src/text.rs",
    "connector/capi/tests/c_program.rs",
    "connector/gpu-check/src/transfers/on_gpu.rs",
    "connector/python/src/gpu.rs",
    "connector/python/src/memory.rs",
    "connector/src/dma/cuda/bounce.rs",
    "connector/src/dma/cuda/copies.rs",
    "connector/src/dma/cuda/driver.rs",
    "connector/src/dma/cuda/engine.rs",
    "connector/src/dma/cuda/memory.rs",
    "connector/src/dma/cuda/registration.rs",
    "connector/src/dma/cuda/turn.rs",
    "connector/src/dma/host_copy_aarch64.rs",
    "benches/compare/src/stores/lmdb.rs",
    "benches/src/ceiling.rs",
    "connector/src/dma/host_copy_x86_64.rs",
    "cxl-shm/src/fabric/flush_aarch64.rs",
    "cxl-shm/src/fabric/flush_x86_64.rs",
    "cxl-shm/src/fabric/mapped.rs",
    "cxl-shm/src/fork.rs",
    "cxl-shm/src/log_thread.rs",
    "cxl-shm/src/member/life_lock.rs",
];

/// Unsafe code outside `allowed`, unsafe code without its argument, and files that are in
/// `allowed` without need.
#[must_use]
pub fn check(tree: &SourceTree, allowed: &[&str]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        let code = code_only(&file.text);
        let uses = words(&code).filter(|(_, word)| *word == "unsafe");
        let lines: Vec<_> = uses.map(|(at, _)| code[..at].matches('\n').count()).collect();
        if !allowed.contains(&file.path.as_str()) {
            let message = "unsafe code: only the files in tests/src/house/unsafe_code.rs have any";
            violations
                .extend(lines.iter().map(|line| Violation::at(&file.path, line + 1, message)));
            continue;
        }
        if lines.is_empty() {
            let message = "has no unsafe code any more: take it off the list of those that may";
            violations.push(Violation::of_file(&file.path, message));
        }
        let (text, code): (Vec<_>, Vec<_>) = (file.text.lines().collect(), code.lines().collect());
        for line in lines {
            if !is_argued(&text, &code, line) {
                let message = "say directly above why it is sound: `// SAFETY:`, or `# Safety` for \
                               what the caller of an unsafe function has to see to";
                violations.push(Violation::at(&file.path, line + 1, message));
            }
        }
    }
    for path in allowed.iter().filter(|path| tree.get(path).is_none()) {
        let message = "may have unsafe code but does not exist: take it off the list";
        violations.push(Violation::of_file(path, message));
    }
    violations
}

/// Whether the comment directly above the statement or item of `line` argues that it is sound.
fn is_argued(text: &[&str], code: &[&str], line: usize) -> bool {
    let mut above = line;
    // Up to where the statement begins: attributes and lines that nothing ends belong to it.
    while above > 0 {
        let previous = code[above - 1].trim();
        let ends = previous.ends_with([';', '{', '}', ',', '>']) && !previous.starts_with("#[");
        if previous.is_empty() || ends {
            break;
        }
        above -= 1;
    }
    text[..above]
        .iter()
        .rev()
        .take_while(|line| line.trim().starts_with("//"))
        .any(|line| line.contains("SAFETY:") || line.contains("# Safety"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "
/// Does it.
///
/// # Safety
/// The caller vouches.
#[inline]
pub unsafe fn f(p: *const u8) -> u8 {
    // SAFETY: the caller vouches,
    // at length.
    let x =
        unsafe { *p };
    let unsafe_code = \"unsafe\"; // unsafe
    // SAFETY: as above.
    unsafe { *p }
}
";

    fn messages(path: &str, text: &str, allowed: &[&str]) -> Vec<(usize, String)> {
        let violations = check(&SourceTree::of(&[(path, text)]), allowed);
        violations.into_iter().map(|found| (found.line, found.message)).collect()
    }

    #[test]
    fn argued_code_in_a_listed_file_passes() {
        assert_eq!(messages("a/b.rs", GOOD, &["a/b.rs"]), []);
        assert_eq!(messages("a/b.rs", "// unsafe\nfn f() {}", &[]), []);
    }

    #[test]
    fn unsafe_code_elsewhere_is_found() {
        let found = messages("a/b.rs", GOOD, &[]);
        assert_eq!(found.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [7, 11, 14]);
    }

    #[test]
    fn unsafe_code_without_an_argument_is_found() {
        for text in [
            "fn f() {\n    unsafe { g() }\n}",
            "// SAFETY: not of this one.\nlet a = 1;\nunsafe { g() }",
            "// SAFETY: a blank line is between.\n\nunsafe { g() }",
            "/// Says nothing.\npub unsafe fn f() {}",
            "match a {\n    // SAFETY: of the first arm.\n    1 => unsafe { g() },\n    _ => unsafe { h() },\n}",
        ] {
            let found = messages("a.rs", text, &["a.rs"]);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(found[0].1.starts_with("say directly above"), "{found:?}");
        }
    }

    #[test]
    fn the_list_does_not_outlive_its_reasons() {
        let found = messages("a.rs", "fn f() {}", &["a.rs"]);
        assert!(found[0].1.contains("no unsafe code any more"), "{found:?}");
        let found = messages("a.rs", "fn f() {}", &["gone.rs"]);
        assert!(found[0].1.contains("does not exist"), "{found:?}");
    }
}

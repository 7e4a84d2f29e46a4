//! `unsafe` is where the design wants it, and argued for. Clippy demands the argument of blocks,
//! implementations and functions; that of attributes and foreign functions is demanded here.

use proc_macro2::{TokenStream, TokenTree};

use super::source_tree::SourceTree;
use super::violation::Violation;

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
    "connector/capi/src/session/directives.rs",
    "connector/capi/src/session/error.rs",
    "connector/capi/src/session/fetch.rs",
    "connector/capi/src/session/gpu.rs",
    "connector/capi/src/session/hashes.rs",
    "connector/capi/src/session/layered_fetch.rs",
    "connector/capi/src/session/layered_publish.rs",
    "connector/capi/src/session/layers.rs",
    "connector/capi/src/session/lent.rs",
    "connector/capi/src/session/lookup.rs",
    "connector/capi/src/session/model.rs",
    "connector/capi/src/session/opening.rs",
    "connector/capi/src/session/options.rs",
    "connector/capi/src/session/pool.rs",
    "connector/capi/src/session/prefetch.rs",
    "connector/capi/src/session/prefix.rs",
    "connector/capi/src/session/publish.rs",
    "connector/capi/src/session/reason.rs",
    "connector/capi/src/text.rs",
    "connector/capi/tests/c_program.rs",
    "connector/gpu-check/src/file_reads.rs",
    "connector/gpu-check/src/speed/parts.rs",
    "connector/gpu-check/src/speed/work.rs",
    "connector/gpu-check/src/transfers/on_gpu.rs",
    "connector/python/src/gpu.rs",
    "connector/python/src/memory.rs",
    "connector/src/dma/cuda/bounce.rs",
    "connector/src/dma/cuda/copies.rs",
    "connector/src/dma/cuda/driver.rs",
    "connector/src/dma/cuda/engine.rs",
    "connector/src/dma/cuda/layers.rs",
    "connector/src/dma/cuda/memory.rs",
    "connector/src/dma/cuda/registration/mapped.rs",
    "connector/src/dma/cuda/runs.rs",
    "connector/src/dma/cuda/sums.rs",
    "connector/src/dma/cuda/turn.rs",
    "connector/src/dma/cuda/whole.rs",
    "connector/src/dma/host_copy_aarch64.rs",
    "connector/src/memory/lent.rs",
    "connector/tests/forked.rs",
    "benches/compare/src/stores/lmdb.rs",
    "benches/src/ceiling.rs",
    "benches/src/ring.rs",
    "connector/src/dma/checked_copy_x86_64.rs",
    "connector/src/dma/host_copy_x86_64.rs",
    "cxl-shm/src/fabric/flush_aarch64.rs",
    "cxl-shm/src/fabric/flush_x86_64.rs",
    "cxl-shm/src/fabric/mapped.rs",
    "cxl-shm/src/fabric/sigbus.rs",
    "cxl-shm/src/verify/poison.rs",
    "cxl-shm/tests/memory_faults.rs",
    "cxl-shm/src/fork.rs",
    "cxl-shm/src/log_thread.rs",
    "cxl-shm/src/host/life_lock.rs",
    "drive/src/io/buffer.rs",
    "drive/src/io/posix.rs",
    "drive/src/io/uring.rs",
];

/// Unsafe code outside `allowed`, unsafe attributes and foreign functions without their argument,
/// and files that are in `allowed` without need.
#[must_use]
pub fn check(tree: &SourceTree, allowed: &[&str]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        let mut uses = Vec::new();
        match file.text.parse() {
            Ok(tokens) => find(tokens, &mut uses),
            Err(error) => {
                violations.push(Violation::of_file(&file.path, format!("no Rust: {error}")));
                continue;
            }
        }
        if !allowed.contains(&file.path.as_str()) {
            let message = "unsafe code: only the files in tests/tidy/src/unsafe_code.rs have any";
            violations.extend(uses.iter().map(|it| Violation::at(&file.path, it.line, message)));
            continue;
        }
        if uses.is_empty() {
            let message = "has no unsafe code any more: take it off the list of those that may";
            violations.push(Violation::of_file(&file.path, message));
        }
        let lines: Vec<_> = file.text.lines().collect();
        for it in uses.iter().filter(|it| !it.seen_by_clippy && !is_argued(&lines, it.line)) {
            let message = "say directly above why it is sound: `// SAFETY:`";
            violations.push(Violation::at(&file.path, it.line, message));
        }
    }
    for path in allowed.iter().filter(|path| tree.get(path).is_none()) {
        let message = "may have unsafe code but does not exist: take it off the list";
        violations.push(Violation::of_file(path, message));
    }
    violations
}

/// The word `unsafe` in code.
struct Use {
    /// Its line, counted from 1.
    line: usize,
    /// Whether clippy demands its argument.
    seen_by_clippy: bool,
}

fn find(tokens: TokenStream, uses: &mut Vec<Use>) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Ident(word) if word == "unsafe" => {
                let attribute = matches!(tokens.get(at + 1), Some(TokenTree::Group(it))
                    if it.delimiter() == proc_macro2::Delimiter::Parenthesis);
                // `unsafe extern "C" { ... }`
                let foreign = matches!(tokens.get(at + 1), Some(TokenTree::Ident(it)) if it == "extern")
                    && matches!(tokens.get(at + 3), Some(TokenTree::Group(_)));
                let line = word.span().start().line;
                uses.push(Use { line, seen_by_clippy: !attribute && !foreign });
            }
            TokenTree::Group(group) => find(group.stream(), uses),
            _ => {}
        }
    }
}

/// Whether the comment directly above `line`, and above other attributes there, argues.
fn is_argued(lines: &[&str], line: usize) -> bool {
    let above = lines[..line - 1].iter().rev().map(|line| line.trim());
    above
        .skip_while(|line| line.starts_with("#["))
        .take_while(|line| line.starts_with("//"))
        .any(|line| line.contains("SAFETY:"))
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
    fn attributes_and_foreign_functions_without_an_argument_are_found() {
        for text in [
            "#[unsafe(no_mangle)]\nfn f() {}",
            "unsafe extern \"C\" {\n    fn f();\n}",
            "// SAFETY: not of this one.\nfn f() {}\n#[unsafe(no_mangle)]\nfn g() {}",
            "// SAFETY: a blank line is between.\n\n#[unsafe(no_mangle)]\nfn f() {}",
            "/// Says nothing.\n#[unsafe(no_mangle)]\nfn f() {}",
        ] {
            let found = messages("a.rs", text, &["a.rs"]);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(found[0].1.starts_with("say directly above"), "{found:?}");
        }
        for text in [
            "// SAFETY: the only one of this name.\n#[unsafe(no_mangle)]\nfn f() {}",
            "// SAFETY: the only one of this name.\n#[inline]\n#[unsafe(no_mangle)]\nfn f() {}",
            "// SAFETY: as it is declared there.\nunsafe extern \"C\" {\n    fn f();\n}",
            "unsafe extern \"C\" fn f() {}",
        ] {
            assert_eq!(messages("a.rs", text, &["a.rs"]), [], "{text}");
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

//! The examples of the README compile, and do what they say.
#![expect(clippy::unwrap_used, reason = "a test")]

mod driver;
mod program;
mod region;

use std::path::Path;

use driver::compile_with_driver;
use program::{compile, finish, start};
use region::Pool;

/// The one example that begins with `fence`, in a file for the compiler of `language`.
fn example(fence: &str, language: &str, folder: &Path) -> std::path::PathBuf {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let fence = format!("```{fence}\n");
    let mut blocks = readme.split(&fence).skip(1);
    let example = blocks.next().unwrap().split("\n```").next().unwrap();
    assert!(blocks.next().is_none(), "one example in {language}");
    let source = folder.join(format!("example.{language}"));
    std::fs::write(&source, format!("{example}\n")).unwrap();
    source
}

fn run(program: &Path, pool: &Pool) -> String {
    finish(start(program, pool.path(), &[]))
}

#[test]
fn the_example_in_c_finds_what_it_published() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(&example("c", "c", folder.path()), folder.path());
    let pool = Pool::new(16 << 20);
    assert_eq!(run(&program, &pool), "fetched 0, published 3\n");
    assert_eq!(run(&program, &pool), "fetched 3, published 0\n");
    assert!(pool.host_tiers().is_empty(), "it has left: {:?}", pool.host_tiers());
}

#[test]
fn the_example_in_cpp_finds_what_it_published() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(&example("cpp", "cpp", folder.path()), folder.path());
    let pool = Pool::new(16 << 20);
    assert_eq!(run(&program, &pool), "published 1, fetched 1\n");
    assert!(pool.host_tiers().is_empty(), "it has left: {:?}", pool.host_tiers());
}

#[test]
fn the_example_with_a_gpu_publishes_from_its_memory_and_fetches_into_it() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile_with_driver(&example("c gpu", "c", folder.path()), folder.path());
    let pool = Pool::new(16 << 20);
    assert_eq!(run(&program, &pool), "stored 65536, loaded 65536, bounced 0\n");
    assert_eq!(run(&program, &pool), "stored 0, loaded 65536, bounced 0\n");
    assert!(pool.host_tiers().is_empty(), "it has left: {:?}", pool.host_tiers());
}

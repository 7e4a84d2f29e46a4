//! The rules of the house, kept by this repository. What each forbids, and a tree that breaks it,
//! is in `src/house`.

use std::path::Path;

use rackline_tests::house::{
    SourceTree, Violation, dead_files, dependencies, file_size, names, unsafe_code, words,
};

fn repository() -> SourceTree {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let tree = SourceTree::read(&root).expect("the repository can be read");
    assert!(tree.get("cxl-shm/src/lib.rs").is_some(), "not the repository");
    tree
}

#[track_caller]
fn assert_kept(violations: &[Violation]) {
    let lines: Vec<_> = violations.iter().map(|found| format!("\n  {found}")).collect();
    assert!(violations.is_empty(), "{}", lines.concat());
}

#[test]
fn unsafe_code_is_where_the_design_wants_it_and_argued_for() {
    assert_kept(&unsafe_code::check(&repository(), unsafe_code::ALLOWED));
}

#[test]
fn files_are_short() {
    assert_kept(&file_size::check(&repository()));
}

#[test]
fn names_say_what_is_inside() {
    assert_kept(&names::check(&repository()));
}

#[test]
fn nothing_is_unfinished_or_of_one_machine() {
    assert_kept(&words::check(&repository()));
}

#[test]
fn sources_are_ascii() {
    assert_kept(&words::check_ascii(&repository()));
}

#[test]
fn dependencies_run_downward_and_lints_are_kept() {
    assert_kept(&dependencies::check(&repository()));
}

#[test]
fn every_rust_file_is_compiled() {
    assert_kept(&dead_files::check(&repository()));
}

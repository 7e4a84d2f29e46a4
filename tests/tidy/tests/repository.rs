//! The rules of the house, kept by this repository. What each forbids, and a tree that breaks it,
//! is in `src`.

use std::path::{Path, PathBuf};

use tidy::{
    Package, SourceTree, Violation, dead_files, dependencies, file_size, floors, licences, names,
    packages, rule_names, shipped, unsafe_code, words,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn all_packages() -> Vec<Package> {
    packages::packages(&root()).expect("cargo tells of the packages")
}

fn repository() -> SourceTree {
    let root = root();
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
    assert_kept(&dependencies::check(&repository(), &all_packages()));
}

#[test]
fn imports_between_folders_run_one_way() {
    let text = std::fs::read_to_string(root().join(floors::FILE)).expect("the floors can be read");
    let floors = floors::Floors::read(&text).expect("the floors are declared");
    assert_kept(&floors::check(&repository(), &all_packages(), &floors));
}

#[test]
fn every_rust_file_is_compiled() {
    let apart = packages::packages_apart(&root()).expect("cargo tells of the packages");
    assert_kept(&dead_files::check(&repository(), &[all_packages(), apart].concat()));
}

#[test]
fn what_is_built_in_is_under_licences_that_are_allowed() {
    let text = std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml can be read");
    let policy = toml::from_str(&text).expect("deny.toml is one");
    let crates = licences::crates(&root(), &policy).expect("cargo tells of all crates");
    assert!(crates.len() > 100, "{crates:?}");
    assert_kept(&licences::check(&policy, &crates).expect("deny.toml names licences"));
}

#[test]
fn what_ships_has_no_test_machinery_in_it() {
    let found_in = |package: &str| {
        let built = shipped::built_with(&root(), package).unwrap_or_else(|error| panic!("{error}"));
        shipped::check(package, &built)
    };
    let names = all_packages().into_iter().map(|package| package.name);
    let shipped: Vec<_> = names.filter(|name| shipped::ships(name)).collect();
    assert!(shipped.len() > 8, "{shipped:?}");
    for package in shipped {
        assert_kept(&found_in(&package));
    }
    // What the rule looks for is found where it is.
    let found: Vec<_> = found_in("rackline-tests").iter().map(ToString::to_string).collect();
    for machinery in ["\"sim\"", "\"verify\"", "\"crash-points\"", "\"generator\""] {
        assert!(found.iter().any(|found| found.contains(machinery)), "no {machinery}: {found:?}");
    }
}

#[test]
fn every_rule_is_stated_once_and_cited() {
    assert_kept(&rule_names::check(&repository()));
}

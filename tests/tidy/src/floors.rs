//! Floors inside a package: imports between its folders run one way.
//!
//! `floors.toml` has a list of floors for each package, the lowest first. A floor is one folder or
//! file of the package's sources or several. What is on a floor uses what is on lower floors, and
//! nothing else of the package: nothing above, and nothing beside it. So no two folders import each
//! other. A folder inside another may be on a floor of its own; the rest of the outer one is on its
//! floor then. The root of a package uses everything.
//!
//! A path counts where it leads: to the module that defines the thing, whichever module re-exports
//! it. What is compiled for tests alone does not count.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::module_tree::{ModulePath, ModuleTree, Node};
use super::packages::Package;
use super::source_tree::SourceTree;
use super::violation::Violation;

/// The floors of all packages, as a file has them.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub struct Floors(BTreeMap<String, Building>);

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Building {
    /// From the lowest up: folders and files, relative to the sources, without `.rs`.
    floors: Vec<Vec<String>>,
}

/// The file that has them, relative to the root of the repository.
pub const FILE: &str = "tests/tidy/floors.toml";

impl Floors {
    /// The floors that `text` declares.
    ///
    /// # Errors
    /// Where it does not.
    pub fn read(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }
}

impl Building {
    /// The floor of a module and the folder that has it; `None` when no floor has.
    fn floor_of(&self, module: &[String]) -> Option<(usize, &str)> {
        let lengths = (1..=module.len()).rev();
        let folders = lengths.map(|length| module[..length].join("/"));
        folders.into_iter().find_map(|folder| {
            let floors = self.floors.iter().enumerate();
            let mut folders = floors.flat_map(|(at, floor)| floor.iter().map(move |it| (at, it)));
            folders.find(|(_, it)| **it == folder).map(|(at, it)| (at, it.as_str()))
        })
    }
}

/// Paths that lead up or sideways, and folders and packages without a floor.
#[must_use]
pub fn check(tree: &SourceTree, packages: &[Package], floors: &Floors) -> Vec<Violation> {
    let mut violations = Vec::new();
    for package in packages {
        let Some(root) = package.targets.iter().find(|path| path.ends_with("src/lib.rs")) else {
            continue;
        };
        let modules = match ModuleTree::of(tree, root) {
            Ok(modules) => modules,
            Err(no_rust) => {
                violations.extend(no_rust);
                continue;
            }
        };
        let Some(building) = floors.0.get(&package.name) else {
            let message = format!("\"{}\" has no floors: add them to {FILE}", package.name);
            violations.push(Violation::of_file(root, message));
            continue;
        };
        violations.extend(unknown(building, &modules, &package.name));
        // What stands in the root's file is the root, too.
        let inside = modules.modules.iter().filter(|(_, node)| node.file != *root);
        violations
            .extend(inside.flat_map(|(module, node)| upward(building, &modules, module, node)));
    }
    for name in floors.0.keys() {
        if !packages.iter().any(|package| package.name == *name) {
            violations.push(Violation::of_file(FILE, format!("there is no package \"{name}\"")));
        }
    }
    violations
}

/// Folders that the floors of a package name and that are not there.
fn unknown(building: &Building, modules: &ModuleTree, package: &str) -> Vec<Violation> {
    let named = building.floors.iter().flatten();
    let path = |folder: &str| folder.split('/').map(str::to_owned).collect::<ModulePath>();
    let gone = named.filter(|folder| !modules.modules.contains_key(&path(folder)));
    let message =
        |folder| format!("\"{package}\" has no module \"{folder}\": take it off its floors");
    gone.map(|folder| Violation::of_file(FILE, message(folder))).collect()
}

/// What `module` names that is not on a lower floor.
fn upward(
    building: &Building,
    modules: &ModuleTree,
    module: &ModulePath,
    node: &Node,
) -> Vec<Violation> {
    let Some((floor, folder)) = building.floor_of(module) else {
        let message = format!("\"{}\" is on no floor: add it to {FILE}", module.join("/"));
        return vec![Violation::of_file(&node.file, message)];
    };
    let mut violations = Vec::new();
    for named in &node.content.named {
        let Some(definer) = modules.definer(module, &named.path) else { continue };
        let below = match building.floor_of(&definer) {
            Some((other, it)) => it == folder || other < floor,
            // One that lacks a floor is told of by itself; the root is above all.
            None => !definer.is_empty(),
        };
        if !below {
            let other = if definer.is_empty() { "the root".to_owned() } else { definer.join("/") };
            let path = named.path.join("::");
            let message = format!(
                "`{path}` is of {other}, which is not on a lower floor than {folder} ({FILE}): \
                 move what is needed down, or hand it in from above"
            );
            violations.push(Violation::at(&node.file, named.line, message));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOORS: &str =
        "[p]\nfloors = [[\"low\"], [\"left\", \"right\"], [\"top/inner\"], [\"top\"]]\n";

    /// What is found when `file` has `text`, in a package where all else holds.
    fn found(file: &str, text: &str) -> Vec<String> {
        let mut files = vec![
            (
                "p/src/lib.rs",
                "mod low; mod left; mod right; mod top; pub use top::Top; mod guide {}",
            ),
            ("p/src/low.rs", "pub struct Low;"),
            ("p/src/left/mod.rs", "mod deep; pub use deep::Left;"),
            ("p/src/left/deep.rs", "use crate::low::Low; pub struct Left(Low);"),
            ("p/src/right.rs", "pub struct Right(crate::low::Low);"),
            ("p/src/top/mod.rs", "mod inner; use crate::left::Left; pub struct Top(Left);"),
            ("p/src/top/inner.rs", "use crate::right::Right;"),
        ];
        files.retain(|(path, _)| *path != file);
        files.push((file, text));
        let package = Package {
            name: "p".to_owned(),
            targets: vec!["p/src/lib.rs".to_owned()],
            ..Package::default()
        };
        let floors = Floors::read(FLOORS).unwrap();
        let violations = check(&SourceTree::of(&files), &[package], &floors);
        violations.into_iter().map(|found| format!("{}:{}", found.path, found.line)).collect()
    }

    #[test]
    fn what_runs_down_passes() {
        assert_eq!(
            found("p/src/top/inner.rs", "use crate::{low::Low, left::{self, Left}};"),
            [""; 0]
        );
        let tests = "#[cfg(test)] mod tests { use crate::top::Top; }";
        assert_eq!(found("p/src/low.rs", &format!("pub struct Low; {tests}")), [""; 0]);
        let itself = "pub struct Low; fn f() -> self::Low { crate::low::Low }";
        assert_eq!(found("p/src/low.rs", itself), [""; 0]);
        assert_eq!(found("p/src/low.rs", "//! [`Top`](crate::top::Top)\npub struct Low;"), [""; 0]);
    }

    #[test]
    fn two_folders_that_import_each_other_are_found() {
        let cycle = "pub struct Low;\nuse crate::left::Left;";
        assert_eq!(found("p/src/low.rs", cycle), ["p/src/low.rs:2"]);
    }

    #[test]
    fn what_runs_up_or_sideways_is_found() {
        for (file, text) in [
            ("p/src/low.rs", "pub struct Low; fn f() { crate::top::g() }"),
            ("p/src/low.rs", "pub struct Low; use super::{right, low};"),
            ("p/src/low.rs", "pub struct Low; use crate::Top;"),
            ("p/src/low.rs", "pub struct Low; mod inner { use super::super::right::Right; }"),
            ("p/src/low.rs", "pub struct Low; macro_rules! m { () => { $crate::right::Right } }"),
            ("p/src/right.rs", "use crate::left::Left; pub struct Right;"),
            ("p/src/right.rs", "use crate::left::*; pub struct Right;"),
            ("p/src/left/deep.rs", "pub struct Left; use super::super::right::Right;"),
            ("p/src/top/inner.rs", "use crate::right::Right; use super::Top;"),
            ("p/src/low.rs", "pub struct Low; fn f() { crate::of_the_root() }"),
        ] {
            assert_eq!(found(file, text), [format!("{file}:1")], "{text}");
        }
    }

    #[test]
    fn folders_and_packages_without_a_floor_are_found() {
        let with_more = "mod low; mod left; mod right; mod top; mod more;";
        let mut files = vec![("p/src/lib.rs", with_more), ("p/src/more.rs", "")];
        files.extend([("p/src/low.rs", ""), ("p/src/left.rs", ""), ("p/src/right.rs", "")]);
        files.push(("p/src/top.rs", ""));
        let package = |name: &str| Package {
            name: name.to_owned(),
            targets: vec!["p/src/lib.rs".to_owned()],
            ..Package::default()
        };
        let floors = Floors::read(FLOORS).unwrap();
        let tree = SourceTree::of(&files);
        let paths = |packages: &[Package]| -> Vec<String> {
            check(&tree, packages, &floors).into_iter().map(|found| found.path).collect()
        };
        // "top/inner" is not there.
        assert_eq!(paths(&[package("p")]), [FILE, "p/src/more.rs"]);
        assert_eq!(paths(&[package("q")]), ["p/src/lib.rs", FILE]);
    }
}

//! The packages of the repository, as cargo tells of them.

use std::path::Path;

use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};
use cargo_metadata::{Metadata, MetadataCommand};

/// A package of the repository.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its `Cargo.toml`, relative to the root of the repository.
    pub manifest: String,
    /// Packages it depends on, also for its tests and its build.
    pub dependencies: Vec<String>,
    /// The first source file of each of its targets, relative to the root of the repository.
    pub targets: Vec<String>,
}

/// Folders below the root with a workspace of their own.
const APART: &[&str] = &["tests/fuzz"];

/// The packages of the workspace at `root`, in order of their manifests.
///
/// # Errors
/// What `cargo metadata` fails with.
pub fn packages(root: &Path) -> Result<Vec<Package>, cargo_metadata::Error> {
    let metadata = metadata(root)?;
    let mut packages: Vec<_> = read(&metadata, &metadata.workspace_root).collect();
    packages.sort_by(|a, b| a.manifest.cmp(&b.manifest));
    Ok(packages)
}

/// The packages of the workspaces below the one at `root`.
///
/// # Errors
/// What `cargo metadata` fails with.
pub fn packages_apart(root: &Path) -> Result<Vec<Package>, cargo_metadata::Error> {
    let top = metadata(root)?.workspace_root;
    let mut packages = Vec::new();
    for folder in APART {
        packages.extend(read(&metadata(&root.join(folder))?, &top));
    }
    Ok(packages)
}

fn metadata(folder: &Path) -> Result<Metadata, cargo_metadata::Error> {
    MetadataCommand::new().current_dir(folder).no_deps().exec()
}

fn read(metadata: &Metadata, root: &Utf8Path) -> impl Iterator<Item = Package> {
    metadata.packages.iter().map(|package| read_one(package, root))
}

fn read_one(package: &cargo_metadata::Package, root: &Utf8Path) -> Package {
    let relative = |path: &Utf8PathBuf| path.strip_prefix(root).unwrap_or(path).to_string();
    Package {
        name: package.name.to_string(),
        manifest: relative(&package.manifest_path),
        dependencies: package.dependencies.iter().map(|used| used.name.clone()).collect(),
        targets: package.targets.iter().map(|target| relative(&target.src_path)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_package_is_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let packages = packages(&root).unwrap();
        let own = packages.iter().find(|it| it.name == env!("CARGO_PKG_NAME")).unwrap();
        assert_eq!(own.manifest, "tests/tidy/Cargo.toml");
        for used in ["cargo_metadata", "tempfile"] {
            assert!(own.dependencies.iter().any(|name| name == used), "{used}: {own:?}");
        }
        for target in ["tests/tidy/src/lib.rs", "tests/tidy/tests/ci_run.rs"] {
            assert!(own.targets.iter().any(|path| path == target), "{target}: {own:?}");
        }
    }
}

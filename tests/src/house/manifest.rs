//! As much of a `Cargo.toml` as the rules need.

use super::{SourceFile, SourceTree};

/// What a `Cargo.toml` says about its package.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Manifest {
    /// Path of the file.
    pub path: String,
    /// Name of the package.
    pub package: String,
    /// Whether it has the lints of the workspace.
    pub workspace_lints: bool,
    /// Packages it depends on, also for its tests and its build.
    pub dependencies: Vec<String>,
    /// Sources of targets that it names itself, relative to the root of the repository.
    pub target_paths: Vec<String>,
}

impl Manifest {
    /// The packages of `tree`, in order of their paths.
    pub fn all(tree: &SourceTree) -> impl Iterator<Item = Self> {
        let named = |file: &&SourceFile| file.path.rsplit('/').next() == Some("Cargo.toml");
        let manifests = tree.files.iter().filter(named).map(Self::read);
        // One without a package is that of a workspace.
        manifests.filter(|manifest| !manifest.package.is_empty())
    }

    /// Folder of the package with a `/` at its end; empty for the root of the repository.
    #[must_use]
    pub fn folder(&self) -> &str {
        self.path.trim_end_matches("Cargo.toml")
    }

    fn read(file: &SourceFile) -> Self {
        let mut manifest = Self { path: file.path.clone(), ..Self::default() };
        let mut section = "";
        let lines = file.text.lines().map(str::trim);
        for line in lines.filter(|line| !line.starts_with('#')) {
            if line.starts_with('[') {
                section = line.trim_matches(['[', ']']);
                // `[dependencies.name]`, also behind a target.
                if let Some((_, name)) = section.split_once("dependencies.") {
                    manifest.dependencies.push(name.trim_matches('"').to_owned());
                }
                continue;
            }
            let Some((key, value)) = line.split_once('=') else {
                continue;
            };
            let (key, value) = (key.trim(), value.trim());
            let text = value.trim_matches('"');
            if section.ends_with("dependencies") && section != "workspace.dependencies" {
                manifest.dependencies.push(dependency(key, value).to_owned());
            } else if section.contains("dependencies.") && key == "package" {
                manifest.dependencies.push(text.to_owned());
            }
            match (section, key) {
                ("package", "name") => manifest.package = text.to_owned(),
                ("lints", "workspace") => manifest.workspace_lints = value == "true",
                ("lib" | "bin" | "test" | "bench" | "example", "path") => {
                    let path = format!("{}{text}", manifest.folder());
                    manifest.target_paths.push(path);
                }
                _ => {}
            }
        }
        manifest
    }
}

/// Name of the package in `key = value` or `key.workspace = value`, under its own name when it is
/// renamed here.
fn dependency<'a>(key: &'a str, value: &'a str) -> &'a str {
    let renamed = value.split_once("package = \"").and_then(|(_, rest)| rest.split('"').next());
    renamed.unwrap_or_else(|| key.split('.').next().unwrap_or(key).trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
[package]
name = "thing"
version.workspace = true

[lib]
path = "source/thing.rs"

[[bin]]
name = "tool"
path = "source/tool.rs"

[lints]
workspace = true

[dependencies]
# kept-out = "1"
a.workspace = true
b = "1"
c = { version = "1", features = ["x"] }
d = { package = "real-d", path = "../d" }

[dependencies.e]
version = "1"

[target.'cfg(unix)'.dependencies]
f = "1"

[dev-dependencies]
g = "1"

[build-dependencies]
h = "1"
"#;

    #[test]
    fn a_manifest_is_read() {
        let root = "[workspace]\nmembers = [\"a\"]\n[workspace.dependencies]\nz = \"1\"\n";
        let tree = SourceTree::of(&[("Cargo.toml", root), ("a/Cargo.toml", TEXT)]);
        let expected = Manifest {
            path: "a/Cargo.toml".into(),
            package: "thing".into(),
            workspace_lints: true,
            dependencies: ["a", "b", "c", "real-d", "e", "f", "g", "h"].map(Into::into).into(),
            target_paths: vec!["a/source/thing.rs".into(), "a/source/tool.rs".into()],
        };
        assert_eq!(Manifest::all(&tree).collect::<Vec<_>>(), [expected]);
    }
}

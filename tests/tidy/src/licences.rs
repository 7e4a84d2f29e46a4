//! The crates that are built in are under licences that `deny.toml` allows, and come from a
//! registry. The file is in the format of cargo-deny, which reads more of it.

use std::error::Error;
use std::path::Path;

use cargo_metadata::{MetadataCommand, Package};
use serde::Deserialize;
use spdx::{Expression, LicenseReq, Licensee, ParseMode};

use super::violation::Violation;

/// As much of `deny.toml` as is kept here.
#[derive(Deserialize, Debug)]
pub struct Policy {
    graph: Graph,
    licenses: Licences,
}

#[derive(Deserialize, Debug)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Deserialize, Debug)]
struct Licences {
    allow: Vec<String>,
    #[serde(default)]
    exceptions: Vec<Exception>,
}

/// Licences that are allowed for one crate only.
#[derive(Deserialize, Debug)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: Vec<String>,
}

/// A crate, the licence it tells, and where it comes from; nowhere when it is one of ours.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Crate {
    name: String,
    licence: Option<String>,
    source: Option<String>,
}

/// Crates that are built for a target of `policy` into the workspace at `root`.
///
/// # Errors
/// What `cargo metadata` fails with.
pub fn crates(root: &Path, policy: &Policy) -> Result<Vec<Crate>, cargo_metadata::Error> {
    let mut found = Vec::new();
    for target in &policy.graph.targets {
        let options = ["--locked", "--filter-platform", target].map(str::to_owned);
        let mut command = MetadataCommand::new();
        let metadata = command.current_dir(root).other_options(options).exec()?;
        let built = metadata.resolve.iter().flat_map(|resolve| &resolve.nodes);
        found.extend(built.map(|node| read(&metadata[&node.id])));
    }
    found.sort();
    found.dedup();
    Ok(found)
}

fn read(package: &Package) -> Crate {
    Crate {
        name: package.name.to_string(),
        licence: package.license.clone(),
        source: package.source.as_ref().map(ToString::to_string),
    }
}

/// Crates under licences that `policy` does not allow, crates from outside of registries, and
/// exceptions that nothing needs.
///
/// # Errors
/// A licence of `policy` that nobody knows.
pub fn check(policy: &Policy, crates: &[Crate]) -> Result<Vec<Violation>, Box<dyn Error>> {
    let mut violations = Vec::new();
    let mut found = |name: &str, message: String| {
        violations.push(Violation::of_file("Cargo.lock", format!("{name}: {message}")));
    };
    let allowed = licensees(&policy.licenses.allow)?;
    for Crate { name, licence, source } in crates {
        if source.as_ref().is_some_and(|source| !source.starts_with("registry+")) {
            found(name, "comes from no registry: take a published version".to_owned());
        }
        let licence = licence.as_deref().unwrap_or_default();
        let Ok(expression) = Expression::parse_mode(licence, ParseMode::LAX) else {
            found(name, format!("\"{licence}\" is no licence: take another crate"));
            continue;
        };
        let exceptions = policy.licenses.exceptions.iter().filter(|it| it.name == *name);
        let mut own = allowed.clone();
        for exception in exceptions {
            own.extend(licensees(&exception.allow)?);
        }
        let allows = |wanted: &LicenseReq| own.iter().any(|licence| licence.satisfies(wanted));
        if !expression.evaluate(allows) {
            found(name, format!("deny.toml does not allow \"{licence}\""));
        }
    }
    let unused = policy.licenses.exceptions.iter();
    for exception in unused.filter(|it| crates.iter().all(|used| used.name != it.name)) {
        let message = format!("has an exception for {}, which is not used", exception.name);
        violations.push(Violation::of_file("deny.toml", message));
    }
    Ok(violations)
}

fn licensees(names: &[String]) -> Result<Vec<Licensee>, Box<dyn Error>> {
    let parsed = names.iter().map(|name| Licensee::parse(name));
    parsed.collect::<Result<_, _>>().map_err(|error| error.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        let text = "graph.targets = []\n[licenses]\nallow = [\"MIT\", \"Apache-2.0\"]\n\
                    exceptions = [{ crate = \"odd\", allow = [\"MPL-2.0\"] }]\n";
        toml::from_str(text).unwrap()
    }

    fn a_crate(name: &str, licence: &str) -> Crate {
        let source = Some("registry+https://index".to_owned());
        Crate { name: name.to_owned(), licence: Some(licence.to_owned()), source }
    }

    #[test]
    fn what_is_allowed_passes() {
        for licence in ["MIT", "MIT OR GPL-3.0-only", "MIT/GPL-3.0", "MIT AND Apache-2.0"] {
            let crates = [a_crate("a", licence), a_crate("odd", "MPL-2.0")];
            assert_eq!(check(&policy(), &crates).unwrap(), [], "{licence}");
        }
    }

    #[test]
    fn what_is_not_allowed_is_found() {
        let odd = || a_crate("odd", "MIT");
        for licence in ["GPL-3.0-only", "MIT AND GPL-3.0-only", "MPL-2.0", "my own", ""] {
            let found = check(&policy(), &[a_crate("a", licence), odd()]).unwrap();
            assert_eq!(found.len(), 1, "{licence}: {found:?}");
        }
        let git = Crate { source: Some("git+https://elsewhere".to_owned()), ..a_crate("a", "MIT") };
        let none = Crate { licence: None, ..a_crate("a", "MIT") };
        for wrong in [git, none] {
            assert_eq!(check(&policy(), &[wrong, odd()]).unwrap().len(), 1);
        }
        assert_eq!(check(&policy(), &[]).unwrap()[0].path, "deny.toml");
    }
}

//! The modules that a Rust file declares.

use syn::{Attribute, Expr, ExprLit, File, Item, ItemMod, Lit, Meta};

/// A module that a file declares.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Module {
    /// Its name behind those of the modules around it in the file.
    pub path: Vec<String>,
    /// Its line, counted from 1.
    pub line: usize,
    /// Whether its content is in the file, too.
    pub is_inline: bool,
    /// The file that an attribute names for it.
    pub file: Option<String>,
}

/// The modules that the Rust of `text` declares.
///
/// # Errors
/// Where it is no Rust.
pub fn modules(text: &str) -> Result<Vec<Module>, syn::Error> {
    let File { items, .. } = syn::parse_file(text)?;
    let mut found = Vec::new();
    find(&items, &[], &mut found);
    Ok(found)
}

fn find(items: &[Item], around: &[String], found: &mut Vec<Module>) {
    for item in items {
        let Item::Mod(module) = item else { continue };
        let path = [around, &[module.ident.to_string()]].concat();
        if let Some((_, items)) = &module.content {
            find(items, &path, found);
        }
        found.push(Module {
            path,
            line: module.ident.span().start().line,
            is_inline: module.content.is_some(),
            file: named_file(module),
        });
    }
}

/// The value of its attribute `path`.
fn named_file(module: &ItemMod) -> Option<String> {
    let value = |attribute: &Attribute| match &attribute.meta {
        Meta::NameValue(named) if named.path.is_ident("path") => match &named.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    };
    module.attrs.iter().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_with_their_places() {
        let text = "// mod no;\nmod a;\nmod b {\n    #[path = \"odd.rs\"]\n    pub mod c;\n}";
        let found = modules(text).unwrap();
        let module = |path: &[&str], line, is_inline, file: Option<&str>| Module {
            path: path.iter().map(|name| (*name).to_owned()).collect(),
            line,
            is_inline,
            file: file.map(str::to_owned),
        };
        let expected = [
            module(&["a"], 2, false, None),
            module(&["b", "c"], 5, false, Some("odd.rs")),
            module(&["b"], 3, true, None),
        ];
        assert_eq!(found, expected);
        assert!(modules("mod {").is_err());
    }
}

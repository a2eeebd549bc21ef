//! Every path that a file names from a root (`crate`, `super`, `self`, one of our crates), as a
//! whole path.

use super::token::{Kind, Token};

/// Our crates, as code names them.
const CRATES: &[&str] = &[
    "pregrant",
    "pregrant_xenstored",
    "pregrant_host",
    "pregrant_loopback",
    "pregrant_cli",
    "pregrant_testbed",
    "pregrant_lab",
];

/// A whole path, such as `pregrant::net::back::TxBatch`, and the line that names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Import {
    pub line: usize,
    pub path: Vec<String>,
}

/// The module path of a file: `crates/pregrant/src/net/front/tx.rs` is `pregrant::net::front::tx`.
/// None for files that are no module of a library (tests, binaries, build scripts).
pub fn module_of(file: &str) -> Option<Vec<String>> {
    let (krate, inside) = file.strip_prefix("crates/")?.split_once("/src/")?;
    let mut path = vec![krate.replace('-', "_")];
    path.extend(inside.strip_suffix(".rs")?.split('/').map(str::to_string));
    if matches!(path.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        path.pop();
    }
    Some(path)
}

/// The paths that `tokens`, the text of module `module`, name. Inline modules count as modules of
/// their own.
pub fn imports(module: &[String], tokens: &[Token]) -> Vec<Import> {
    let mut out = Vec::new();
    let mut here = module.to_vec();
    // For each open brace: whether it opened an inline module.
    let mut braces: Vec<bool> = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match &token.kind {
            Kind::Ident(word) if word == "mod" => {
                if let (Some(name), true) = (
                    tokens.get(at + 1).and_then(Token::ident),
                    tokens.get(at + 2).is_some_and(|t| t.is_mark('{')),
                ) {
                    here.push(name.into());
                    braces.push(true);
                    at += 3;
                    continue;
                }
            }
            Kind::Ident(word) if starts_path(tokens, at) => {
                if let Some(root) = root(&here, word) {
                    at = tree(tokens, at + 1, root, &mut out);
                    continue;
                }
            }
            Kind::Mark('{') => braces.push(false),
            Kind::Mark('}') if braces.pop() == Some(true) => {
                here.pop();
            }
            _ => {}
        }
        at += 1;
    }
    out
}

/// The paths of a `use` tree that begins at `at`, from a root or by the name of a child of
/// `module`.
pub fn group_or_path(module: &[String], tokens: &[Token], at: usize) -> Vec<Import> {
    let mut out = Vec::new();
    let Some(word) = tokens.get(at).and_then(Token::ident).filter(|_| starts_path(tokens, at)) else {
        return out;
    };
    let child = || module.iter().cloned().chain([word.to_string()]).collect();
    tree(tokens, at + 1, root(module, word).unwrap_or_else(child), &mut out);
    out
}

/// Returns the module in which a path begins whose first word is `word`. None: the path begins
/// outside of this crate.
fn root(here: &[String], word: &str) -> Option<Vec<String>> {
    match word {
        "crate" => Some(here[..1].to_vec()),
        "self" => Some(here.to_vec()),
        "super" => Some(here[..here.len().saturating_sub(1)].to_vec()),
        known if CRATES.contains(&known) => Some(vec![known.to_string()]),
        _ => None,
    }
}

/// True if the token is an identifier that starts a path: `::` follows it and does not precede it.
fn starts_path(tokens: &[Token], at: usize) -> bool {
    let sep = |t: Option<&Token>| t.is_some_and(|t| t.kind == Kind::PathSep);
    sep(tokens.get(at + 1)) && !(at > 0 && sep(tokens.get(at - 1)))
}

/// Reads what follows `path` from `at` on: `::name`, `::{tree, tree}`, `::*`. Returns the index
/// after that.
fn tree(tokens: &[Token], mut at: usize, mut path: Vec<String>, out: &mut Vec<Import>) -> usize {
    let line = tokens.get(at).map_or(0, |t| t.line);
    while tokens.get(at).is_some_and(|t| t.kind == Kind::PathSep) {
        match tokens.get(at + 1).map(|t| &t.kind) {
            Some(Kind::Ident(word)) => {
                if word == "super" {
                    path.pop();
                } else if word != "self" {
                    path.push(word.clone());
                }
                at += 2;
            }
            Some(Kind::Mark('{')) => return group(tokens, at + 2, &path, out),
            _ => {
                at += 2;
                break;
            }
        }
    }
    out.push(Import { line, path });
    at
}

fn group(tokens: &[Token], mut at: usize, path: &[String], out: &mut Vec<Import>) -> usize {
    while let Some(token) = tokens.get(at) {
        match &token.kind {
            Kind::Mark('}') => return at + 1,
            Kind::Ident(word) if word == "as" => at += 2,
            Kind::Ident(word) => {
                let mut inner = path.to_vec();
                if word == "super" {
                    inner.pop();
                } else if word != "self" {
                    inner.push(word.clone());
                }
                at = tree(tokens, at + 1, inner, out);
            }
            _ => at += 1,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::super::token::tokens;
    use super::{imports, module_of};

    fn paths(file: &str, text: &str) -> Vec<String> {
        let module = module_of(file).expect("a module");
        imports(&module, &tokens(text)).into_iter().map(|i| i.path.join("::")).collect()
    }

    #[test]
    fn files_are_modules() {
        let module = |f| module_of(f).map(|m| m.join("::"));
        assert_eq!(module("crates/pregrant/src/lib.rs").as_deref(), Some("pregrant"));
        assert_eq!(module("crates/pregrant-host/src/ports/mod.rs").as_deref(), Some("pregrant_host::ports"));
        assert_eq!(
            module("crates/pregrant/src/net/front/tx.rs").as_deref(),
            Some("pregrant::net::front::tx")
        );
        assert_eq!(module("crates/pregrant-lab/src/demo.rs").as_deref(), Some("pregrant_lab::demo"));
        assert_eq!(module("crates/pregrant/tests/ring.rs"), None);
    }

    #[test]
    fn use_trees_become_whole_paths() {
        let file = "crates/pregrant/src/net/front/tx.rs";
        assert_eq!(paths(file, "use crate::net::back;"), ["pregrant::net::back"]);
        assert_eq!(paths(file, "use super::super::back::Tx as T;"), ["pregrant::net::back::Tx"]);
        assert_eq!(
            paths(file, "use crate::{ring::*, net::{self, back::{A, B as C}}, units};"),
            [
                "pregrant::ring",
                "pregrant::net",
                "pregrant::net::back::A",
                "pregrant::net::back::B",
                "pregrant::units"
            ]
        );
    }

    #[test]
    fn paths_in_code_count_and_inline_modules_are_a_step_deeper() {
        let file = "crates/pregrant/src/net/front/tx.rs";
        assert_eq!(paths(file, "fn f() { crate::net::back::go() }"), ["pregrant::net::back::go"]);
        assert_eq!(
            paths(file, "mod tests { use super::X; fn g() { } } use super::Y;"),
            ["pregrant::net::front::tx::X", "pregrant::net::front::Y"]
        );
        assert_eq!(paths(file, "let x = std::crate_::y; a::crate::b();"), Vec::<String>::new());
    }
}

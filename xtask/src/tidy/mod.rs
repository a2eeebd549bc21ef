//! The rules that the compiler does not know: names, lengths, import directions, and where `unsafe` may stand.
//!
//! ```text
//!   files -> token (comments and strings gone) -> import (use trees to whole paths) -> wall (who may name whom)
//! ```

mod claim;
mod import;
mod token;
mod wall;

use crate::workspace::Workspace;
use std::fs;
use std::path::Path;
use token::{Token, tokens};

/// Lines that a source file stays below.
const MAX_LINES: usize = 900;

/// Words that say nothing about what a module holds.
const FORBIDDEN_NAMES: &[&str] =
    &["util", "utils", "common", "helper", "helpers", "manager", "misc", "stuff", "shared_code"];

/// Where `unsafe` may stand: memory that a peer can write, the rings, platforms, ports, tests; and the bare measurements
/// of `bench limit`, which use what the platforms are made of without the platforms.
const UNSAFE_ALLOWED: &[&str] = &[
    "crates/pregrant/src/shm.rs",
    "crates/pregrant/src/ring/",
    "crates/pregrant/src/platform/",
    "crates/pregrant/tests/",
    "crates/pregrant-host/src/loopback/",
    "crates/pregrant-host/src/linux/",
    "crates/pregrant-host/src/mapping.rs",
    "crates/pregrant-host/src/ports/",
    "crates/pregrant-host/src/limit/lines.rs",
    "crates/pregrant-host/src/limit/remote.rs",
    "crates/pregrant-host/tests/",
    "crates/pregrant-cli/tests/",
];

/// A Rust file of the project: its path from the root, with `/`, and its text.
struct Source {
    path: String,
    text: String,
}

/// Checks every Rust file; prints one line for each offence.
pub fn run(w: &Workspace) -> Result<(), String> {
    let mut sources = Vec::new();
    for folder in ["crates", "xtask", "examples", "fuzz"] {
        collect(w.root(), &w.root().join(folder), &mut sources)?;
    }
    let page = w.root().join(claim::PAGE);
    let page = fs::read_to_string(&page).map_err(|e| format!("{}: {e}", page.display()))?;
    let offences: Vec<String> = sources.iter().flat_map(check).chain(claim::check(&page, &sources)).collect();
    for offence in &offences {
        println!("{offence}");
    }
    match offences.len() {
        0 if sources.is_empty() => Err("found no source files".into()),
        0 => Ok(()),
        n => Err(format!("{n} offences, listed above")),
    }
}

fn collect(root: &Path, dir: &Path, into: &mut Vec<Source>) -> Result<(), String> {
    if !dir.is_dir() {
        return Ok(());
    }
    let failed = |e: std::io::Error| format!("{}: {e}", dir.display());
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            if !path.ends_with("target") {
                collect(root, &path, into)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            let path = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
            into.push(Source { path, text });
        }
    }
    Ok(())
}

fn check(source: &Source) -> Vec<String> {
    let mut offences = Vec::new();
    let path = &source.path;
    let lines = source.text.lines().count();
    if lines >= MAX_LINES {
        offences.push(format!("{path}: {lines} lines; files stay below {MAX_LINES}: split it by noun"));
    }
    if let Some(name) = path.split(['/', '.']).find(|part| FORBIDDEN_NAMES.contains(part)) {
        offences.push(format!("{path}: `{name}` names no noun; say what is in it"));
    }
    let tokens = tokens(&source.text);
    if !UNSAFE_ALLOWED.iter().any(|allowed| path.starts_with(allowed))
        && let Some(t) = tokens.iter().find(|t| t.is_ident("unsafe"))
    {
        offences.push(format!(
            "{path}:{}: `unsafe` is only allowed in {}",
            t.line,
            UNSAFE_ALLOWED.join(", ")
        ));
    }
    offences.extend(forbidden_modules(path, &tokens));
    offences.extend(wall::check(path, &tokens));
    offences
}

fn forbidden_modules(path: &str, tokens: &[Token]) -> Vec<String> {
    let named = |pair: &[Token]| match pair {
        [m, name] if m.is_ident("mod") => {
            let name = name.ident().filter(|n| FORBIDDEN_NAMES.contains(n))?;
            Some(format!("{path}:{}: module `{name}` names no noun; say what is in it", m.line))
        }
        _ => None,
    };
    tokens.windows(2).filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::{MAX_LINES, Source, check};

    fn offences(path: &str, text: &str) -> Vec<String> {
        check(&Source { path: path.into(), text: text.into() })
    }

    #[test]
    fn a_plain_file_is_clean() {
        let text = "//! unsafe in a comment\nfn f() -> &'static str { \"unsafe { }\" }\n";
        assert_eq!(offences("crates/pregrant/src/units.rs", text), Vec::<String>::new());
    }

    #[test]
    fn unsafe_is_found_only_outside_of_its_places() {
        let text = "fn f(p: *const u8) -> u8 { unsafe { *p } }\n";
        assert_eq!(offences("crates/pregrant/src/net/front/tx.rs", text).len(), 1);
        assert_eq!(offences("crates/pregrant/src/shm.rs", text).len(), 0);
    }

    #[test]
    fn names_that_say_nothing_are_refused() {
        assert_eq!(offences("crates/pregrant/src/utils.rs", "").len(), 1);
        assert_eq!(offences("crates/pregrant/src/common/ring.rs", "").len(), 1);
        assert_eq!(offences("crates/pregrant/src/lib.rs", "mod helper { }").len(), 1);
    }

    #[test]
    fn long_files_are_refused() {
        assert_eq!(offences("crates/pregrant/src/units.rs", &"\n".repeat(MAX_LINES - 1)).len(), 0);
        assert_eq!(offences("crates/pregrant/src/units.rs", &"\n".repeat(MAX_LINES)).len(), 1);
    }
}

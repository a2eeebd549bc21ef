//! The rules that the compiler does not know: names, lengths, import directions, links of pages.
//!
//! ```text
//!   files -> token (comments and strings gone) -> import (use trees to whole paths) -> wall (who may name whom),
//!   circle (no files of the core, nor of the host, need each other in a circle of any length)
//! ```

mod circle;
mod claim;
mod comment;
mod decision;
mod import;
mod link;
mod log_line;
mod out_parameter;
mod page_words;
mod path_attribute;
mod product;
mod section;
mod status;
pub mod token;
mod wall;
mod word;

pub use link::{SUMMARY, resolve};

use crate::workspace::{Workspace, read};
use std::fs;
use std::path::Path;
use token::{Token, tokens};

/// Source files must have fewer lines than this.
const MAX_LINES: usize = 800;

/// Words that say nothing about what a module holds.
const FORBIDDEN_NAMES: &[&str] =
    &["util", "utils", "common", "helper", "helpers", "manager", "misc", "stuff", "shared_code"];

/// The one place in which a test says that it is skipped: in CI it fails there.
const SKIP: &str = "crates/pregrant-testkit/src/skip.rs";

/// Suffixes of files besides Rust's that may cite the protocol or have comments.
const OTHERS: &[&str] = &["c", "h", "md", "script", "service", "sh", "socket", "toml"];

/// A file of the project: its path from the root, with `/`, and its text.
struct Source {
    path: String,
    text: String,
}

/// Checks every Rust file, and pages and other files that refer to them. Prints one line for each
/// violation.
pub fn run(w: &Workspace) -> Result<(), String> {
    let mut sources = Vec::new();
    for folder in ["crates", "xtask", "examples", "fuzz", "linux"] {
        collect(w.root(), &w.root().join(folder), &["rs"], &mut sources)?;
    }
    let mut others = Vec::new();
    for folder in ["crates", "xtask", "fuzz", "linux", "rig", "dist", "docs"] {
        collect(w.root(), &w.root().join(folder), OTHERS, &mut others)?;
    }
    for name in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "ROADMAP.md", "SECURITY.md", "Cargo.toml"] {
        others.push(Source { path: name.into(), text: read(&w.root().join(name))? });
    }
    let page = |path: &str| read(&w.root().join(path));
    let mut offences: Vec<String> = sources.iter().flat_map(check).collect();
    let functions = claim::all_functions(&sources, &others);
    offences.extend(claim::check(&page(claim::PAGE)?, &functions));
    let protocol = others.iter().filter(|page| page.path.starts_with(claim::PROTOCOL));
    offences.extend(protocol.flat_map(|page| claim::check_protocol(page, &functions)));
    offences.extend(wall::check_walls(&sources));
    offences.extend(circle::check(&sources));
    offences.extend(path_attribute::check(&sources));
    offences.extend(crate::figures::page::check(w));
    offences.extend(product::check(w)?);
    offences.extend(sources.iter().flat_map(comment::check));
    offences.extend(others.iter().flat_map(comment::check_other));
    offences.extend(section::check(sources.iter().chain(&others)));
    offences.extend(status::check(others.iter()));
    offences.extend(link::check(w.root(), others.iter()));
    offences.extend(page_words::check(others.iter()));
    let words = |source: &&Source| source.path != word::PATH;
    offences.extend(sources.iter().chain(&others).filter(words).flat_map(word::check));
    // The checks' own tests name pages that do not exist.
    let named = |source: &&Source| !source.path.starts_with("xtask/src/tidy/");
    offences.extend(decision::check(sources.iter().chain(&others).filter(named)));
    offences.extend(crate::messages::check(w)?);
    offences.extend(crate::linux::check(w)?);
    for offence in &offences {
        println!("{offence}");
    }
    match offences.len() {
        0 if sources.is_empty() => Err("found no source files".into()),
        0 => Ok(()),
        n => Err(format!("{n} offences, listed above")),
    }
}

/// Collects the files below `dir` whose names end in one of `extensions`.
fn collect(root: &Path, dir: &Path, extensions: &[&str], into: &mut Vec<Source>) -> Result<(), String> {
    if !dir.is_dir() {
        return Ok(());
    }
    let failed = |e: std::io::Error| format!("{}: {e}", dir.display());
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            if !path.ends_with("target") {
                collect(root, &path, extensions, into)?;
            }
        } else if path.extension().is_some_and(|e| extensions.iter().any(|x| e == *x)) {
            let text = read(&path)?;
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
    offences.extend(forbidden_modules(path, &tokens));
    offences.extend(own_skips(source));
    offences.extend(wall::check(path, &tokens));
    offences.extend(log_line::check(path, &source.text, &tokens));
    offences.extend(out_parameter::check(source));
    offences
}

/// Finds tests that report by themselves that they are skipped, and would pass in CI, too.
fn own_skips(Source { path, text }: &Source) -> Vec<String> {
    let says =
        |line: &str| ["print!(", "println!("].iter().any(|print| line.contains(&format!("{print}\"skip")));
    let lines =
        text.lines().zip(1..).filter(|(line, _)| path.starts_with("crates/") && path != SKIP && says(line));
    lines
        .map(|(_, n)| format!("{path}:{n}: a test is skipped by `skip` ({SKIP}), which fails in CI"))
        .collect()
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
    fn names_that_say_nothing_are_refused() {
        assert_eq!(offences("crates/pregrant/src/utils.rs", "").len(), 1);
        assert_eq!(offences("crates/pregrant/src/common/ring.rs", "").len(), 1);
        assert_eq!(offences("crates/pregrant/src/lib.rs", "mod helper { }").len(), 1);
    }

    #[test]
    fn tests_are_skipped_in_one_way() {
        let text = "fn f() { return println!(\"skipped: no tap\"); }";
        assert_eq!(offences("crates/pregrant-host/tests/tap.rs", text).len(), 1);
        assert_eq!(offences(super::SKIP, text).len(), 0);
        assert_eq!(offences("crates/pregrant-host/tests/tap.rs", "fn f() { skip(\"no tap\") }").len(), 0);
    }

    #[test]
    fn long_files_are_refused() {
        assert_eq!(offences("crates/pregrant/src/units.rs", &"\n".repeat(MAX_LINES - 1)).len(), 0);
        assert_eq!(offences("crates/pregrant/src/units.rs", &"\n".repeat(MAX_LINES)).len(), 1);
    }
}

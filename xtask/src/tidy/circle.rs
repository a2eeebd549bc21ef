//! Files of the core, the host and the loopback that need each other in a circle, of two files or
//! of more. A name that a `mod.rs` passes on (`pub use child::Name`) is needed of the file that has
//! it; tests may name anything.
//!
//! ```text
//!   imports, by file --re-exports followed to where a name stands--> file -> files --> sets in which each file reaches each other
//! ```

use super::Source;
use super::import::{group_or_path, imports, module_of};
use super::token::{Token, tokens};
use std::collections::{BTreeMap, BTreeSet};

/// The files that are checked.
const FOLDERS: [&str; 3] =
    ["crates/pregrant/src/", "crates/pregrant-host/src/", "crates/pregrant-loopback/src/"];

type Module = Vec<String>;

/// Returns one line for each circle.
pub fn check(sources: &[Source]) -> Vec<String> {
    let checked = sources.iter().filter(|s| FOLDERS.iter().any(|folder| s.path.starts_with(folder)));
    let files: BTreeMap<Module, (&str, Vec<Token>)> = checked
        .filter_map(|s| Some((module_of(&s.path)?, (s.path.as_str(), before_tests(tokens(&s.text))))))
        .collect();
    let passed_on: BTreeMap<Module, Module> =
        files.iter().flat_map(|(module, (_, tokens))| re_exports(module, tokens)).collect();
    let mut needs: Needs<'_> = BTreeMap::new();
    for (module, (_, tokens)) in &files {
        let own: BTreeSet<Module> = re_exports(module, tokens).map(|(_, from)| from).collect();
        let named =
            imports(module, tokens).into_iter().map(|i| i.path).chain(of_children(module, tokens, &files));
        let of_module = needs.entry(module).or_default();
        for path in named.filter(|path| !own.contains(path)) {
            if let Some(file) = file_of(&path, &files, &passed_on).filter(|file| *file != module) {
                of_module.insert(file);
            }
        }
    }
    let line = |circle: Vec<&Module>| {
        let paths: Vec<&str> = circle.iter().map(|module| files[*module].0).collect();
        format!("{} need each other in a circle: {}", paths.len(), paths.join(", "))
    };
    circles(&needs).into_iter().map(line).collect()
}

/// The files that each file needs.
type Needs<'a> = BTreeMap<&'a Module, BTreeSet<&'a Module>>;

/// The sets of two files and more in which each reaches each other.
fn circles<'a>(needs: &Needs<'a>) -> Vec<Vec<&'a Module>> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        needs.keys().map(|module| (*module, reached_from(module, needs))).collect();
    let mut circles: Vec<Vec<&'a Module>> = Vec::new();
    let mut seen: BTreeSet<&Module> = BTreeSet::new();
    for module in needs.keys() {
        if seen.contains(*module) {
            continue;
        }
        let back = |other: &&&'a Module| reached.get(**other).is_some_and(|all| all.contains(*module));
        let circle: Vec<&'a Module> =
            needs.keys().filter(|other| reached[*module].contains(**other)).filter(back).copied().collect();
        seen.extend(circle.iter().copied());
        if circle.len() > 1 {
            circles.push(circle);
        }
    }
    circles
}

/// The files that a file needs, directly or through others.
fn reached_from<'a>(module: &'a Module, needs: &Needs<'a>) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut next = vec![module];
    while let Some(module) = next.pop() {
        for other in needs.get(module).into_iter().flatten() {
            if reached.insert(*other) {
                next.push(other);
            }
        }
    }
    reached
}

/// Finds the file that defines the item at `path`.
fn file_of<'a>(
    path: &Module,
    files: &'a BTreeMap<Module, (&str, Vec<Token>)>,
    passed_on: &BTreeMap<Module, Module>,
) -> Option<&'a Module> {
    let mut path = path.clone();
    // Passed on from file to file; a circle would not compile.
    while let Some((whole, from)) =
        (1..=path.len()).find_map(|n| Some((n, passed_on.get(&path[..n]).filter(|f| **f != path[..n])?)))
    {
        path = from.iter().chain(&path[whole..]).cloned().collect();
    }
    (1..=path.len()).rev().find_map(|n| files.get_key_value(&path[..n])).map(|(module, _)| module)
}

/// Returns the names that `pub use` re-exports: as this module names them, and the file that
/// defines them.
fn re_exports<'a>(module: &'a Module, tokens: &'a [Token]) -> impl Iterator<Item = (Module, Module)> + 'a {
    let starts = (0..tokens.len()).filter(|&at| {
        let before = at.checked_sub(1).map(|b| &tokens[b]);
        tokens[at].is_ident("use") && before.is_some_and(|t| t.is_ident("pub") || t.is_mark(')'))
    });
    starts.flat_map(move |at| group_or_path(module, tokens, at + 1)).filter_map(move |import| {
        let ours = module.iter().chain(import.path.last()).cloned().collect();
        Some((ours, import.path)).filter(|(ours, from)| ours != from)
    })
}

/// Child modules that a file names by their bare names.
fn of_children(
    module: &Module,
    tokens: &[Token],
    files: &BTreeMap<Module, (&str, Vec<Token>)>,
) -> impl Iterator<Item = Module> {
    let named = (0..tokens.len()).filter_map(|at| {
        let child: Module = module.iter().cloned().chain([tokens[at].ident()?.to_string()]).collect();
        files.contains_key(&child).then(|| group_or_path(module, tokens, at))
    });
    named.flatten().map(|import| import.path).collect::<Vec<_>>().into_iter()
}

/// The tokens before the tests, which are at the end of a file.
pub(super) fn before_tests(mut tokens: Vec<Token>) -> Vec<Token> {
    let tests =
        tokens.windows(3).position(|t| t[0].is_ident("mod") && t[1].is_ident("tests") && t[2].is_mark('{'));
    tokens.truncate(tests.unwrap_or(tokens.len()));
    tokens
}

#[cfg(test)]
mod tests {
    use super::{Source, check};

    fn offences(files: &[(&str, &str)]) -> Vec<String> {
        let source = |(path, text): &(&str, &str)| Source {
            path: format!("crates/pregrant/src/{path}"),
            text: (*text).into(),
        };
        check(&files.iter().map(source).collect::<Vec<_>>())
    }

    #[test]
    fn two_files_that_need_each_other_are_named() {
        let back = ("net/path/back.rs", "use super::any_back::AnyPath;");
        let found = offences(&[back, ("net/path/any_back.rs", "use super::back::BackPath;")]);
        assert_eq!(
            found,
            ["2 need each other in a circle: crates/pregrant/src/net/path/any_back.rs, \
                 crates/pregrant/src/net/path/back.rs"]
        );
        assert!(offences(&[back, ("net/path/any_back.rs", "use crate::port::Arena;")]).is_empty());
        let in_tests = "mod tests { use crate::net::path::back::BackPath; }";
        assert!(offences(&[back, ("net/path/any_back.rs", in_tests)]).is_empty());
    }

    #[test]
    fn a_circle_of_three_is_found_and_a_way_into_it_is_not() {
        let files = [
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::c::C;"),
            ("c.rs", "use crate::a::A; use crate::d::D;"),
            ("d.rs", ""),
            ("e.rs", "use crate::a::A;"),
        ];
        let found = offences(&files);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("3 need") && !found[0].contains("d.rs") && !found[0].contains("e.rs"));
    }

    #[test]
    fn the_host_s_and_the_loopback_s_files_are_checked_too() {
        let offences = |folder: &str| {
            let file = |name: &str, text: &str| Source {
                path: format!("crates/{folder}/{name}.rs"),
                text: text.into(),
            };
            check(&[file("a", "use super::b::B;"), file("b", "use super::a::A;")]).len()
        };
        assert_eq!((offences("pregrant-host/src/ports"), offences("pregrant-host/src/drivers/net")), (1, 1));
        assert_eq!(offences("pregrant-loopback/src/broker"), 1);
    }

    #[test]
    fn what_a_folder_passes_on_is_needed_of_the_file_that_has_it() {
        let folder =
            ("net/path/mod.rs", "pub mod back; pub use back::{BackPath, Counted}; pub use copy::CopyPath;");
        let back = ("net/path/back.rs", "use super::CopyPath;");
        let copy = ("net/path/copy.rs", "use crate::net::path::{BackPath, Counted};");
        let found = offences(&[folder, back, copy]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("path/back.rs, ") && found[0].contains("path/copy.rs"), "{found:?}");
        assert!(offences(&[folder, ("net/path/back.rs", ""), copy]).is_empty());
    }

    #[test]
    fn a_folder_that_uses_its_child_is_not_used_by_it() {
        let folder = ("vif/mod.rs", "mod turn; use turn::Turn; pub struct Vif;");
        assert_eq!(offences(&[folder, ("vif/turn.rs", "use super::Vif;")]).len(), 1);
        assert!(
            offences(&[("vif/mod.rs", "mod turn; pub struct Vif;"), ("vif/turn.rs", "use super::Vif;")])
                .is_empty()
        );
    }
}

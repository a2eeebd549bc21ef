//! A path of the network device is one folder, negotiation included: its name stands in there, and
//! in the list of all paths.
//!
//! ```text
//!   net/path/NAME/  --> words of NAME --> identifiers of the other files of net/, line by line --> more than EXCEPTIONS allows?
//! ```
//! `copy` and `map` are words of the language too, and are not searched.

use super::Source;
use super::pair::before_tests;
use super::token::tokens;
use std::collections::{BTreeMap, BTreeSet};

const NET: &str = "crates/pregrant/src/net/";
const PATHS: &str = "crates/pregrant/src/net/path/";

/// The list of all paths: what a further path adds a line to.
const LIST: &[&str] = &["mod.rs", "path_name.rs"];

/// Paths whose names mean something else as well.
const ORDINARY_WORDS: &[&str] = &["copy", "map"];

/// Files below net/ that still name paths, and in how many lines. These numbers only fall, and an
/// entry goes with its last line.
const EXCEPTIONS: &[(&str, usize)] = &[];

/// Returns one line for each file that names more paths than it may, or fewer than the list says.
pub fn check(sources: &[Source]) -> Vec<String> {
    check_against(sources, EXCEPTIONS)
}

fn check_against(sources: &[Source], exceptions: &[(&str, usize)]) -> Vec<String> {
    let paths: Vec<&str> = sources
        .iter()
        .filter_map(|s| s.path.strip_prefix(PATHS)?.strip_suffix("/mod.rs"))
        .filter(|name| !name.contains('/') && !ORDINARY_WORDS.contains(name))
        .collect();
    let allowed: BTreeMap<&str, usize> = exceptions.iter().copied().collect();
    let mut offences = Vec::new();
    for source in sources {
        let Some(file) = source.path.strip_prefix(NET).filter(|file| !is_test(file)) else { continue };
        let (lines, names) = named(source, &paths);
        let most = allowed.get(file).copied().unwrap_or(0);
        if lines.len() > most {
            let at: Vec<String> = lines.iter().map(usize::to_string).collect();
            offences.push(format!(
                "{NET}{file}: {} lines name the paths {}, {most} may: such a thing stands in the path's folder, or in the list \
                 ({PATHS}mod.rs); lines {}",
                lines.len(),
                names.into_iter().collect::<Vec<_>>().join(", "),
                at.join(", ")
            ));
        } else if lines.len() < most {
            let n = lines.len();
            offences.push(format!(
                "{NET}{file}: {n} lines name a path, no longer {most}: say so in EXCEPTIONS ({})",
                file!()
            ));
        }
    }
    let gone =
        exceptions.iter().filter(|(file, _)| !sources.iter().any(|s| s.path.strip_prefix(NET) == Some(file)));
    offences.extend(
        gone.map(|(file, _)| format!("{NET}{file} is no more: take it out of EXCEPTIONS ({})", file!())),
    );
    offences
}

fn is_test(file: &str) -> bool {
    file.split('/').any(|part| part == "tests" || part == "tests.rs")
}

/// The lines of a file that name paths which are not its own, and these paths.
fn named<'a>(source: &Source, paths: &[&'a str]) -> (BTreeSet<usize>, BTreeSet<&'a str>) {
    let (mut lines, mut names) = (BTreeSet::new(), BTreeSet::new());
    let inside = source.path.strip_prefix(PATHS).unwrap_or_default();
    if LIST.contains(&inside) {
        return (lines, names);
    }
    for token in before_tests(tokens(&source.text)) {
        let Some(words) = token.ident().map(words) else { continue };
        for path in paths.iter().filter(|path| inside.split('/').next() != Some(**path)) {
            let name: Vec<&str> = path.split('_').collect();
            if words.windows(name.len()).any(|some| some == name) {
                lines.insert(token.line);
                names.insert(*path);
            }
        }
    }
    (lines, names)
}

/// The words of an identifier, in small letters.
fn words(ident: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for c in ident.chars() {
        if c == '_' || c.is_uppercase() && before.is_lowercase() {
            words.push(String::new());
        }
        if c != '_' {
            words.last_mut().expect("there is one").extend(c.to_lowercase());
        }
        before = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offences(files: &[(&str, &str)], exceptions: &[(&str, usize)]) -> Vec<String> {
        let source =
            |(path, text): &(&str, &str)| Source { path: format!("{NET}{path}"), text: (*text).into() };
        let folder = [("path/data_ring/mod.rs", ""), ("path/copy/mod.rs", "")];
        check_against(&folder.iter().chain(files).map(source).collect::<Vec<_>>(), exceptions)
    }

    #[test]
    fn a_path_is_named_in_its_folder_and_in_the_list() {
        let text = "use super::data_ring;\nstruct A(DataRingPath, DATA_RING);\nlet copy = data;";
        assert!(offences(&[("path/data_ring/back.rs", text), ("path/mod.rs", text)], &[]).is_empty());
        for file in ["stats.rs", "path/chain.rs", "path/copy/back.rs", "back/vif/mod.rs"] {
            let found = offences(&[(file, text)], &[]);
            assert_eq!(found.len(), 1, "{file}");
            assert!(
                found[0].contains(file) && found[0].contains("2 lines") && found[0].contains("data_ring"),
                "{found:?}"
            );
        }
    }

    #[test]
    fn tests_and_comments_and_longer_words_name_none() {
        let text = "// the DataRing\nstruct DataRings;\nmod tests { use super::data_ring; }";
        assert!(offences(&[("back/tx.rs", text), ("back/tests.rs", "use data_ring;")], &[]).is_empty());
    }

    #[test]
    fn exceptions_only_fall() {
        let file = |n: usize| ("stats.rs", ["", "data_ring", "data_ring\ndata_ring"][n]);
        for (n, said, found) in [(1, 1, 0), (2, 1, 1), (1, 2, 1), (0, 1, 1)] {
            assert_eq!(offences(&[file(n)], &[("stats.rs", said)]).len(), found, "{n} of {said}");
        }
        assert_eq!(offences(&[], &[("stats.rs", 1)]).len(), 1, "a file that is gone");
    }
}

//! What docs/threat-model.md claims: each line names the test that shows it, as `FILE::TEST` in backticks, and every test
//! that carries an advisory's number is named there.

use super::Source;
use super::token::tokens;
use std::collections::BTreeSet;

/// The page, from the root.
pub const PAGE: &str = "docs/threat-model.md";

/// How tests that show an advisory begin.
const ADVISORY: &str = "xsa_";

/// Names on the page that are no tests, and tests with an advisory's number that the page does not name.
pub fn check(page: &str, sources: &[Source]) -> Vec<String> {
    let claims: BTreeSet<(&str, &str)> = page.split('`').skip(1).step_by(2).filter_map(claim).collect();
    let functions: Vec<(&str, Vec<String>)> =
        sources.iter().map(|s| (s.path.as_str(), functions(&s.text))).collect();
    let mut offences = Vec::new();
    if claims.is_empty() {
        offences.push(format!("{PAGE}: names no test at all"));
    }
    for (file, test) in &claims {
        let there =
            functions.iter().any(|(path, names)| is_in(path, file) && names.iter().any(|name| name == test));
        if !there {
            offences.push(format!("{PAGE}: `{file}::{test}` is no test; name one that shows the same"));
        }
    }
    for (path, names) in &functions {
        for name in names.iter().filter(|name| name.starts_with(ADVISORY)) {
            if !claims.iter().any(|(file, test)| is_in(path, file) && name == test) {
                offences.push(format!("{path}: `{name}` is not in {PAGE}; add it to its advisory's row"));
            }
        }
    }
    offences
}

/// `file::test`, both plain names.
fn claim(text: &str) -> Option<(&str, &str)> {
    let plain = |s: &str| {
        !s.is_empty() && s.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    text.split_once("::").filter(|(file, test)| plain(file) && plain(test))
}

/// Whether `path` is that file, or lies in a folder of that name.
fn is_in(path: &str, file: &str) -> bool {
    path.split('/').any(|part| part.strip_suffix(".rs").unwrap_or(part) == file)
}

fn functions(text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let named = tokens.windows(2).filter(|pair| pair[0].is_ident("fn"));
    named.filter_map(|pair| pair[1].ident().map(str::to_string)).collect()
}

#[cfg(test)]
mod tests {
    use super::{Source, check};

    fn offences(page: &str, tests: &[(&str, &str)]) -> Vec<String> {
        let source = |(path, text): &(&str, &str)| Source { path: (*path).into(), text: (*text).into() };
        check(page, &tests.iter().map(source).collect::<Vec<_>>())
    }

    #[test]
    fn names_of_tests_are_found_in_files_and_folders() {
        let tests = [("crates/a/tests/ring.rs", "fn x() {}"), ("crates/a/tests/kills/main.rs", "fn y() {}")];
        assert_eq!(offences("`ring::x`, `kills::y`, `main::y` and `std::Path`", &tests), [""; 0]);
    }

    #[test]
    fn a_name_that_is_gone_is_an_offence() {
        let tests = [("crates/a/tests/ring.rs", "// fn gone() {}\nfn x() {}")];
        assert_eq!(offences("`ring::x`, `ring::gone`, `back::x`", &tests).len(), 2);
        assert_eq!(offences("nothing", &tests).len(), 1);
    }

    #[test]
    fn an_advisory_s_test_must_be_on_the_page() {
        let tests = [("crates/a/tests/ring.rs", "fn x() {}\nfn xsa_1_y() {}")];
        assert_eq!(offences("`ring::x`", &tests).len(), 1);
        assert_eq!(offences("`ring::x`, `ring::xsa_1_y`", &tests).len(), 0);
    }
}

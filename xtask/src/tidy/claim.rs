//! Claims of pages, each shown by a test that is named as `FILE::TEST` in backticks.
//!
//! - docs/threat-model.md and docs/protocol: the tests that they name exist.
//! - docs/threat-model.md: every test that carries an advisory's number is named there, and every
//!   rule of the self-test of the back's module.
//! - docs/protocol: no page says "built" or "not built", which nothing checks.

use super::Source;
use super::token::tokens;
use crate::linux::rules;
use std::collections::BTreeSet;

/// The threat model, from the root.
pub const PAGE: &str = "docs/threat-model.md";
/// The pages of the protocol, from the root.
pub const PROTOCOL: &str = "docs/protocol/";

/// Prefix of the names of tests that show an advisory.
const ADVISORY: &str = "xsa_";
/// Files of C with rules that guests break.
const RULES: &str = "linux/back/selftest/rules_";

/// Returns names on the page that are no tests, and tests with an advisory's number that the page
/// does not name.
pub fn check(page: &str, functions: &Functions<'_>) -> Vec<String> {
    let claims = claims(page);
    let mut offences = Vec::new();
    if claims.is_empty() {
        offences.push(format!("{PAGE}: names no test at all"));
    }
    offences.extend(missing(PAGE, &claims, functions));
    for (path, names) in functions {
        let of_rules = path.starts_with(RULES);
        for name in names.iter().filter(|name| of_rules || name.starts_with(ADVISORY)) {
            if !claims.iter().any(|(file, test)| is_in(path, file) && name == test) {
                offences.push(format!("{path}: `{name}` is not in {PAGE}; add it to its advisory's row"));
            }
        }
    }
    offences
}

/// Like [`check`], for a page of the protocol; also finds words that claim what no test shows.
pub fn check_protocol(page: &Source, functions: &Functions<'_>) -> Vec<String> {
    let Source { path, text } = page;
    let mut offences = missing(path, &claims(text), functions);
    // The page that explains how to read them quotes the word.
    let marks = ["**Built", "**Not built", "*built", "*not built", "*Not built"];
    for (line, number) in text.lines().zip(1..) {
        if marks.iter().any(|mark| line.contains(mark)) {
            offences.push(format!("{path}:{number}: name the test that shows it, in place of \"built\""));
        }
    }
    offences
}

pub type Functions<'a> = Vec<(&'a str, Vec<String>)>;

/// The functions of Rust's files, and the rules in those of C.
pub fn all_functions<'a>(sources: &'a [Source], others: &'a [Source]) -> Functions<'a> {
    let of_rules = others.iter().filter(|other| other.path.starts_with(RULES));
    let rules = of_rules.map(|other| (other.path.as_str(), rules::of(&other.text)));
    sources.iter().map(|s| (s.path.as_str(), functions(&s.text))).chain(rules).collect()
}

/// The tests that a page names.
fn claims(page: &str) -> BTreeSet<(&str, &str)> {
    page.split('`').skip(1).step_by(2).filter_map(claim).collect()
}

/// The claimed tests that do not exist.
fn missing(path: &str, claims: &BTreeSet<(&str, &str)>, functions: &Functions<'_>) -> Vec<String> {
    let there = |file: &str, test: &str| {
        functions.iter().any(|(path, names)| is_in(path, file) && names.iter().any(|name| name == test))
    };
    let gone = claims.iter().filter(|(file, test)| !there(file, test));
    gone.map(|(file, test)| format!("{path}: `{file}::{test}` is no test; name one that shows the same"))
        .collect()
}

/// Parses `file::test`, both plain names.
fn claim(text: &str) -> Option<(&str, &str)> {
    let plain = |s: &str| {
        !s.is_empty() && s.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    text.split_once("::").filter(|(file, test)| plain(file) && plain(test))
}

/// True if `path` is that file, or is in a folder of that name.
fn is_in(path: &str, file: &str) -> bool {
    let name =
        |part: &str| part == file || part.strip_suffix(".rs").or(part.strip_suffix(".c")) == Some(file);
    path.split('/').any(name)
}

fn functions(text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let named = tokens.windows(2).filter(|pair| pair[0].is_ident("fn"));
    named.filter_map(|pair| pair[1].ident().map(str::to_string)).collect()
}

#[cfg(test)]
mod tests {
    use super::{Source, all_functions, check};

    fn offences(page: &str, tests: &[(&str, &str)]) -> Vec<String> {
        let source = |(path, text): &(&str, &str)| Source { path: (*path).into(), text: (*text).into() };
        check(page, &all_functions(&tests.iter().map(source).collect::<Vec<_>>(), &[]))
    }

    #[test]
    fn names_of_tests_are_found_in_files_and_folders() {
        let tests = [("crates/a/tests/ring.rs", "fn x() {}"), ("crates/a/tests/kills/main.rs", "fn y() {}")];
        assert_eq!(offences("`ring::x`, `kills::y`, `main::y` and `std::Path`", &tests), [""; 0]);
    }

    #[test]
    fn pages_of_the_protocol_name_tests_that_exist_and_claim_nothing_else() {
        let sources = [Source { path: "crates/a/tests/ring.rs".into(), text: "fn x() {}".into() }];
        let offences = |text: &str| {
            super::check_protocol(
                &Source { path: "docs/protocol/ring.md".into(), text: text.into() },
                &all_functions(&sources, &[]),
            )
        };
        assert_eq!(offences("`ring::x`, and \"built\""), [""; 0]);
        assert_eq!(offences("`ring::y`").len(), 1);
        assert_eq!(offences("**Built**, in\n*not built*: v2\n").len(), 2);
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

    #[test]
    fn each_rule_of_the_back_s_self_test_must_be_on_the_page() {
        let source = |path: &str, text: &str| [Source { path: path.into(), text: text.into() }];
        let tests = source("crates/a/tests/ring.rs", "fn x() {}");
        let rules = source("linux/back/selftest/rules_tx.c", "\tRULE(y, .ends = true),");
        let functions = all_functions(&tests, &rules);
        assert_eq!(check("`ring::x`, `rules_tx::y`", &functions), [""; 0]);
        assert_eq!(check("`ring::x`", &functions).len(), 1);
        assert_eq!(check("`ring::x`, `rules_tx::y`, `rules_tx::z`", &functions).len(), 1);
    }
}

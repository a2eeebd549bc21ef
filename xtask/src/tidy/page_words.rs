//! Pages stay short: a bound of words for all of them, and one for README.

use super::Source;

/// Words of all pages at most, the generated ones left out.
const ALL: usize = 40_000;
/// Words of README at most.
const README: usize = 900;
/// Pages that are made from the source and from results.
const GENERATED: &[&str] = &["docs/messages.md", "docs/results.md"];

/// Offences for pages that are too long.
pub fn check<'a>(pages: impl Iterator<Item = &'a Source>) -> Vec<String> {
    let (mut all, mut offences) = (0, Vec::new());
    for Source { path, text } in pages {
        if !path.ends_with(".md") || GENERATED.contains(&&**path) {
            continue;
        }
        let words = text.split_whitespace().count();
        all += words;
        if path == "README.md" && words > README {
            offences.push(format!("{path}: {words} words, at most {README} are allowed: cut some"));
        }
    }
    if all > ALL {
        offences.push(format!("docs: the pages have {all} words, at most {ALL} are allowed: cut some"));
    }
    offences
}

#[cfg(test)]
mod tests {
    use super::{ALL, README, Source, check};

    #[test]
    fn long_pages_are_refused() {
        let offences = |path: &str, words: usize| {
            check([Source { path: path.into(), text: "word ".repeat(words) }].iter()).len()
        };
        assert_eq!(offences("README.md", README), 0);
        assert_eq!(offences("README.md", README + 1), 1);
        assert_eq!(offences("docs/operate.md", ALL), 0);
        assert_eq!(offences("docs/operate.md", ALL + 1), 1);
        assert_eq!(offences("docs/messages.md", ALL + 1), 0);
        assert_eq!(offences("crates/a/src/b.rs", ALL + 1), 0);
    }
}

//! README stays short: a newcomer reads it whole. Other pages get the words that they need.

use super::Source;

/// Largest number of words of README.
const README: usize = 900;

/// The offence of a README that is too long.
pub fn check<'a>(pages: impl Iterator<Item = &'a Source>) -> Vec<String> {
    let readme = pages.filter(|page| page.path == "README.md");
    let words = readme.map(|page| page.text.split_whitespace().count());
    words
        .filter(|words| *words > README)
        .map(|words| format!("README.md: {words} words, at most {README} are allowed: cut some"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{README, Source, check};

    #[test]
    fn a_long_readme_is_refused() {
        let offences = |path: &str, words: usize| {
            check([Source { path: path.into(), text: "word ".repeat(words) }].iter()).len()
        };
        assert_eq!(offences("README.md", README), 0);
        assert_eq!(offences("README.md", README + 1), 1);
        assert_eq!(offences("docs/operate.md", README + 1), 0);
        assert_eq!(offences("crates/a/README.md", README + 1), 0);
    }
}

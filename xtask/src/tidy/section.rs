//! Checks the citations of docs/protocol: a number after the folder's name must be a section of one
//! of its pages, and so must, on these pages, a number after the word "section".

use super::Source;
use std::collections::BTreeMap;

/// The folder of the pages, from the root.
pub const FOLDER: &str = "docs/protocol";

/// The form of citations before the pages were in the tree.
const FORMER: &str = concat!("PROTOCOL", ".md");

/// Reports sections that exist twice, and citations of sections that do not exist, or that are not
/// on one line.
pub fn check<'a>(texts: impl Iterator<Item = &'a Source> + Clone) -> Vec<String> {
    let mut offences = Vec::new();
    let mut sections = BTreeMap::new();
    for Source { path, text } in texts.clone().filter(|s| is_page(s)) {
        for (number, line) in headings(text) {
            if let Some(other) = sections.insert(number, path) {
                offences.push(format!("{path}:{line}: section {number} is in {other} too"));
            }
        }
    }
    if sections.is_empty() {
        offences.push(format!("{FOLDER}: no page has a section"));
    }
    for source @ Source { path, text } in texts {
        for (line, n) in text.lines().zip(1..) {
            if line.contains(FORMER) {
                offences.push(format!("{path}:{n}: the protocol is cited as \"{FOLDER} NUMBER\""));
            }
            if line.trim_end().ends_with(FOLDER) {
                offences.push(format!("{path}:{n}: put the section's number on the line of `{FOLDER}`"));
            }
            let word = if is_page(source) { "section" } else { FOLDER };
            for number in cited(line, FOLDER).chain(cited(line, word)) {
                if !sections.contains_key(number) {
                    offences.push(format!("{path}:{n}: no page of {FOLDER} has a section {number}"));
                }
            }
        }
    }
    offences.dedup();
    offences
}

fn is_page(source: &Source) -> bool {
    source.path.starts_with(FOLDER) && source.path.ends_with(".md")
}

/// Numbers of headings, each with its line.
fn headings(text: &str) -> impl Iterator<Item = (&str, usize)> {
    text.lines().zip(1..).filter_map(|(line, n)| {
        let heading = line.starts_with('#').then(|| line.trim_start_matches('#').trim_start())?;
        Some((leading_number(heading)?.0, n))
    })
}

/// The numbers after each `word` of a line: one, or several with ", " or " and " between them.
fn cited<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = &'a str> {
    line.split(word).skip(1).flat_map(|after| {
        let mut rest = after.strip_prefix(' ');
        std::iter::from_fn(move || {
            let (number, behind) = leading_number(rest?)?;
            rest = behind.strip_prefix(", ").or_else(|| behind.strip_prefix(" and "));
            Some(number)
        })
    })
}

/// The `2.11` of `2.11, R4`, and the rest after it.
fn leading_number(text: &str) -> Option<(&str, &str)> {
    let digits = |from: usize| text[from..].bytes().take_while(u8::is_ascii_digit).count();
    let mut len = digits(0);
    while len > 0 && text[len..].starts_with('.') && digits(len + 1) > 0 {
        len += 1 + digits(len + 1);
    }
    let word_goes_on = text[len..].starts_with(|c: char| c.is_alphanumeric());
    (len > 0 && !word_goes_on).then(|| text.split_at(len))
}

#[cfg(test)]
mod tests {
    use super::{FOLDER, FORMER, Source, check};

    fn offences(texts: &[(&str, String)]) -> Vec<String> {
        let source = |(path, text): &(&str, String)| Source { path: (*path).into(), text: text.clone() };
        check(texts.iter().map(source).collect::<Vec<_>>().iter())
    }

    /// The offences of a file that has this text after the folder's name, given pages with 2, 2.1,
    /// 2.11 and 9.
    fn citing(after: &str) -> usize {
        let pages = [
            ("docs/protocol/netif.md", "# 2 netif\n## 2.1 TX, 12 bytes\n".into()),
            ("docs/protocol/control-ring.md", "# 2.11 Control\n```\n1 no heading\n```\n# 9\n".into()),
        ];
        let file = ("crates/a/src/b.rs", format!("//! Slots ({FOLDER}{after}\n"));
        offences(&[&pages[..], &[file]].concat()).len()
    }

    #[test]
    fn a_citation_names_a_section() {
        for there in [
            " 2)",
            " 2.1.",
            " 2.11, R4)",
            " 2.1's table",
            " 2.1 and 2.11)",
            " 2.1, 9: three",
            "/netif.md)",
            ")",
        ] {
            assert_eq!(citing(there), 0, "{there}");
        }
        for gone in [" 3)", " 2.2)", " 2.12", " 2.1.1", " 2.1 and 3)", " 2, 2.1, 4.4", " 1)"] {
            assert_eq!(citing(gone), 1, "{gone}");
        }
    }

    #[test]
    fn a_citation_stands_on_one_line() {
        assert_eq!(citing("\n//! 2.1)"), 1);
        let page = ("docs/protocol/ring.md", "# 1 Ring\n".into());
        assert_eq!(offences(&[page.clone(), ("rig/a.sh", format!("# {FORMER} 1\n"))]).len(), 1);
        assert_eq!(offences(&[page, ("docs/a.md", format!("{FOLDER} 1, {FOLDER} 2\n"))]).len(), 1);
    }

    #[test]
    fn pages_name_each_other_s_sections() {
        let page = |text: &str| ("docs/protocol/ring.md", format!("# 1 Ring\n## 1.1 Live\n{text}\n"));
        assert_eq!(offences(&[page("as in section 1.1, or in sections")]), [""; 0]);
        assert_eq!(offences(&[page("as in section 1.2")]).len(), 1);
        assert_eq!(offences(&[page("## 1.1 Again")]).len(), 1);
        assert_eq!(offences(&[("docs/protocol/README.md", "# The protocol\n".into())]).len(), 1);
    }
}

//! Decision pages: those that are named are there, and the index lists each.

use super::Source;

/// Folder of the decisions, from the root.
const FOLDER: &str = "docs/decisions/";
/// The page that lists the decisions.
const INDEX: &str = "docs/decisions/README.md";
/// Words by which comments and pages refer to a decision by its number.
const NAMES: [&str; 4] = ["decision ", "decisions ", "Decision ", "decisions/"];

/// Returns numbers without a page, and pages that the index does not list.
pub fn check<'a>(sources: impl Iterator<Item = &'a Source>) -> Vec<String> {
    let sources: Vec<_> = sources.collect();
    let files = sources.iter().filter_map(|source| source.path.strip_prefix(FOLDER));
    let files: Vec<&str> = files.filter(|name| number(name).is_some()).collect();
    let mut offences = Vec::new();
    for source in &sources {
        let path = &source.path;
        for (line, at) in source.text.lines().zip(1..) {
            let named =
                NAMES.iter().flat_map(|name| line.match_indices(name).map(|(i, n)| &line[i + n.len()..]));
            let missing = |number: &&str| !files.iter().any(|file| file.starts_with(number));
            let missing = named.filter_map(number).filter(missing);
            offences.extend(missing.map(|number| format!("{path}:{at}: there is no decision {number}")));
        }
    }
    let index = sources.iter().find(|source| source.path == INDEX).map_or("", |source| &source.text);
    let unlisted = files.iter().filter(|file| !index.contains(&format!("]({file})")));
    offences.extend(unlisted.map(|file| format!("{INDEX}: does not list {file}")));
    offences
}

/// The four digits with which a text begins.
fn number(text: &str) -> Option<&str> {
    text.get(..4).filter(|number| number.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::{INDEX, Source, check};

    fn offences(pages: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<_> =
            pages.iter().map(|(path, text)| Source { path: (*path).into(), text: (*text).into() }).collect();
        check(sources.iter())
    }

    #[test]
    fn a_page_that_is_named_is_there() {
        let pages = [("docs/decisions/0001-a.md", "# 0001: A"), (INDEX, "[0001](0001-a.md)")];
        let with = |text: &'static str| [&pages[..], &[("crates/a/src/b.rs", text)]].concat();
        assert_eq!(offences(&with("// (decision 0001), docs/decisions/0001, a decision.")), [""; 0]);
        assert_eq!(offences(&with("// (decision 0002)\n// docs/decisions/0003")).len(), 2);
    }

    #[test]
    fn the_index_lists_each_page() {
        let page = ("docs/decisions/0001-a.md", "# 0001: A");
        assert_eq!(offences(&[page, (INDEX, "[0001](0001-a.md)")]), [""; 0]);
        assert_eq!(offences(&[page, (INDEX, "0001")]).len(), 1);
    }
}

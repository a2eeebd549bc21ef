//! The links and the headings of a Markdown page, of the kinds that this project's pages have: no
//! reference links, no HTML.

/// `[text](target)`, or `![text](target)`.
#[derive(Debug, PartialEq, Eq)]
pub struct Link<'a> {
    /// Offset of its `[`, or of the `!` before that.
    pub start: usize,
    /// Offset of the `]` after its text.
    pub text_end: usize,
    pub end: usize,
    pub target: &'a str,
}

impl Link<'_> {
    /// The file that the link names, and the heading in it; None: the link leads out of the
    /// project.
    pub fn file_and_heading(&self) -> Option<(&str, Option<&str>)> {
        let leads_elsewhere = self.target.contains("://") || self.target.starts_with("mailto:");
        let (file, heading) = match self.target.split_once('#') {
            Some((file, heading)) => (file, Some(heading)),
            None => (self.target, None),
        };
        (!leads_elsewhere).then_some((file, heading))
    }
}

/// All links outside code, in the order of their ends.
pub fn links(text: &str) -> Vec<Link<'_>> {
    let bytes = text.as_bytes();
    let mut code = code(text).into_iter().peekable();
    let (mut found, mut open) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < bytes.len() {
        if let Some((_, behind)) = code.next_if(|(from, _)| *from <= at) {
            at = behind.max(at);
            continue;
        }
        match bytes[at] {
            b'[' => open.push(at),
            b']' => {
                let target = text[at..].strip_prefix("](").and_then(|rest| rest.split_once(')'));
                if let (Some(start), Some((target, _))) = (open.pop(), target) {
                    let start = start - usize::from(text[..start].ends_with('!'));
                    let end = at + "](".len() + target.len() + ")".len();
                    found.push(Link { start, text_end: at, end, target });
                    at = end;
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Returns the page with other targets of its links, as `target` says; None: the link is replaced
/// by its text.
pub fn relinked(text: &str, target: impl Fn(&Link<'_>) -> Option<String>) -> String {
    // Replacements for ranges of bytes.
    let mut cuts: Vec<(usize, usize, String)> = Vec::new();
    for link in links(text) {
        match target(&link) {
            Some(target) => cuts.push((link.text_end, link.end, format!("]({target})"))),
            None => {
                let open = link.start + usize::from(text[link.start..].starts_with('!'));
                cuts.push((link.start, open + 1, String::new()));
                cuts.push((link.text_end, link.end, String::new()));
            }
        }
    }
    cuts.sort_unstable();
    let (mut out, mut at) = (String::with_capacity(text.len()), 0);
    for (from, behind, with) in cuts {
        out += &text[at..from];
        out += &with;
        at = behind;
    }
    out + &text[at..]
}

/// Returns the anchors of the page's headings, formed as GitHub and mdBook form them. An anchor
/// that occurs twice gets a number.
pub fn anchors(text: &str) -> Vec<String> {
    let code = code(text);
    let mut anchors: Vec<String> = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let before = code.partition_point(|(from, _)| *from <= at);
        let in_code = before > 0 && at < code[before - 1].1;
        at += line.len();
        if !line.starts_with('#') || in_code {
            continue;
        }
        let words = line.trim_start_matches('#').trim();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String =
            kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect();
        let same = anchors.iter().filter(|other| **other == anchor).count();
        anchors.push(if same == 0 { anchor } else { format!("{anchor}-{same}") });
    }
    anchors
}

/// Finds code blocks and code spans, each by its start and its end.
fn code(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(len) = text[at..].find('`') {
        let from = at + len;
        let ticks = text[from..].bytes().take_while(|b| *b == b'`').count();
        let line_start = text[..from].rfind('\n').map_or(0, |n| n + 1);
        let is_fence = ticks >= 3 && text[line_start..from].trim().is_empty();
        let marks = &text[from..from + ticks];
        let body = &text[from + ticks..];
        // A span ends with its paragraph; a block that nothing closes ends with the page.
        let limit = if is_fence { body.len() } else { body.find("\n\n").unwrap_or(body.len()) };
        match body[..limit].find(marks) {
            Some(n) => {
                at = from + ticks + n + ticks;
                found.push((from, at));
            }
            None if is_fence => {
                found.push((from, text.len()));
                break;
            }
            None => at = from + ticks,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{anchors, links, relinked};

    fn targets(text: &str) -> Vec<&str> {
        links(text).iter().map(|link| link.target).collect()
    }

    #[test]
    fn links_are_found_outside_code_alone() {
        assert_eq!(targets("[a](b.md), ![c d\ne](f.svg) and [`g[0]`](h#i)"), ["b.md", "f.svg", "h#i"]);
        assert_eq!(targets("`[a](b)`\n```text\n[c](d)\n```\n[e](f)"), ["f"]);
        assert_eq!(targets("[a] (b), [c][d], a `tick\n\n[e](f)"), ["f"]);
    }

    #[test]
    fn a_target_is_a_file_and_a_heading() {
        let of =
            |text| links(text)[0].file_and_heading().map(|(f, h)| (f.to_string(), h.map(str::to_string)));
        assert_eq!(of("[a](b.md#c)"), Some(("b.md".into(), Some("c".into()))));
        assert_eq!(of("[a](#c)"), Some((String::new(), Some("c".into()))));
        assert_eq!(of("[a](https://b)"), None);
    }

    #[test]
    fn links_become_their_text_or_lead_elsewhere() {
        let text = "see [a `b`](c.rs) and [d](e.md), ![f](g.svg)";
        let target = |to: &str| (to == "e.md").then(|| "h.md".to_string());
        assert_eq!(relinked(text, |l| target(l.target)), "see a `b` and [d](h.md), f");
        assert_eq!(relinked(text, |l| Some(l.target.into())), text);
    }

    #[test]
    fn anchors_are_made_of_words() {
        let text = "# Where `unsafe` is, and why\n```sh\n# no heading\n```\n## 3.1 A\n## 3.1 A\n";
        assert_eq!(anchors(text), ["where-unsafe-is-and-why", "31-a", "31-a-1"]);
    }
}

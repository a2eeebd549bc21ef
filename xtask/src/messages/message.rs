//! A text that a user may read: a line in the log at warn or error, or what an error says.

/// The kind of a text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A log line at warn or error.
    Line,
    /// The text of an error: it ends a command, or is in a log line after a device's name.
    Error,
}

/// A text with its placeholders, as the source has it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Message {
    pub kind: Kind,
    pub text: String,
    /// Path of the source file, from the root.
    pub path: String,
}

/// The verbs with which a clause that names a remedy begins.
const VERBS: &[&str] = &[
    "add",
    "as root",
    "ask",
    "attach",
    "boot",
    "build",
    "change",
    "check",
    "chmod",
    "choose",
    "close",
    "connect",
    "correct",
    "create",
    "detach",
    "echo",
    "enable",
    "give",
    "install",
    "introduce",
    "ip link",
    "leave",
    "load",
    "look",
    "make",
    "modprobe",
    "mount",
    "name",
    "pass",
    "put",
    "raise",
    "reconnect",
    "remove",
    "restart",
    "run",
    "say",
    "see",
    "set",
    "start",
    "stop",
    "to",
    "truncate",
    "try",
    "unload",
    "unmount",
    "upgrade",
    "use",
    "wait",
    "write",
];

const BREAKS: &[&str] = &["; ", ". ", ": "];

impl Message {
    /// The part of the text that names the remedy: everything from the first clause that begins
    /// with such a verb, or the last clause if that is a question.
    pub fn own_remedy(&self) -> Option<&str> {
        let breaks = BREAKS.iter().flat_map(|mark| self.text.match_indices(mark).map(|(at, m)| at + m.len()));
        let mut clauses: Vec<&str> = breaks.map(|at| &self.text[at..]).collect();
        clauses.sort_by_key(|clause| std::cmp::Reverse(clause.len()));
        let says = |clause: &&&str| {
            let lower = clause.to_lowercase();
            let is_order = |verb: &str| {
                lower
                    .strip_prefix(verb)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '_', ',', ':']))
            };
            VERBS.iter().any(|verb| is_order(verb)) || lower == "{remedy}"
        };
        let question = clauses.last().filter(|clause| clause.ends_with('?'));
        clauses.iter().find(says).or(question).copied()
    }

    /// The place of the text in the source, in short form.
    pub fn place(&self) -> String {
        let path = self.path.strip_prefix("crates/").unwrap_or(&self.path);
        path.replacen("/src/", ": ", 1)
    }
}

/// The words of a text, without what is in braces.
pub fn words(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let words = text.split(|c: char| {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth > 0 || !c.is_alphanumeric()
    });
    words.filter(|word| !word.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::{Kind, Message, words};

    fn own_remedy(text: &str) -> Option<String> {
        let message = Message { kind: Kind::Error, text: text.into(), path: String::new() };
        message.own_remedy().map(str::to_string)
    }

    #[test]
    fn a_last_clause_that_says_what_to_do_is_a_remedy() {
        assert_eq!(own_remedy("{path}: {e}; remove it, or wait").as_deref(), Some("remove it, or wait"));
        assert_eq!(own_remedy("{path}: {e}; is it there?").as_deref(), Some("is it there?"));
        assert_eq!(own_remedy("no {path}. Run it again").as_deref(), Some("Run it again"));
        assert_eq!(own_remedy("poll failed; the broker stops"), None);
        assert_eq!(own_remedy("poll failed; runs go on"), None);
        assert_eq!(own_remedy("poll failed"), None);
        assert_eq!(own_remedy("poll failed; reconnect").as_deref(), Some("reconnect"));
        let remedy = "as root: ip link set x up; wait for it";
        assert_eq!(own_remedy(&format!("the link is down: {remedy}")).as_deref(), Some(remedy));
    }

    #[test]
    fn placeholders_are_no_words() {
        assert_eq!(words("{id}: no {} page(s) {x:?}"), ["no", "page", "s"]);
        assert_eq!(words("{a}: {b}"), [""; 0]);
    }
}

//! Words that were replaced, for no Xen or Linux engineer knows them: they do not come back, in
//! names, comments or pages. This is no search for misspelt words (decision 0050).

use super::Source;

/// Each refused word, with the word to use instead.
const REPLACED: &[(&str, &str)] = &[
    ("anew", "again"),
    ("begun", "started"),
    ("bell", "doorbell"),
    ("clerk", "the file's thread"),
    ("crew", "worker pool"),
    ("employ", "start"),
    ("heard", "seen, or got"),
    ("heeded", "applied"),
    ("hear", "learn, or get an event"),
    ("hears", "learns, or gets an event"),
    ("hire", "assign"),
    ("hush", "unwatch, or clear"),
    ("judgement", "check"),
    ("nobody", "no one, or who does not"),
    ("laid", "placed"),
    ("nobodys", "free, unknown or dropped"),
    ("nudge", "wake"),
    ("plugging", "hotplug"),
    ("relive", "update"),
    ("seat", "worker, or index"),
    ("seats", "workers, or guests"),
    ("staff", "worker threads"),
    ("teller", "publisher"),
    ("told", "notified, reported or known"),
    ("whoever", "the one who"),
    ("wishes", "settings, or requests"),
];

/// Path of this file, which contains the refused words.
pub const PATH: &str = "xtask/src/tidy/word.rs";

pub fn check(Source { path, text }: &Source) -> Vec<String> {
    let mut offences = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        for word in words(line) {
            if let Some((_, better)) = REPLACED.iter().find(|(old, _)| word.eq_ignore_ascii_case(old)) {
                offences.push(format!("{path}:{number}: {word:?}: say {better}"));
            }
        }
    }
    offences
}

/// The words of a line, those within a name among them.
fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for run in line.split(|c: char| !c.is_ascii_alphabetic()) {
        let mut from = 0;
        let bytes = run.as_bytes();
        for at in 1..bytes.len() {
            if bytes[at].is_ascii_uppercase() && bytes[at - 1].is_ascii_lowercase() {
                words.push(&run[from..at]);
                from = at;
            }
        }
        words.push(&run[from..]);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::{Source, check, words};

    #[test]
    fn names_have_words() {
        assert_eq!(words("fn a_b(): CrewOf")[..4], ["fn", "a", "b", ""]);
        assert!(words("CrewOf").contains(&"Crew"));
    }

    #[test]
    fn a_replaced_word_is_found() {
        let old = "crew";
        let of = |text: String| check(&Source { path: "a.rs".into(), text }).len();
        assert_eq!(of(format!("let {old}_of = 1; // the {old}\nscrewed")), 2);
        assert_eq!(of("a screwdriver".into()), 0);
    }
}

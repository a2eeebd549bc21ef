//! A finding about this machine or a device, with its remedy.

use pregrant_host::excerpt::excerpt;
use std::fmt::{self, Display};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rank {
    Ok,
    /// The part works, but could be better; or something is missing that only one of the two ends
    /// needs.
    Note,
    Wrong,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub rank: Rank,
    pub text: String,
    pub remedy: Option<String>,
}

impl Finding {
    fn new(rank: Rank, text: impl Display) -> Self {
        Self { rank, text: text.to_string(), remedy: None }
    }

    pub fn ok(text: impl Display) -> Self {
        Self::new(Rank::Ok, text)
    }

    pub fn note(text: impl Display) -> Self {
        Self::new(Rank::Note, text)
    }

    pub fn wrong(text: impl Display) -> Self {
        Self::new(Rank::Wrong, text)
    }

    pub fn then(mut self, remedy: impl Display) -> Self {
        self.remedy = Some(remedy.to_string());
        self
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rank = match self.rank {
            Rank::Ok => "ok   ",
            Rank::Note => "note ",
            Rank::Wrong => "WRONG",
        };
        write!(f, "{rank}  {}", self.text)?;
        match &self.remedy {
            Some(remedy) => write!(f, "\n       -> {remedy}"),
            None => Ok(()),
        }
    }
}

/// Makes a text of another domain or process fit to be shown: without control characters, and with
/// a bounded length. If bytes were left out, the result has their number.
pub fn plain(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    excerpt(text.trim_end_matches('\0'), 120)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_says_what_to_do_on_a_line_of_its_own() {
        let text = Finding::wrong("no xenstore").then("start xenstored").to_string();
        assert_eq!(text, "WRONG  no xenstore\n       -> start xenstored");
        assert_eq!(Finding::ok("Xen 4.17").to_string(), "ok     Xen 4.17");
    }

    #[test]
    fn what_guests_write_is_shown_without_harm() {
        assert_eq!(plain(b"a\x1b[31m\n\0"), "a?[31m?");
        assert_eq!(plain(&[b'x'; 120]), "x".repeat(120));
        assert_eq!(plain(&[b'x'; 500]), "x".repeat(120) + "... (380 more)");
    }
}

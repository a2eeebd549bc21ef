//! The name of a key below a device's directory, made of a prefix, a word and a number, in memory
//! of its own: to ask for a key allocates nothing.
//!
//! ```text
//!   KeyName::of(format_args!("{prefix}ring-ref{k}"))     "queue-3/tx-ring-ref0"
//! ```
//! No peer has a part in it: each is this program's own word, and the longest one is below
//! [`NAME_MAX`].

use core::fmt::{self, Write};
use core::ops::{Add, Deref};

/// Largest number of bytes of a name.
pub const NAME_MAX: usize = 63;

/// The name of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyName {
    text: [u8; NAME_MAX],
    len: u8,
}

impl KeyName {
    /// Formats a name.
    pub fn of(name: impl fmt::Display) -> Self {
        let mut of = Self { text: [0; NAME_MAX], len: 0 };
        let written = write!(of, "{name}");
        debug_assert!(written.is_ok(), "{name} is longer than a key of ours");
        of
    }
}

impl Write for KeyName {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let mut rest = self.text.iter_mut().skip(self.len.into());
        for byte in more.bytes() {
            *rest.next().ok_or(fmt::Error)? = byte;
            self.len += 1;
        }
        Ok(())
    }
}

impl From<&str> for KeyName {
    fn from(name: &str) -> Self {
        Self::of(name)
    }
}

/// A prefix, and what follows it.
impl Add<&str> for KeyName {
    type Output = Self;
    fn add(mut self, more: &str) -> Self {
        let written = self.write_str(more);
        debug_assert!(written.is_ok(), "{self}{more} is longer than a key of ours");
        self
    }
}

impl Deref for KeyName {
    type Target = str;
    fn deref(&self) -> &str {
        let text = self.text.get(..self.len.into()).unwrap_or_default();
        core::str::from_utf8(text).unwrap_or_default()
    }
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Debug for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_its_text() {
        let name = KeyName::of(format_args!("queue-{}/{}", 3, "tx-ring-ref"));
        assert_eq!((&*name, &*KeyName::of("")), ("queue-3/tx-ring-ref", ""));
        assert_eq!(&*(KeyName::of("tx-") + "ring"), "tx-ring");
        assert_eq!(alloc::format!("{name} {name:?}"), "queue-3/tx-ring-ref \"queue-3/tx-ring-ref\"");
    }
}

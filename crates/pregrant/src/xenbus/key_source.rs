//! Keys of a device's directory, as negotiation reads and writes them: hostile text, whatever the
//! class of the device.
//!
//! What a peer may do: write anything. A garbled number in a key that is needed is an error that
//! names the key and says what was expected; a garbled feature is a feature that is not there, and
//! a key with an empty value is one that is not there.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// The peer's directory, as negotiation reads it.
pub trait KeySource {
    /// How reading fails.
    type Error;
    /// The text of a key; None when it is absent.
    fn text(&mut self, key: &str) -> Result<Option<String>, Self::Error>;
    /// The error for a key whose value cannot be used.
    fn bad(&self, key: &str, value: &str, expected: &'static str) -> Self::Error;
}

/// The text of a key, as it was written; None when it is absent or empty. Xen's own drivers scan a
/// value for what they expect, and find nothing in an empty one: a front that does not want a key
/// any more may empty it.
pub fn stated<S: KeySource>(keys: &mut S, key: &str) -> Result<Option<String>, S::Error> {
    Ok(keys.text(key)?.filter(|text| !text.trim_end_matches('\0').trim().is_empty()))
}

/// A key that must hold a decimal number when it is there.
pub fn number<S: KeySource>(keys: &mut S, key: &str) -> Result<Option<u32>, S::Error> {
    match stated(keys, key)? {
        None => Ok(None),
        Some(text) => match decimal(&text) {
            Some(n) => Ok(Some(n)),
            None => Err(keys.bad(key, &text, "a decimal number")),
        },
    }
}

/// A number as peers write it: some end it with a NUL.
pub fn decimal(text: &str) -> Option<u32> {
    text.trim_end_matches('\0').trim().parse().ok()
}

/// A key that must be there and hold a decimal number.
pub fn needed<S: KeySource>(keys: &mut S, key: &str) -> Result<u32, S::Error> {
    number(keys, key)?.ok_or_else(|| keys.bad(key, "", "a decimal number (the key is missing)"))
}

/// A key that is on when it holds a number other than 0. Garbled means off: no feature is worth a
/// vif.
pub fn flag<S: KeySource>(keys: &mut S, key: &str) -> Result<bool, S::Error> {
    let text = keys.text(key)?;
    Ok(text.is_some_and(|t| t.trim_end_matches('\0').trim().parse::<u32>().is_ok_and(|n| n != 0)))
}

/// Key and value, as they are written.
pub type Pairs = Vec<(String, String)>;

/// Appends a pair.
pub fn put(pairs: &mut Pairs, key: impl ToString, value: impl ToString) {
    pairs.push((key.to_string(), value.to_string()));
}

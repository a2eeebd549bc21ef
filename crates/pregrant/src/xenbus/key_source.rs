//! The keys of a device's directory, as negotiation reads and writes them: hostile text, whatever
//! the class of the device.
//!
//! What a peer may do: write anything. An invalid number in a required key is an error that names
//! the key and the expected value. A feature with an invalid value counts as absent, and so does a
//! key with an empty value.

use crate::error::PlatformError;
use crate::memory;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Display;

/// Read access to the peer's directory.
pub trait KeySource {
    /// The error of a failed read.
    type Error;
    /// The text of a key. None: it does not exist.
    fn text(&mut self, key: &str) -> Result<Option<String>, Self::Error>;
    /// Builds the error for a key whose value is invalid.
    fn bad(&self, key: &str, value: &str, expected: &'static str) -> Self::Error;
    /// Builds the error for a request to the platform that failed: there is no memory for the keys.
    fn refused(&self, why: PlatformError) -> Self::Error;
}

/// The text of a key. None: it is missing or empty. Xen's own drivers scan a value for what they
/// expect, and find nothing in an empty one, so a front that no longer wants a key may empty it.
pub fn stated<S: KeySource>(keys: &mut S, key: &str) -> Result<Option<String>, S::Error> {
    Ok(keys.text(key)?.filter(|text| !text.trim_end_matches('\0').trim().is_empty()))
}

/// A key that must be a decimal number if it exists.
pub fn number<S: KeySource>(keys: &mut S, key: &str) -> Result<Option<u32>, S::Error> {
    match stated(keys, key)? {
        None => Ok(None),
        Some(text) => match decimal(&text) {
            Some(n) => Ok(Some(n)),
            None => Err(keys.bad(key, &text, "a decimal number")),
        },
    }
}

/// Parses a number as peers write it: some end it with a NUL.
pub fn decimal(text: &str) -> Option<u32> {
    text.trim_end_matches('\0').trim().parse().ok()
}

/// A key that must exist and be a decimal number.
pub fn needed<S: KeySource>(keys: &mut S, key: &str) -> Result<u32, S::Error> {
    number(keys, key)?.ok_or_else(|| keys.bad(key, "", "a decimal number (the key is missing)"))
}

/// A key that is true if it is a number other than 0. An invalid value counts as false: it must not
/// cost the guest its vif.
pub fn flag<S: KeySource>(keys: &mut S, key: &str) -> Result<bool, S::Error> {
    let text = keys.text(key)?;
    Ok(text.is_some_and(|t| t.trim_end_matches('\0').trim().parse::<u32>().is_ok_and(|n| n != 0)))
}

/// Keys and values to be written.
pub type Pairs = Vec<(String, String)>;

/// A list to which keys and their values are added.
pub trait KeySink {
    /// Adds a key and its value.
    fn add(&mut self, key: &dyn Display, value: &dyn Display);
}

impl KeySink for Pairs {
    fn add(&mut self, key: &dyn Display, value: &dyn Display) {
        self.push((key.to_string(), value.to_string()));
    }
}

/// A list of keys whose memory may be refused, however many keys there are.
pub(crate) struct PairsInMemory(Result<Pairs, PlatformError>);

impl PairsInMemory {
    /// An empty list.
    pub(crate) const fn new() -> Self {
        Self(Ok(Pairs::new()))
    }

    /// The whole list, or an error if there was no memory for one of its keys.
    pub(crate) fn whole(self) -> Result<Pairs, PlatformError> {
        self.0
    }
}

impl KeySink for PairsInMemory {
    fn add(&mut self, key: &dyn Display, value: &dyn Display) {
        let Ok(pairs) = &mut self.0 else { return };
        let pair = memory::text(key).and_then(|key| Ok((key, memory::text(value)?)));
        if let Err(e) = pair.and_then(|pair| memory::push(pairs, pair)) {
            self.0 = Err(e);
        }
    }
}

/// Adds a key and its value.
pub fn put(to: &mut (impl KeySink + ?Sized), key: impl Display, value: impl Display) {
    to.add(&key, &value);
}

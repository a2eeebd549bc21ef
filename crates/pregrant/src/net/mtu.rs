//! The toolstack's key `mtu` of a vif, which is read the same way at either end.
//!
//! Invariant: an invalid value never ends a device. An invalid value is ignored with a log line, an
//! empty value without one.
//!
//! What a peer may do: a guest may write the key in its own directory, which affects only itself.
//! No back reads that key.

use crate::xenbus::{Device, DeviceError, KeyError, KeyValue};
use crate::xenstore::{Client, Transport};

/// Name of the key.
pub const KEY: &str = "mtu";

/// An MTU in bytes that an interface can have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Mtu(u32);

impl Mtu {
    /// The least MTU of IPv4.
    pub const LEAST: u32 = 68;
    /// The largest MTU for which a frame has room.
    pub const MOST: u32 = 65_521;

    /// The MTU in bytes.
    pub fn bytes(self) -> u32 {
        self.0
    }

    /// The MTU announced to a front: in the front's own directory, or else in the back's.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub fn announced_to_front<T: Transport>(
        front: &Device,
        xs: &mut Client<T>,
        mut say: impl FnMut(&KeyError),
    ) -> Result<Option<u32>, DeviceError> {
        match Self::or_pass_over(front.get_own(xs, KEY), &mut say)? {
            None => Self::or_pass_over(front.get(xs, KEY), say),
            own => Ok(own),
        }
    }

    /// The value of a key `mtu`. An invalid one counts as absent, and `say` gets it for a log line.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub fn or_pass_over(
        read: Result<Option<Self>, DeviceError>,
        say: impl FnOnce(&KeyError),
    ) -> Result<Option<u32>, DeviceError> {
        match read {
            Err(DeviceError::Key(e)) => {
                if !matches!(e.seen.as_deref(), None | Some("")) {
                    say(&e);
                }
                Ok(None)
            }
            read => Ok(read?.map(Self::bytes)),
        }
    }
}

impl KeyValue for Mtu {
    const EXPECTED: &'static str = "a number of bytes from 68 to 65521, such as 1500";
    fn parse(text: &str) -> Option<Self> {
        let bytes = u32::parse(text.trim_end_matches('\0').trim())?;
        (Self::LEAST..=Self::MOST).contains(&bytes).then_some(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::DomId;
    use crate::xenbus::key::examples;
    use alloc::string::ToString;
    use alloc::vec::Vec;

    #[test]
    fn an_mtu_that_is_none_is_passed_over_with_a_line() {
        for (text, bytes) in [("1500", 1500), ("68", 68), ("65521", 65521), (" 9000\0", 9000)] {
            assert_eq!(Mtu::parse(text).map(Mtu::bytes), Some(bytes), "{text:?}");
        }
        let bad =
            ["0", "67", "65522", "-1500", "+1500", "1500,9000", "1500.0", "4294967297", "jumbo", "\u{1b}[2J"];
        for text in bad.into_iter().chain([""]) {
            assert_eq!(Mtu::parse(text), None, "{text:?}");
            let error = KeyError::new("/vif/0/mtu", Some(text.as_bytes()), Mtu::EXPECTED, DomId(0));
            let mut lines = Vec::new();
            let reported = Mtu::or_pass_over(Err(error.into()), |e| lines.push(e.to_string()));
            assert_eq!(reported, Ok(None), "{text:?}");
            assert_eq!(lines.len(), usize::from(!text.is_empty()), "{text:?}");
        }
        assert_eq!(examples::<Mtu>(), 3);
    }
}

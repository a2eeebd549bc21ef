//! Decodes messages from a stream of bytes, and encodes them.
//!
//! ```text
//! push("..."), push("...")  ->  | header | payload | header | pay   ->  next() -> Message, Message, None
//! ```
//! The stream may be cut anywhere; the same messages result. A peer may announce any length:
//! [`Parser::next`] fails before any memory is allocated for it, and keeps failing, since the
//! stream cannot be parsed any further.

use crate::wire::WireError;
use crate::wire::xs::{Errno, Header, MsgType, PAYLOAD_MAX};
use alloc::vec::Vec;

/// An emptied buffer keeps this much capacity. More is freed, since a peer that once filled it may
/// then be idle for ever.
pub const KEPT_BYTES: usize = 16 * 1024;

/// Empties a buffer, see [`KEPT_BYTES`].
pub fn empty(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > KEPT_BYTES {
        *buffer = Vec::new();
    }
}

/// One whole message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// The header as it was received.
    pub header: Header,
    /// The payload, which has as many bytes as the header announced.
    pub payload: Vec<u8>,
}

/// Collects bytes until they are whole messages.
#[derive(Default, Debug)]
pub struct Parser {
    bytes: Vec<u8>,
    /// Bytes at the start of `bytes` that were returned already.
    taken: usize,
}

impl Parser {
    /// A parser without bytes.
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), taken: 0 }
    }

    /// Number of bytes that were not returned yet. It is at most what was pushed: the caller limits
    /// it.
    pub fn buffered_bytes(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// Whether a whole message has arrived, or one that is too long.
    pub fn has_message(&self) -> bool {
        let rest = &self.bytes[self.taken..];
        let Some((head, body)) = rest.split_first_chunk::<{ Header::SIZE }>() else { return false };
        Header::from_bytes(*head).payload_len().map_or(true, |len_bytes| len_bytes <= body.len())
    }

    /// Appends more of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message. `None`: more bytes are needed.
    ///
    /// # Errors
    ///
    /// [`WireError::XsTooLong`] if the next message announces more than 4096 bytes. Close the
    /// connection.
    #[expect(clippy::should_implement_trait, reason = "an iterator that ends and then goes on would mislead")]
    pub fn next(&mut self) -> Result<Option<Message>, WireError> {
        let rest = &self.bytes[self.taken..];
        let Some((head, body)) = rest.split_first_chunk::<{ Header::SIZE }>() else { return Ok(None) };
        let header = Header::from_bytes(*head);
        let len_bytes = header.payload_len()?;
        let Some(payload) = body.get(..len_bytes) else { return Ok(None) };
        let payload = payload.to_vec();
        self.taken += Header::SIZE + len_bytes;
        if self.taken == self.bytes.len() {
            empty(&mut self.bytes);
            self.taken = 0;
        }
        Ok(Some(Message { header, payload }))
    }
}

/// Appends a message whose payload is the concatenated `parts`.
///
/// The caller ensures that the parts together have at most [`PAYLOAD_MAX`] bytes.
pub fn encode(out: &mut Vec<u8>, msg_type: u32, req_id: u32, tx_id: u32, parts: &[&[u8]]) {
    let len_bytes: usize = parts.iter().map(|p| p.len()).sum();
    debug_assert!(len_bytes <= PAYLOAD_MAX);
    out.reserve(Header::SIZE + len_bytes);
    out.extend_from_slice(&Header { msg_type, req_id, tx_id, len_bytes: len_bytes as u32 }.to_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Appends the reply to a request that failed.
pub fn encode_error(out: &mut Vec<u8>, request: &Header, errno: Errno) {
    let parts = [errno.name().as_bytes(), b"\0"];
    encode(out, MsgType::Error.raw(), request.req_id, request.tx_id, &parts);
}

/// The strings of a payload, each of which ends with a NUL. `None`: the last one does not, or there
/// is none.
pub fn strings(payload: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    Some(payload.strip_suffix(b"\0")?.split(|&b| b == 0))
}

/// The strings of a payload that has exactly `N` of them, each with its NUL, and nothing else.
pub fn exactly<const N: usize>(payload: &[u8]) -> Option<[&[u8]; N]> {
    let mut found = [&b""[..]; N];
    let mut count = 0;
    for s in strings(payload)? {
        *found.get_mut(count)? = s;
        count += 1;
    }
    (count == N).then_some(found)
}

/// A string with its NUL, and the bytes after it.
pub fn string_and_rest(payload: &[u8]) -> Option<(&[u8], &[u8])> {
    let nul = payload.iter().position(|&b| b == 0)?;
    Some((&payload[..nul], &payload[nul + 1..]))
}

/// Parses an unsigned decimal number. Signs, spaces and overflow are refused.
pub fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    core::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes_of_a_read() {
        let mut out = Vec::new();
        encode(&mut out, MsgType::Read.raw(), 7, 9, &[b"/a", b"\0"]);
        assert_eq!(out, b"\x02\0\0\0\x07\0\0\0\x09\0\0\0\x03\0\0\0/a\0");
    }

    #[test]
    fn announced_length_is_checked_before_anything_else() {
        let mut parser = Parser::new();
        parser.push(&Header { len_bytes: u32::MAX, ..Header::default() }.to_bytes());
        assert!(parser.next().is_err());
        parser.push(&[0; 64]);
        assert!(parser.next().is_err(), "the stream stays lost");
    }

    #[test]
    fn payloads_are_taken_apart_strictly() {
        assert_eq!(exactly::<1>(b"/a\0"), Some([&b"/a"[..]]));
        assert_eq!(exactly::<1>(b"/a"), None);
        assert_eq!(exactly::<1>(b""), None);
        assert_eq!(exactly::<1>(b"/a\0b\0"), None);
        assert_eq!(exactly::<2>(b"/a\0\0"), Some([&b"/a"[..], b""]));
        assert_eq!(string_and_rest(b"/a\0v\0w"), Some((&b"/a"[..], &b"v\0w"[..])));
        assert_eq!(string_and_rest(b"/a"), None);
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        for bad in [&b""[..], b"+1", b"-1", b" 1", b"1 ", b"18446744073709551616", b"0x1"] {
            assert_eq!(decimal(bad), None);
        }
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore)]
        fn any_bytes_are_survived(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..32)) {
            let mut parser = Parser::new();
            for chunk in &chunks {
                parser.push(chunk);
                while let Ok(Some(m)) = parser.next() {
                    prop_assert_eq!(m.payload.len(), m.header.len_bytes as usize);
                }
            }
        }

        #[test]
        #[cfg_attr(miri, ignore)]
        fn cuts_do_not_matter(
            messages in prop::collection::vec((0u32..30, any::<u32>(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..200)), 1..8),
            cuts in prop::collection::vec(1usize..50, 1..200),
        ) {
            let mut stream = Vec::new();
            for (t, r, x, p) in &messages {
                encode(&mut stream, *t, *r, *x, &[p]);
            }
            let mut parser = Parser::new();
            let mut seen = Vec::new();
            let mut rest = &stream[..];
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                let (chunk, after) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
                parser.push(chunk);
                rest = after;
                while let Some(m) = parser.next().unwrap() {
                    seen.push((m.header.msg_type, m.header.req_id, m.header.tx_id, m.payload));
                }
            }
            prop_assert_eq!(seen, messages);
            prop_assert_eq!(parser.buffered_bytes(), 0);
        }
    }
}

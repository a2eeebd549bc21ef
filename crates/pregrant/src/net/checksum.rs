//! The internet checksum (RFC 1071), and the checksum work that netif leaves (docs/protocol 2.7).
//!
//! A frame with `csum_blank` has only the sum over the pseudo-header in its TCP or UDP checksum
//! field. [`finish_blank`] adds the rest, [`make_blank`] reverts that, and [`verify`] checks a
//! complete one. A UDP checksum of 0 means that there is none, so a computed 0 is sent as 0xFFFF.
//!
//! Sums are kept folded to 16 bits in a `u32`, so that a few of them can be added before [`fold`].

use super::headers::{HeaderFault, IpHeaders, IpVersion, PROTOCOL_UDP};

/// The ones' complement sum of `bytes` as big-endian 16-bit words; an odd last byte is padded with
/// zero. It is below 0x1_0000. The sums of parts can be added if every part but the last has an
/// even length.
pub fn sum(bytes: &[u8]) -> u32 {
    // The sum is independent of the byte order until its end (RFC 1071, 2B): little-endian words,
    // swapped once.
    let mut wide = 0u64;
    let (words, rest) = bytes.as_chunks();
    // At most 2^32 words of 2^32: no overflow for any slice below 16 GiB.
    for word in words {
        wide += u64::from(u32::from_le_bytes(*word));
    }
    let mut last = [0; 4];
    for (to, byte) in last.iter_mut().zip(rest) {
        *to = *byte;
    }
    wide += u64::from(u32::from_le_bytes(last));
    wide = (wide & 0xFFFF_FFFF) + (wide >> 32);
    wide = (wide & 0xFFFF_FFFF) + (wide >> 32);
    u32::from(fold_words(wide as u32).swap_bytes())
}

fn fold_words(s: u32) -> u16 {
    let s = (s & 0xFFFF) + (s >> 16);
    ((s & 0xFFFF) + (s >> 16)) as u16
}

/// Folds added sums to 16 bits.
pub fn fold(sum: u32) -> u16 {
    fold_words(sum)
}

/// The internet checksum of `bytes`: the complement of their sum, as it is stored.
pub fn checksum(bytes: &[u8]) -> u16 {
    !fold(sum(bytes))
}

/// The sum over the IPv4 pseudo-header.
pub fn pseudo_v4(src: [u8; 4], dst: [u8; 4], protocol: u8, l4_len: u16) -> u32 {
    sum(&src) + sum(&dst) + u32::from(protocol) + u32::from(l4_len)
}

/// The sum over the pseudo-header of the packet in `frame`, for an L4 part of `l4_len` bytes.
pub fn pseudo(frame: &[u8], headers: &IpHeaders, l4_len: usize) -> Result<u32, HeaderFault> {
    if headers.routed {
        return Err(HeaderFault::Unsupported);
    }
    let (at, count) = match headers.version {
        IpVersion::V4 => (headers.l2_len + 12, 8),
        IpVersion::V6 => (headers.l2_len + 8, 32),
    };
    let both = frame.get(at..at + count).ok_or(HeaderFault::Truncated)?;
    let len = l4_len as u32;
    Ok(sum(both) + u32::from(headers.protocol) + (len >> 16) + (len & 0xFFFF))
}

/// Stores the complete checksum for a sum.
fn store_finished(frame: &mut [u8], at: usize, protocol: u8, total: u32) -> Result<(), HeaderFault> {
    let value = match !fold(total) {
        0 if protocol == PROTOCOL_UDP => 0xFFFF,
        v => v,
    };
    store(frame, at, value)
}

/// Stores a checksum.
fn store(frame: &mut [u8], at: usize, value: u16) -> Result<(), HeaderFault> {
    let field = frame.get_mut(at..).and_then(<[u8]>::first_chunk_mut).ok_or(HeaderFault::Truncated)?;
    *field = value.to_be_bytes();
    Ok(())
}

/// Completes the checksum of a frame whose field has the pseudo-header's sum. On an error the frame
/// is unchanged.
pub fn finish_blank(frame: &mut [u8]) -> Result<(), HeaderFault> {
    let headers = IpHeaders::parse(frame)?;
    let at = headers.checksum_at()?;
    // The field itself has the pseudo-header's sum, so the sum over the L4 part includes it.
    let total = sum(frame.get(headers.l4_at..headers.end).ok_or(HeaderFault::Truncated)?);
    store_finished(frame, at, headers.protocol, total)
}

/// Completes a checksum of any protocol at a given place: over all bytes from `start` on, stored at
/// `offset` from there. The field's old value is part of the sum. If the field is outside of the
/// frame, the frame is unchanged and this is an error.
pub fn finish_at(frame: &mut [u8], start: usize, offset: usize) -> Result<(), HeaderFault> {
    let covered = frame.get(start..).ok_or(HeaderFault::Truncated)?;
    if covered.len() < offset + 2 {
        return Err(HeaderFault::Truncated);
    }
    // For UDP a 0 would mean that there is none; for other protocols 0 and 0xFFFF are equivalent.
    let total = sum(covered);
    store_finished(frame, start + offset, PROTOCOL_UDP, total)
}

/// Replaces the checksum of a TCP or UDP frame by the pseudo-header's sum, as `csum_blank` means.
/// On an error the frame is unchanged.
pub fn make_blank(frame: &mut [u8]) -> Result<(), HeaderFault> {
    let headers = IpHeaders::parse(frame)?;
    let at = headers.checksum_at()?;
    let value = fold(pseudo(frame, &headers, headers.l4_len())?);
    store(frame, at, value)
}

/// Computes a TCP or UDP frame's checksum, whatever its field had.
pub fn fill(frame: &mut [u8]) -> Result<(), HeaderFault> {
    make_blank(frame)?;
    finish_blank(frame)
}

/// Whether the checksum of a TCP or UDP frame is right. A UDP datagram over IPv4 without a checksum
/// counts as right.
pub fn verify(frame: &[u8]) -> Result<bool, HeaderFault> {
    let headers = IpHeaders::parse(frame)?;
    let at = headers.checksum_at()?;
    if headers.protocol == PROTOCOL_UDP && frame[at..at + 2] == [0, 0] {
        return Ok(headers.version == IpVersion::V4);
    }
    let total = pseudo(frame, &headers, headers.l4_len())? + sum(&frame[headers.l4_at..headers.end]);
    Ok(fold(total) == 0xFFFF)
}

//! Numbered frames of any length; those that need more than one slot for each page are large TCP
//! segments.
//!
//! ```text
//!   up to 9000 bytes:   | numbered frame                         |     pregrant_host::ports::sequence
//!   longer:             | Ethernet, IPv4, TCP | numbered frame    |     blank checksum, segments of MSS bytes
//! ```

use pregrant::PAGE_SIZE;
use pregrant::net::checksum;
use pregrant::port::Offload;
use pregrant::wire::netif::GSO_TYPE_TCPV4;
use pregrant_host::ports::sequence::{self, Wrong};

/// Frames that are longer than this are large segments.
const LONGEST: usize = 9000;
const HEADERS: usize = 54;
const TO_BE_CUT: Offload =
    Offload { csum_blank: true, csum_ok: true, gso_type: GSO_TYPE_TCPV4, gso_size: 1448 };

/// Number of ring slots that such a frame needs.
pub fn slots(len: usize) -> usize {
    len.div_ceil(PAGE_SIZE)
}

/// Frame `seq` of `len` bytes.
pub fn make(seq: u64, len: usize) -> (Vec<u8>, Offload) {
    let mut frame = vec![0; len];
    if len <= LONGEST {
        sequence::fill(&mut frame, seq);
        return (frame, Offload::default());
    }
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    frame[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 6]);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[34..38].copy_from_slice(&[0, 1, 0, 2]);
    frame[46..48].copy_from_slice(&[0x50, 0x10]);
    checksum::make_blank(&mut frame).expect("a TCP packet");
    sequence::fill(&mut frame[HEADERS..], seq);
    (frame, TO_BE_CUT)
}

/// The number of a frame, if it is intact.
pub fn check(frame: &[u8], offload: Offload) -> Result<u64, Wrong> {
    let said = Offload { csum_ok: offload.csum_blank, ..offload };
    if frame.len() <= LONGEST {
        let seq = sequence::check(frame)?;
        // The model guest has shorter ones cut.
        return if [Offload::default(), TO_BE_CUT].contains(&said) { Ok(seq) } else { Err(Wrong::Damaged) };
    }
    let seq = sequence::check(&frame[HEADERS..])?;
    if (frame, said) == (&make(seq, frame.len()).0, TO_BE_CUT) { Ok(seq) } else { Err(Wrong::Damaged) }
}

/// The number in the first bytes of a frame.
pub fn number(head: &[u8]) -> u64 {
    let numbered = if head[12..14] == [8, 0] { &head[HEADERS..] } else { head };
    u64::from_le_bytes(numbered[16..24].try_into().expect("8 bytes"))
}

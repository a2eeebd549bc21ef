//! A disk's number, as in xenstore paths, and its name for users (Xen's
//! `docs/man/xen-vbd-interface`).
//!
//! ```text
//!   xvda    51712 = 202 << 8               xvdb  51728 = 202 << 8 | 1 << 4        xvda1  51713
//!   xvdq    1 << 28 | 16 << 8              from the 17th disk, or the 16th partition, on
//! ```
//! Other names (`hda`, `sda`) depend on the guest's system, so such disks are shown by number.

use alloc::format;
use alloc::string::String;

/// Linux's major number of Xen's virtual disks.
const MAJOR: u32 = 202;
const EXTENDED: u32 = 1 << 28;

/// Parses a name such as `xvda` or `xvdb3`, or a decimal number. None: it is neither.
pub fn parse(text: &str) -> Option<u32> {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return text.parse().ok();
    }
    let rest = text.strip_prefix("xvd")?;
    let letters = rest.trim_end_matches(|c: char| c.is_ascii_digit());
    let (partition, is_ascii) = (&rest[letters.len()..], letters.bytes().all(|b| b.is_ascii_lowercase()));
    if letters.is_empty() || letters.len() > 4 || !is_ascii || partition.starts_with('0') {
        return None;
    }
    let disk = letters.bytes().fold(0, |n, letter| n * 26 + u32::from(letter - b'a') + 1) - 1;
    let partition = if partition.is_empty() { 0 } else { partition.parse().ok()? };
    match (disk, partition) {
        (0..16, 0..16) => Some(MAJOR << 8 | disk << 4 | partition),
        (0..0x10_0000, 0..256) => Some(EXTENDED | disk << 8 | partition),
        _ => None,
    }
}

/// The name for a number, or the number in decimal if there is no name.
pub fn name(number: u32) -> String {
    let (disk, partition) = match number {
        _ if number >> 28 == 1 => ((number & !EXTENDED) >> 8, number & 0xFF),
        _ if number >> 8 == MAJOR => ((number & 0xFF) >> 4, number & 0xF),
        _ => return format!("{number}"),
    };
    let mut letters = String::new();
    let mut left = disk + 1;
    while left > 0 {
        letters.insert(0, char::from(b'a' + ((left - 1) % 26) as u8));
        left = (left - 1) / 26;
    }
    if partition == 0 { format!("xvd{letters}") } else { format!("xvd{letters}{partition}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_those_of_xens_page() {
        let known = [
            ("xvda", 51712),
            ("xvdb", 51728),
            ("xvda1", 51713),
            ("xvdp15", 51967),
            ("xvdq", 0x1000_1000),
            ("xvda16", 0x1000_0010),
            ("xvdz", 0x1000_1900),
            ("xvdaa", 0x1000_1A00),
        ];
        for (text, number) in known {
            assert_eq!((parse(text), name(number).as_str()), (Some(number), text));
        }
        assert_eq!((parse("51712"), parse("768")), (Some(51712), Some(768)));
        assert_eq!(name(768), "768");
        for bad in [
            "",
            "xvd",
            "xvda01",
            "xvdA",
            "sda",
            "xvda256",
            "xvd1",
            "99999999999",
            "xvdaaaaa",
            "5x",
            "xvd\u{e9}",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}

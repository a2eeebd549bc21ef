//! A number of bytes with a unit, as an option's value.

/// Parses a number with a unit, such as `64K` or `2G`.
pub fn amount(text: &str) -> std::result::Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    let number = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    number.ok_or_else(|| "a number of bytes, such as 1500, 64K or 2G".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        assert_eq!([amount("0"), amount("64k"), amount("2G")], [Ok(0), Ok(65536), Ok(2 << 30)]);
        for bad in ["", "k", "-1", "1.5G", "1T", "99999999999G"] {
            assert!(amount(bad).is_err(), "{bad}");
        }
    }
}

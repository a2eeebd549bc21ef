//! Text from others as messages show it: without control characters and of limited length. What is
//! left out is stated.

/// Returns at most `most` characters of a text, and the number of characters left out.
/// ```
/// use pregrant_host::excerpt::excerpt;
/// assert_eq!(excerpt("vif\n", 10), "vif?");
/// assert_eq!(excerpt("0123456789", 4), "0123... (6 more)");
/// ```
pub fn excerpt(text: &str, most: usize) -> String {
    let shown = |c: char| if c.is_control() { '?' } else { c };
    let mut chars = text.chars();
    let mut out: String = chars.by_ref().take(most).map(shown).collect();
    let left_out = chars.count();
    if left_out > 0 {
        out += &format!("... ({left_out} more)");
    }
    out
}

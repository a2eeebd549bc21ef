//! The style sheet, and tests of its colours.

/// The style sheet that is embedded in page and picture.
pub const SHEET: &str = include_str!("style.css");

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the colour of this name in set `nth`: the first set is for light backgrounds, the
    /// second for dark ones.
    fn colour(name: &str, nth: usize) -> [f64; 3] {
        let key = format!("--{name}: #");
        let (at, _) =
            SHEET.match_indices(&key).nth(nth).unwrap_or_else(|| panic!("{name} has no colour {nth}"));
        let hex = &SHEET[at + key.len()..at + key.len() + 6];
        [0, 2, 4].map(|i| f64::from(u8::from_str_radix(&hex[i..i + 2], 16).unwrap()) / 255.0)
    }

    /// Returns the relative luminance of a colour, as WCAG 2.1 defines it.
    fn luminance(rgb: [f64; 3]) -> f64 {
        let [r, g, b] = rgb.map(|c| if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) });
        0.2126 * r + 0.7152 * g + 0.0722 * b
    }

    fn contrast(a: [f64; 3], b: [f64; 3]) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    /// Contrast as WCAG 2.1 AA demands it: 4.5 for text, 3 for meaningful parts of a drawing.
    #[test]
    fn contrast_suffices_in_light_and_dark() {
        assert!((contrast([0.0; 3], [1.0; 3]) - 21.0).abs() < 1e-9);
        for nth in [0, 1] {
            for text in ["text", "quiet", "link", "warn", "line"] {
                for ground in ["page", "panel"] {
                    let ratio = contrast(colour(text, nth), colour(ground, nth));
                    assert!(ratio >= 4.5, "{text} on {ground}, set {nth}: {ratio:.2}");
                }
            }
            for series in 0..8 {
                let ratio = contrast(colour(&format!("s{series}"), nth), colour("page", nth));
                assert!(ratio >= 3.0, "s{series}, set {nth}: {ratio:.2}");
            }
            for ground in ["silence", "attach"] {
                let ratio = contrast(colour("text", nth), colour(ground, nth));
                assert!(ratio >= 4.5, "text on {ground}, set {nth}: {ratio:.2}");
            }
        }
    }

    #[test]
    fn the_sheet_names_no_other_resource_and_fits_xml() {
        for word in ["url(", "@import", "http:", "https:", "<", "&"] {
            assert!(!SHEET.contains(word), "{word}");
        }
    }
}

//! Comments that fit: a line of a comment has at most [`COLUMNS`]; a row of a table and a picture
//! may be wider.

use super::Source;

/// Columns of a line of a comment, its indentation included.
const COLUMNS: usize = 100;

/// Lines of comments that are too wide.
pub fn check(Source { path, text }: &Source) -> Vec<String> {
    let mut is_picture = false;
    let mut offences = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let code = line.trim_start();
        let Some(comment) = code.strip_prefix("//").map(|c| c.trim_start_matches(['/', '!'])) else {
            is_picture = false;
            let behind = code.split_once(" // ").is_some_and(|(before, _)| !before.contains('"'));
            if behind && line.chars().count() > COLUMNS {
                offences.push(format!("{path}:{number}: a comment behind code past column {COLUMNS}"));
            }
            continue;
        };
        let comment = comment.trim();
        if comment.starts_with("```") {
            is_picture = !is_picture;
        } else if !is_picture && !comment.starts_with('|') && line.chars().count() > COLUMNS {
            offences.push(format!("{path}:{number}: a comment past column {COLUMNS}"));
        }
    }
    offences
}

#[cfg(test)]
mod tests {
    use super::{COLUMNS, Source, check};

    fn offences(text: &str) -> usize {
        check(&Source { path: "a.rs".into(), text: text.into() }).len()
    }

    #[test]
    fn comments_fit() {
        let wide = "x".repeat(COLUMNS);
        assert_eq!(offences(&format!("// {wide}\n    /// {wide}\n//! {wide}\nf(); // {wide}\n")), 4);
        assert_eq!(
            offences(&format!("//! ```\n//! {wide}\n//! ```\n//! | {wide} |\nf(\"// {wide}\");\n")),
            0
        );
        assert_eq!(offences(&format!("// {}\n", "x".repeat(COLUMNS - 3))), 0);
    }
}

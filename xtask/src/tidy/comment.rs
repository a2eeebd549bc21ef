//! Comments that fit: a line of a comment has at most [`COLUMNS`]; a row of a table and a picture
//! may be wider. A comment names its subject: it does not begin "What .. is".

use super::Source;

/// Columns of a line of a comment, its indentation included.
const COLUMNS: usize = 100;
/// Width of a tab in C, at least where it indents.
const TAB: usize = 8;

/// Returns the lines of comments that are too wide.
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
        if !is_picture && has_no_subject(comment) {
            offences.push(format!("{path}:{number}: a comment that begins \"What .. is\": name its subject"));
        }
        if comment.starts_with("```") {
            is_picture = !is_picture;
        } else if !is_picture && !comment.starts_with('|') && line.chars().count() > COLUMNS {
            offences.push(format!("{path}:{number}: a comment past column {COLUMNS}"));
        }
    }
    offences
}

/// Whether a comment begins "What .. is" in place of a noun.
fn has_no_subject(comment: &str) -> bool {
    let clause = comment.split(['.', ',', ';', ':']).next().unwrap_or_default();
    let mut words = clause.split(' ');
    words.next() == Some("What") && words.any(|word| ["is", "are", "was", "were"].contains(&word))
}

/// Checks comments in C, systemd units and TOML. A line with an arrow, a bar or columns is part of
/// a picture.
pub fn check_other(Source { path, text }: &Source) -> Vec<String> {
    let marks: &[&str] = match path.rsplit('.').next() {
        Some("c" | "h") => &["/* ", "* ", "// "],
        Some("service" | "socket" | "toml") => &["# "],
        _ => return Vec::new(),
    };
    let is_wide = |line: &str| {
        let tabs = line.matches('\t').count();
        line.chars().count() + tabs * (TAB - 1) > COLUMNS
    };
    let is_offence = |line: &str| {
        let comment = marks.iter().find_map(|mark| line.trim_start().strip_prefix(mark));
        let is_picture = |comment: &str| ["  ", "--", "|"].iter().any(|part| comment.contains(part));
        is_wide(line) && comment.is_some_and(|comment| !is_picture(comment))
    };
    let lines = text.lines().zip(1..).filter(|(line, _)| is_offence(line));
    lines.map(|(_, number)| format!("{path}:{number}: a comment past column {COLUMNS}")).collect()
}

#[cfg(test)]
mod tests {
    use super::{COLUMNS, Source, check, check_other};

    #[test]
    fn comments_name_their_subject() {
        let what = "What";
        assert_eq!(offences(&format!("/// {what} is given.\n    // {what} no one reads was lost.\n")), 2);
        assert_eq!(offences(&format!("//! {what} a guest may do: nothing that is seen.\n")), 0);
        assert_eq!(offences("/// The rest. What is left of it.\n"), 0);
    }

    #[test]
    fn comments_of_other_languages_fit() {
        let wide = "x".repeat(COLUMNS);
        let offences = |path: &str, text: String| check_other(&Source { path: path.into(), text }).len();
        assert_eq!(offences("a.c", format!("\t * {wide}\n/* {wide} */\nf({wide});\n * a --> {wide}\n")), 2);
        assert_eq!(offences("a.h", format!("\t * {}\n", "x".repeat(COLUMNS - 10))), 1);
        assert_eq!(offences("a.service", format!("# {wide}\nA={wide}\n")), 1);
        assert_eq!(offences("a.sh", format!("# {wide}\n")), 0);
    }

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

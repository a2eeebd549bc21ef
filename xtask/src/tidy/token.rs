//! Rust text to the few tokens that the rules read; comments and characters are gone, and strings
//! unless they are asked for.

/// A token and its line, counted from 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Token {
    pub line: usize,
    pub kind: Kind,
}

/// The tokens that the rules distinguish.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    Ident(String),
    /// `::`
    PathSep,
    /// The text of a string literal.
    Text(String),
    Mark(char),
}

impl Token {
    /// The identifier, if it is one.
    pub fn ident(&self) -> Option<&str> {
        match &self.kind {
            Kind::Ident(name) => Some(name),
            _ => None,
        }
    }

    /// True if the token is this identifier or keyword.
    pub fn is_ident(&self, name: &str) -> bool {
        self.ident() == Some(name)
    }

    /// The text, if it is a string literal.
    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Text(text) => Some(text),
            _ => None,
        }
    }

    /// True if the token is this character.
    pub fn is_mark(&self, mark: char) -> bool {
        self.kind == Kind::Mark(mark)
    }
}

/// The tokens of a file, without strings.
pub fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = tokens_and_texts(text);
    tokens.retain(|token| token.text().is_none());
    tokens
}

/// The tokens of a file.
pub fn tokens_and_texts(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let mut out = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < chars.len() {
        let rest = &chars[at..];
        let (len, kind) = match rest {
            ['/', '/', ..] => (until_newline(rest), None),
            ['/', '*', ..] => (block_comment(rest), None),
            ['"', ..] => (string(rest), Some(Kind::Text(unescaped(&rest[..string(rest)])))),
            ['r' | 'b' | 'c', ..] if raw_string(rest).is_some() => {
                let len = raw_string(rest).unwrap_or(1);
                let raw = rest[..len].iter().collect::<String>();
                let said = raw.split_once('"').and_then(|(_, text)| text.rsplit_once('"'));
                (len, said.map(|(text, _)| Kind::Text(text.into())))
            }
            ['\'', ..] => (character(rest), None),
            [':', ':', ..] => (2, Some(Kind::PathSep)),
            [c, ..] if c.is_alphanumeric() || *c == '_' => {
                let len = rest.iter().take_while(|c| c.is_alphanumeric() || **c == '_').count();
                (len, Some(Kind::Ident(rest[..len].iter().collect())))
            }
            [c, ..] if c.is_whitespace() => (1, None),
            [c, ..] => (1, Some(Kind::Mark(*c))),
            [] => break,
        };
        out.extend(kind.map(|kind| Token { line, kind }));
        line += rest[..len].iter().filter(|c| **c == '\n').count();
        at += len;
    }
    out
}

fn until_newline(rest: &[char]) -> usize {
    rest.iter().take_while(|c| **c != '\n').count()
}

/// Returns the length of a block comment. Block comments nest in Rust.
fn block_comment(rest: &[char]) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at < rest.len() {
        match &rest[at..] {
            ['/', '*', ..] => (at, depth) = (at + 2, depth + 1),
            ['*', '/', ..] if depth == 1 => return at + 2,
            ['*', '/', ..] => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
    }
    rest.len()
}

fn string(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Returns the text of a plain string literal. Its escapes are decoded, except for those with a
/// character's code.
fn unescaped(literal: &[char]) -> String {
    let mut said = String::new();
    let mut rest = literal.get(1..literal.len().saturating_sub(1)).unwrap_or_default();
    while let [c, tail @ ..] = rest {
        rest = match (c, tail) {
            ('\\', ['\n', tail @ ..]) => {
                let blank = tail.iter().take_while(|c| c.is_whitespace()).count();
                &tail[blank..]
            }
            ('\\', [escaped, tail @ ..]) => {
                said.push(match escaped {
                    'n' => '\n',
                    't' => '\t',
                    other => *other,
                });
                tail
            }
            _ => {
                said.push(*c);
                tail
            }
        };
    }
    said
}

/// Returns the length of `r"..."`, `br#"..."#` and their like. None: no raw string starts here.
fn raw_string(rest: &[char]) -> Option<usize> {
    let prefix = rest.iter().take_while(|c| matches!(c, 'r' | 'b' | 'c')).count();
    if prefix > 2 || rest[prefix - 1] != 'r' {
        return None;
    }
    let hashes = rest[prefix..].iter().take_while(|c| **c == '#').count();
    let open = prefix + hashes;
    if rest.get(open) != Some(&'"') {
        return None;
    }
    let closes = |at: &usize| {
        rest[*at] == '"' && rest[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
    };
    (open + 1..rest.len()).find(closes).map(|at| at + 1 + hashes).or(Some(rest.len()))
}

/// Returns the length of a character literal, or of the quote of a lifetime.
fn character(rest: &[char]) -> usize {
    match rest {
        ['\'', '\\', ..] => 3 + rest.iter().skip(3).take_while(|c| **c != '\'').count(),
        ['\'', _, '\'', ..] => 3,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::{tokens, tokens_and_texts};

    fn idents(text: &str) -> Vec<String> {
        tokens(text).iter().filter_map(|t| t.ident().map(str::to_string)).collect()
    }

    #[test]
    fn comments_strings_and_characters_are_gone() {
        assert_eq!(idents("a /* b /* c */ d */ e // f\ng"), ["a", "e", "g"]);
        assert_eq!(idents(r##"a("b \" c", r#"d " e"#, br"f", 'g', '\'', '\n') h"##), ["a", "h"]);
        assert_eq!(idents("fn f<'a>(x: &'a str)"), ["fn", "f", "a", "x", "a", "str"]);
    }

    #[test]
    fn strings_say_what_they_would_print() {
        let texts = |text: &str| -> Vec<String> {
            tokens_and_texts(text).iter().filter_map(|t| t.text().map(str::to_string)).collect()
        };
        assert_eq!(texts("f(\"a \\\"b\\\" \\\n     c\", r#\"d \"e\"\"#)"), ["a \"b\" c", "d \"e\""]);
        assert_eq!(texts("// \"no\"\n'\"' x"), [""; 0]);
    }

    #[test]
    fn lines_are_counted_through_what_is_skipped() {
        let found = tokens("/* 1\n2 */ \"3\n\" here");
        assert_eq!(found.iter().map(|t| t.line).collect::<Vec<_>>(), [3]);
    }
}

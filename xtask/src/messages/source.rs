//! The messages of the source: string literals where a line is written or an error is made.
//!
//! ```text
//!   lines    warn!("..."), error!("..."), say(Level::Warn, &"..."), (Level::Warn, format!("..."))
//!            LINES.warn(format_args!("...")), LINES.error(format_args!("..."))
//!            let level = if .. { Level::Info } else { Level::Warn }; log.say(level, &"...")
//!            file.complain(..); fn line(..) { format!("...") } of a path's refusal, fn strange(..)
//!   errors   #[error("...")], Err(format!("...")), map_err(|e| format!("...")), ok_or_else(..),
//!            Lost(..), refused(..), failures.push(..), and by closures and functions called there
//!            impl Display for XFault { .. write!(f, "...") .. }, FrontError::Lacks("...")
//! ```
//! A call may name its literal by a variable or a constant of the same file. One that only passes
//! an error on has no text of its own: the error is found where it is made.

use super::message::{Kind, Message, words};
use crate::tidy::token::{Token, tokens_and_texts};
use std::fs;
use std::ops::Range;
use std::path::Path;

/// The programs and libraries that users run.
const CRATES: &[&str] =
    &["pregrant", "pregrant-xenstored", "pregrant-host", "pregrant-loopback", "pregrant-cli"];

/// Files of the laboratory's commands that are run by hand beside a backend. Benchmarks are not
/// among them.
const OF_THE_LABORATORY: &[&str] = &["front.rs", "frames.rs", "frames", "loopback.rs", "store.rs"];

/// Files and folders without messages of their own: budgets of lines, checks, a test's reader, and
/// faults in a frame's headers, for which the frame is dropped and counted.
const LEFT_OUT: &[&str] = &["device_log", "line_budget", "conformance", "exposition", "headers"];

/// Suffixes of type names whose `Display` is a message.
const ERRORS: &[&str] =
    &["Fault", "Refusal", "Error", "Broken", "NoStatus", "BadRate", "NotOffered", "TooManyPages"];

/// Variants of errors that contain a text, and functions that make an error from a text.
const WORDY: &[&str] = &["Lost", "Unready", "Busy", "refused"];

/// Least number of words of a message; a shorter text only joins others, unless it says what cannot
/// be done or failed.
const WORDS_LEAST: usize = 3;

/// All messages, in the order of files and lines.
pub fn all(root: &Path) -> Result<Vec<Message>, String> {
    let mut messages = Vec::new();
    for name in CRATES {
        collect(root, &root.join("crates").join(name).join("src"), &mut messages)?;
    }
    for name in OF_THE_LABORATORY {
        gather(root, &root.join("crates/pregrant-lab/src").join(name), &mut messages)?;
    }
    if messages.is_empty() { Err("found no messages in the source".into()) } else { Ok(messages) }
}

fn collect(root: &Path, dir: &Path, into: &mut Vec<Message>) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", dir.display());
    let entries = fs::read_dir(dir).map_err(failed)?.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().try_for_each(|path| gather(root, path, into))
}

/// Collects the messages of a file, or of all files below a folder.
fn gather(root: &Path, path: &Path, into: &mut Vec<Message>) -> Result<(), String> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    if name == "tests" || name.ends_with("_tests") || LEFT_OUT.contains(&&*name) {
        return Ok(());
    }
    if path.is_dir() {
        collect(root, path, into)?;
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let path = path.strip_prefix(root).unwrap_or(path).to_string_lossy().replace('\\', "/");
        into.extend(messages(&path, &text));
    }
    Ok(())
}

fn messages(path: &str, text: &str) -> Vec<Message> {
    let file = File { tokens: without_tests(tokens_and_texts(text)) };
    let mut found: Vec<(usize, Kind, String)> = Vec::new();
    for at in 0..file.tokens.len() {
        let text = |kind, text: Option<String>| text.map(|text| (at, kind, text));
        found.extend(text(Kind::Line, file.line(at)));
        found.extend(text(Kind::Line, file.refused(at)));
        // The core's errors have types, and its own operations no words for users.
        if !path.starts_with("crates/pregrant/") || file.ident(at).is_some_and(|n| WORDY.contains(&n)) {
            found.extend(file.errors(at).into_iter().map(|text| (at, Kind::Error, text)));
        }
        found.extend(file.display(at).into_iter().map(|text| (at, Kind::Error, text)));
    }
    let mut messages: Vec<Message> = Vec::new();
    for (_, kind, text) in found {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let message = Message { kind, text, path: path.into() };
        // An error that is written at once is a line, and no second message.
        let is_known = messages.iter().any(|m| m.text == message.text);
        let has = words(&message.text);
        let is_whole = has.contains(&"cannot") || has.contains(&"failed");
        if (has.len() >= WORDS_LEAST || is_whole) && !is_known {
            messages.push(message);
        }
    }
    messages
}

/// The tokens up to the first module of tests; one that is a file of its own ends nothing.
fn without_tests(mut tokens: Vec<Token>) -> Vec<Token> {
    let is_tests = |at: &usize| {
        let [cfg, _, test, close, _, item @ ..] = &tokens[*at..] else { return false };
        cfg.is_ident("cfg") && test.is_ident("test") && close.is_mark(')') && is_module(item)
    };
    if let Some(at) = (0..tokens.len()).find(is_tests) {
        tokens.truncate(at);
    }
    tokens
}

/// Whether these tokens begin with a module, of any visibility, that is written out.
fn is_module(item: &[Token]) -> bool {
    let item = match item {
        [public, open, rest @ ..] if public.is_ident("pub") && open.is_mark('(') => {
            let close = rest.iter().position(|token| token.is_mark(')'));
            close.map_or(rest, |close| &rest[close + 1..])
        }
        [public, rest @ ..] if public.is_ident("pub") => rest,
        item => item,
    };
    matches!(item, [module, _, open, ..] if module.is_ident("mod") && open.is_mark('{'))
}

struct File {
    tokens: Vec<Token>,
}

impl File {
    fn ident(&self, at: usize) -> Option<&str> {
        self.tokens.get(at)?.ident()
    }

    fn is_mark(&self, at: usize, mark: char) -> bool {
        self.tokens.get(at).is_some_and(|token| token.is_mark(mark))
    }

    /// The text of the line that is written at a token.
    fn line(&self, at: usize) -> Option<String> {
        match self.ident(at)? {
            "warn" | "error" if self.is_mark(at + 1, '!') && self.is_mark(at + 2, '(') => {
                self.said(self.group(at + 2))
            }
            "warn" | "error" | "complain"
                if at > 0 && self.is_mark(at - 1, '.') && self.is_mark(at + 1, '(') =>
            {
                self.said(self.group(at + 1))
            }
            "Level" if matches!(self.ident(at + 2), Some("Warn" | "Error")) => {
                let open = self.opener(at)?;
                if !self.tokens[open].is_mark('{') {
                    return self.said(self.group(open));
                }
                let by_name = |from: &usize| {
                    self.is_mark(*from, '(')
                        && self.ident(from + 1) == Some("level")
                        && self.is_mark(from + 2, ',')
                };
                self.said(self.group((at..self.tokens.len()).find(by_name)?))
            }
            // `FrontError`, whose `Display` has no text of its own.
            "Lacks" if self.is_mark(at + 1, '(') => self.literal(self.group(at + 1)),
            _ => None,
        }
    }

    /// The text of the function `line`, or of `strange`, that begins at a token.
    fn refused(&self, at: usize) -> Option<String> {
        if self.ident(at) != Some("fn") || !matches!(self.ident(at + 1), Some("line" | "strange")) {
            return None;
        }
        let body = self.group((at..self.tokens.len()).find(|i| self.is_mark(*i, '{'))?);
        let is_format =
            |at: usize| at >= 3 && self.is_mark(at - 2, '!') && self.ident(at - 3) == Some("format");
        let texts = body.filter(|at| is_format(*at)).filter_map(|at| self.literal(at..at + 1));
        texts.into_iter().find(|text| words(text).len() >= WORDS_LEAST)
    }

    /// The texts of the error that is made at a token, and of the functions that it is made by.
    fn errors(&self, at: usize) -> Vec<String> {
        let Some(group) = self.maker(at) else { return Vec::new() };
        let (mut texts, mut groups, mut seen) = (Vec::new(), vec![group], Vec::new());
        while let Some(group) = groups.pop() {
            texts.extend(self.sentences(group.clone()));
            for name in group.filter(|i| self.is_made_by(*i)).filter_map(|i| self.ident(i)) {
                if !seen.contains(&name) {
                    seen.push(name);
                    groups.extend(self.function(name, at));
                }
            }
        }
        texts
    }

    /// Whether the identifier at a token is of a function or closure that may make the text.
    fn is_made_by(&self, at: usize) -> bool {
        let is_member = at > 0 && self.is_mark(at - 1, '.');
        let is_last = self.is_mark(at - 1, '(') && self.is_mark(at + 1, ')');
        !is_member && (is_last || self.is_mark(at + 1, '('))
    }

    /// The body of a closure that was bound to a name before `at`, or of the file's function of
    /// that name if it returns text or an error.
    fn function(&self, name: &str, at: usize) -> Option<Range<usize>> {
        let is_of = |word: &'static str| {
            move |i: &usize| self.ident(*i) == Some(word) && self.ident(i + 1) == Some(name)
        };
        let start = (0..at).rev().find(|i| self.ident(*i) == Some("fn")).unwrap_or(0);
        if let Some(found) = (start..at).rev().find(is_of("let")) {
            let is_closure = self.is_mark(found + 2, '=')
                && (self.is_mark(found + 3, '|') || self.ident(found + 3) == Some("move"));
            return is_closure.then(|| found + 3..self.end(found));
        }
        let found = (0..self.tokens.len()).find(is_of("fn"))?;
        let open = (found..self.tokens.len()).find(|i| self.is_mark(*i, '{'))?;
        let words = &self.tokens[found..open];
        let returned = words.iter().rposition(|token| token.is_mark('>'))?;
        let is_words = |token: &Token| ["String", "str", "Error"].iter().any(|name| token.is_ident(name));
        words[returned..].iter().any(is_words).then(|| self.group(open))
    }

    /// The end of a statement that begins at a token.
    fn end(&self, at: usize) -> usize {
        let mut i = at;
        while i < self.tokens.len() && !self.is_mark(i, ';') {
            let is_open = ['(', '[', '{'].iter().any(|mark| self.is_mark(i, *mark));
            i = if is_open { self.group(i).end + 1 } else { i + 1 };
        }
        i
    }

    /// The tokens in the brackets of a call that makes an error, if one is at a token.
    fn maker(&self, at: usize) -> Option<Range<usize>> {
        let name = self.ident(at)?;
        let is_attribute = at >= 2 && self.is_mark(at - 1, '[') && self.is_mark(at - 2, '#');
        let makes = match name {
            "error" => is_attribute,
            "Err" | "map_err" | "ok_or" | "ok_or_else" | "fail" => true,
            "push" => at >= 2 && self.ident(at - 2) == Some("failures"),
            // An operation alone is for another text.
            "refused" => self.tokens.get(at + 2).is_some_and(|token| token.text().is_none()),
            _ => WORDY.contains(&name),
        };
        if !makes || !self.is_mark(at + 1, '(') {
            return None;
        }
        let group = self.group(at + 1);
        // The operation of a platform error, whose text becomes part of another text.
        let is_op = self.tokens[group.clone()].iter().any(|token| token.is_ident("PlatformError"));
        if is_op { None } else { Some(group) }
    }

    /// The literals among these tokens that are texts of their own: alone in their brackets,
    /// formatted, or made a `String`. Others name an operation for another text.
    fn sentences(&self, among: Range<usize>) -> Vec<String> {
        let is_whole = |at: &usize| {
            let is_formatted = *at >= 3 && self.is_mark(at - 1, '(') && self.is_mark(at - 2, '!');
            let is_made = matches!(self.ident(at + 2), Some("into" | "to_string" | "to_owned"))
                || *at >= 2 && self.is_mark(at - 1, '(') && self.ident(at - 2) == Some("from");
            self.tokens[*at].text().is_some() && (*at == among.start || is_formatted || is_made)
        };
        among.clone().filter(is_whole).filter_map(|at| self.literal(at..at + 1)).collect()
    }

    /// The texts of the `impl Display` that begins at a token.
    fn display(&self, at: usize) -> Vec<String> {
        let is_display = self.ident(at) == Some("Display") && self.ident(at + 1) == Some("for");
        let is_error = |name: &str| ERRORS.iter().any(|end| name.ends_with(end));
        if !is_display || !self.ident(at + 2).is_some_and(is_error) {
            return Vec::new();
        }
        let Some(open) = (at..self.tokens.len()).find(|i| self.is_mark(*i, '{')) else { return Vec::new() };
        let body = self.group(open);
        self.tokens[body].iter().filter_map(|token| token.text().map(str::to_string)).collect()
    }

    /// The bracket that is open at a token.
    fn opener(&self, at: usize) -> Option<usize> {
        let mut closed = 0_usize;
        for i in (0..at).rev() {
            let is_one_of = |marks: &[char]| marks.iter().any(|mark| self.is_mark(i, *mark));
            if is_one_of(&[')', ']', '}']) {
                closed += 1;
            } else if is_one_of(&['(', '[', '{']) {
                if closed == 0 {
                    return Some(i);
                }
                closed -= 1;
            }
        }
        None
    }

    /// The text between the bracket at `open` and its end.
    fn group(&self, open: usize) -> Range<usize> {
        let mut depth = 0_usize;
        for i in open..self.tokens.len() {
            let is_one_of = |marks: &[char]| marks.iter().any(|mark| self.is_mark(i, *mark));
            if is_one_of(&['(', '[', '{']) {
                depth += 1;
            } else if is_one_of(&[')', ']', '}']) {
                depth -= 1;
                if depth == 0 {
                    return open + 1..i;
                }
            }
        }
        open + 1..self.tokens.len()
    }

    /// The first literal among these tokens.
    fn literal(&self, among: Range<usize>) -> Option<String> {
        let text = self.tokens[among].iter().find_map(Token::text)?;
        Some(self.filled(text))
    }

    /// The first literal, or that of the first variable or constant which has one.
    fn said(&self, among: Range<usize>) -> Option<String> {
        let start = among.start;
        let names = |at: usize| self.ident(at).and_then(|name| self.named(name, start));
        self.literal(among.clone()).or_else(|| among.into_iter().find_map(names))
    }

    /// The literal of a name: of the last `let` before `at` in its function, or of a constant.
    fn named(&self, name: &str, at: usize) -> Option<String> {
        let is_let = |i: &usize| self.ident(*i) == Some("let") && self.ident(i + 1) == Some(name);
        let function = (0..at).rev().find(|i| self.ident(*i) == Some("fn")).unwrap_or(0);
        if let Some(found) = (function..at).rev().find(is_let) {
            let end = (found..at).find(|i| self.is_mark(*i, ';'))?;
            return self.literal(found..end);
        }
        self.constant(name)
    }

    fn constant(&self, name: &str) -> Option<String> {
        let is_const = |i: &usize| self.ident(*i) == Some("const") && self.ident(i + 1) == Some(name);
        let found = (0..self.tokens.len()).find(is_const)?;
        let end = (found..self.tokens.len()).find(|i| self.is_mark(*i, ';'))?;
        self.tokens[found..end].iter().find_map(Token::text).map(str::to_string)
    }

    /// A text with the constants of the file that it names.
    fn filled(&self, text: &str) -> String {
        let mut filled = text.to_string();
        for name in text.split('{').skip(1).filter_map(|part| Some(part.split_once('}')?.0)) {
            let is_const = !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
            if let Some(value) = is_const.then(|| self.constant(name)).flatten() {
                filled = filled.replace(&format!("{{{name}}}"), &value);
            }
        }
        filled
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::Kind;

    fn lines(text: &str) -> Vec<String> {
        texts("crates/pregrant-host/src/a.rs", text, Kind::Line)
    }

    fn errors(text: &str) -> Vec<String> {
        texts("crates/pregrant-host/src/a.rs", text, Kind::Error)
    }

    fn texts(path: &str, text: &str, kind: Kind) -> Vec<String> {
        super::messages(path, text).into_iter().filter(|m| m.kind == kind).map(|m| m.text).collect()
    }

    #[test]
    fn lines_are_found_by_macro_and_by_level() {
        assert_eq!(
            lines("log::warn!(\"{id}: a is gone\"); log::info!(\"it is here now\");"),
            ["{id}: a is gone"]
        );
        assert_eq!(lines("log.say(log::Level::Error, &format_args!(\"a is {e} gone\"))"), ["a is {e} gone"]);
        assert_eq!(lines("let note = |e| (Level::Warn, format!(\"a is {e} gone\"));"), ["a is {e} gone"]);
        assert_eq!(lines("LINES.warn(format_args!(\"a is \\\n   really gone\"))"), ["a is really gone"]);
        assert_eq!(
            lines("LINES.error(format_args!(\"a is {e} gone\")); reply.error(errno(e))"),
            ["a is {e} gone"]
        );
        assert_eq!(lines("log.say(Level::Info, &\"a is gone\"); log.say(Level::Warn, &e);"), [""; 0]);
    }

    #[test]
    fn lines_of_refusals_are_found() {
        let line = "fn line(&self) -> String { let k = at.key(&format!(\"{}-ref\", d)); format!(\"a is {k} gone\") }";
        assert_eq!(lines(line), ["a is {k} gone"]);
        assert_eq!(lines("fn lines() -> String { format!(\"a is here now\") }"), [""; 0]);
    }

    #[test]
    fn lines_are_found_by_a_name() {
        let by_let = "let line = format_args!(\"a is {x} gone\"); log.say(Level::Warn, &line);";
        assert_eq!(lines(by_let), ["a is {x} gone"]);
        let elsewhere = "fn f() { let why = \"a is gone now\"; } fn g() { log.say(Level::Warn, &why); }";
        assert_eq!(lines(elsewhere), [""; 0]);
        let by_const =
            "const GONE: &str = \"a is gone\"; log.say(Level::Warn, &format_args!(\"{GONE} ({n})\"))";
        assert_eq!(lines(by_const), ["a is gone ({n})"]);
        let by_level =
            "let level = if x { Level::Info } else { Level::Warn }; f(x); log.say(level, &\"a is gone\");";
        assert_eq!(lines(by_level), ["a is gone"]);
    }

    #[test]
    fn errors_are_found_where_they_are_made() {
        assert_eq!(errors("#[error(\"{path}: it is gone\")] Gone"), ["{path}: it is gone"]);
        assert_eq!(errors("return Err(format!(\"{path} is not there\").into());"), ["{path} is not there"]);
        assert_eq!(errors("f().map_err(|e| format!(\"{e} at the end\"))?"), ["{e} at the end"]);
        assert_eq!(errors("Err(Failed(\"it is not there\".into()))"), ["it is not there"]);
        assert_eq!(errors("f().map_err(failed(\"bind to it\"))"), [""; 0]);
        assert_eq!(errors("return refused(format!(\"{path} is not there\"));"), ["{path} is not there"]);
        assert_eq!(errors("f().map_err(|e| format!(\"cannot {e}\"))"), ["cannot {e}"]);
        assert_eq!(errors("Err(PlatformError { op: \"map pages of it\", code })"), [""; 0]);
        let shown = "impl fmt::Display for ListFault { fn fmt() { write!(f, \"an entry of none\") } }";
        assert_eq!(errors(shown), ["an entry of none"]);
        assert_eq!(
            errors("impl fmt::Display for Path { fn fmt() { write!(f, \"a path of none\") } }"),
            [""; 0]
        );
        assert_eq!(texts("crates/pregrant/src/a.rs", "Err(\"it is gone now\")", Kind::Error), [""; 0]);
    }

    #[test]
    fn errors_are_found_in_what_they_are_made_by() {
        let closure = "fn f() { let gone = |e| format!(\"it is gone: {e}\"); a().map_err(gone)?; }";
        assert_eq!(errors(closure), ["it is gone: {e}"]);
        let several = "fn f() { let open = |e| Busy(match e { 1 => \"it is there twice\".into(), \
                       e => format!(\"it is not {e}\") }); a().map_err(|e| open(e))?; }";
        assert_eq!(errors(several), ["it is there twice", "it is not {e}"]);
        let function =
            "fn f() { Err(gone(&x).into()) } fn gone(x: &X) -> String { format!(\"{x} is not there\") }";
        assert_eq!(errors(function), ["{x} is not there"]);
        let other = "fn f() { Err(gone(&x)) } fn gone(x: &X) -> u32 { g(format!(\"{x} is not there\")) }";
        assert_eq!(errors(other), [""; 0]);
        assert_eq!(lines("file.complain(format_args!(\"{op} of it failed\"))"), ["{op} of it failed"]);
    }

    #[test]
    fn tests_and_short_texts_are_left_out() {
        assert_eq!(lines("log::warn!(\"{id}: {e}\");"), [""; 0]);
        assert_eq!(lines("#[cfg(test)]\nmod tests { fn f() { log::warn!(\"a is gone\") } }"), [""; 0]);
        for public in ["pub", "pub(super)", "pub(in a::b)"] {
            let tests =
                format!("#[cfg(test)]\n{public} mod tests {{ fn f() {{ log::warn!(\"a is gone\") }} }}");
            assert_eq!(lines(&tests), [""; 0], "{public}");
        }
        let elsewhere = "#[cfg(test)]\nmod tests;\nfn f() { log::warn!(\"a is gone\") }";
        assert_eq!(lines(elsewhere), ["a is gone"]);
    }
}

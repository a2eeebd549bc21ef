//! The functions by which C and Rust call each other, from Rust's source to a header for C: each is
//! declared once.
//!
//! ```text
//!   linux/core/src/shim.rs                  pk_*: C has them, Rust calls them ---+
//!   linux/core/src/{front,halves,selftest}  pregrant_*: Rust has them -----------+--> linux/module/core.h
//!   linux/core/src/back                     both, for the module of linux/back --+
//! ```
//! `cargo xtask linux header` writes it; `cargo xtask ci tidy` refuses one that is not as
//! generated. A C function with another type does not compile then, and neither does a call.
//! Structures and constants are in `linux/module/pregrant.h`, by hand.
//!
//! Invariants: a Rust type that has no C type in [`c_type`] is an error.

use crate::workspace::{Workspace, read, write};
use std::fmt::Write;

/// The header, from the root.
const HEADER: &str = "linux/module/core.h";
/// Source files that declare the functions, in the header's order.
const SOURCES: [&str; 7] = [
    "linux/core/src/shim.rs",
    "linux/core/src/front.rs",
    "linux/core/src/halves.rs",
    "linux/core/src/back/shim.rs",
    "linux/core/src/back/vif.rs",
    "linux/core/src/back/queue.rs",
    "linux/core/src/selftest/mod.rs",
];

const HEAD: &str = "\
/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * Made by `cargo xtask linux header` from linux/core/src: change the functions there.
 *
 *   C  --pregrant_*-->  Rust   the front, or the back: states, keys, queues, frames
 *   C  <----pk_*------  Rust   what only the kernel has
 *
 * Texts are an address and a length. A negative number is an error code of the kernel.
 */
#ifndef PREGRANT_CORE_H
#define PREGRANT_CORE_H
";

/// Largest width of a line.
const COLUMNS: usize = 96;

/// One function.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    comment: String,
    name: String,
    /// Names and Rust types of the parameters.
    parameters: Vec<(String, String)>,
    result: Option<String>,
}

/// Writes the header.
pub fn make(w: &Workspace) -> Result<(), String> {
    write(&w.root().join(HEADER), header(w)?)?;
    println!("{HEADER} is written");
    Ok(())
}

/// An offence for tidy where the header is not as generated.
pub fn check(w: &Workspace) -> Result<Vec<String>, String> {
    let is_same = read(&w.root().join(HEADER))? == header(w)?;
    let offence = format!("{HEADER}: is not made of linux/core/src; run `cargo xtask linux header`");
    Ok(if is_same { Vec::new() } else { vec![offence] })
}

fn header(w: &Workspace) -> Result<String, String> {
    let mut text = HEAD.to_string();
    for source in SOURCES {
        let functions = functions(&read(&w.root().join(source))?).map_err(|e| format!("{source}: {e}"))?;
        let _ = write!(text, "\n/* {source} */\n");
        for function in functions {
            text += &comment(&function.comment);
            text += &prototype(&function).map_err(|e| format!("{source}: {}: {e}", function.name))?;
        }
    }
    Ok(text + "\n#endif\n")
}

/// Finds the functions of a source file that C and Rust share.
fn functions(source: &str) -> Result<Vec<Function>, String> {
    let mut all = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    let mut lines = source.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if let Some(words) = line.strip_prefix("///") {
            comment.push(words.trim());
            continue;
        }
        if line.starts_with("#[") {
            continue;
        }
        let begins = ["pub fn pk_", "pub extern \"C\" fn ", "pub unsafe extern \"C\" fn "];
        if begins.iter().any(|words| line.starts_with(words)) {
            let mut signature = line.to_string();
            while !signature.ends_with([';', '{']) {
                signature += lines.next().ok_or_else(|| format!("no end of {signature:?}"))?;
            }
            all.push(parse(&comment, &signature).ok_or_else(|| format!("not understood: {signature}"))?);
        }
        comment.clear();
    }
    Ok(all)
}

fn parse(comment: &[&str], signature: &str) -> Option<Function> {
    let (_, rest) = signature.split_once("fn ")?;
    let (name, rest) = rest.split_once('(')?;
    let (parameters, result) = rest.rsplit_once(')')?;
    let parameter = |text: &str| {
        let (name, kind) = text.split_once(": ")?;
        Some((name.trim().to_string(), kind.trim().to_string()))
    };
    let parameters = split(parameters).into_iter().map(parameter).collect::<Option<_>>()?;
    let result = result.trim_end_matches([';', '{']).trim().strip_prefix("-> ").map(String::from);
    // The part after a `#` heading is for Rust callers.
    let comment = comment.iter().take_while(|line| !line.starts_with('#')).copied();
    let comment = comment.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    Some(Function { comment: without_links(&comment), name: name.into(), parameters, result })
}

/// Parameters, at the commas that are not within a type.
fn split(parameters: &str) -> Vec<&str> {
    let mut depth = 0;
    let parts = parameters.split(|c: char| {
        depth += i32::from(matches!(c, '<' | '[' | '(')) - i32::from(matches!(c, '>' | ']' | ')'));
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// Replaces `[words](link)` by `words`.
fn without_links(comment: &str) -> String {
    let mut text = String::new();
    let mut rest = comment;
    while let Some((before, after)) = rest.split_once("](") {
        let words = before.replacen('[', "", 1);
        text += &words;
        rest = after.split_once(')').map_or("", |(_, behind)| behind);
    }
    text + rest
}

fn comment(words: &str) -> String {
    if words.is_empty() {
        return String::new();
    }
    if words.len() + "/*  */".len() <= COLUMNS {
        return format!("/* {words} */\n");
    }
    let mut text = "/*\n *".to_string();
    let mut column = 2;
    for word in words.split(' ') {
        if column + 1 + word.len() > COLUMNS {
            text += "\n *";
            column = 2;
        }
        text = text + " " + word;
        column += 1 + word.len();
    }
    text + "\n */\n"
}

fn prototype(function: &Function) -> Result<String, String> {
    let parameters =
        function.parameters.iter().map(|(name, kind)| declared(name, kind)).collect::<Result<Vec<_>, _>>()?;
    let result = function.result.as_deref().map_or(Ok("void ".to_string()), |kind| declared("", kind))?;
    let mut line = format!("{result}{}(", function.name);
    let mut text = String::new();
    for (k, parameter) in parameters.iter().enumerate() {
        let comma = if k == 0 { "" } else { "," };
        if line.len() + parameter.len() + " ,);".len() > COLUMNS {
            text = text + &line + comma + "\n";
            line = format!("\t{parameter}");
        } else {
            let space = if k == 0 { "" } else { " " };
            line = line + comma + space + parameter;
        }
    }
    let none = if parameters.is_empty() { "void" } else { "" };
    Ok(text + &line + none + ");\n")
}

/// Names that Rust allows and C has for types.
const KEYWORDS: [&str; 6] = ["char", "double", "float", "int", "long", "short"];

/// Declares a parameter in C. Without a name: the part before a function's name.
fn declared(name: &str, kind: &str) -> Result<String, String> {
    if KEYWORDS.contains(&name) {
        return Err(format!("{name:?} is a keyword of C"));
    }
    let array = kind.strip_prefix("&mut MaybeUninit<[").and_then(|rest| rest.strip_suffix("]>"));
    if let Some((element, n)) = array.and_then(|array| array.split_once("; ")) {
        return Ok(format!("{}{name}[{n}]", c_type(element)?));
    }
    if let Some((element, n)) =
        kind.strip_prefix("&[").and_then(|rest| rest.strip_suffix(']')?.split_once("; "))
    {
        return Ok(format!("const {}{name}[{n}]", c_type(element)?));
    }
    if kind == "&mut MaybeUninit<Words>" {
        return Ok(format!("char {name}[PREGRANT_PATH_ROOM]"));
    }
    let one = kind.strip_prefix("&mut MaybeUninit<").and_then(|rest| rest.strip_suffix('>'));
    if let Some(one) = one {
        return Ok(format!("{}*{name}", c_type(one)?));
    }
    let pointer = |kind: &str| c_type(kind).map(|kind| format!("{kind}*{name}"));
    let constant = |kind: &str| pointer(kind).map(|pointer| format!("const {pointer}"));
    if let Ok(plain) = c_type(kind) {
        return Ok(format!("{plain}{name}"));
    }
    match kind.split_once(' ') {
        Some(("*mut", "u8")) => pointer("c_void"),
        Some(("*const", "u8")) => constant("c_void"),
        Some(("*mut", "*mut u8")) => Ok(format!("void **{name}")),
        Some(("*mut" | "&mut", of)) => pointer(of),
        Some(("*const", of)) => constant(of),
        _ => constant(kind.strip_prefix('&').unwrap_or(kind)),
    }
}

/// Returns the C type of a Rust type, with the characters between the type and a name.
fn c_type(kind: &str) -> Result<&'static str, String> {
    Ok(match kind {
        "bool" => "bool ",
        "u8" => "u8 ",
        "u16" => "u16 ",
        "u32" => "u32 ",
        "u64" => "u64 ",
        "i32" => "int ",
        "i64" => "s64 ",
        "usize" => "size_t ",
        "c_void" => "void ",
        "Text" => "const char *",
        "TextRoom" => "char *",
        "Device" | "shim::Device" => "struct pregrant_device *",
        "Channel" => "struct pregrant_channel *",
        "Skb" | "shim::Skb" => "struct sk_buff *",
        "Settings" => "struct pregrant_settings ",
        "GrantedPiece" => "struct pregrant_granted_piece ",
        "Front" => "struct pregrant_front ",
        "Back" => "struct pregrant_back ",
        "Queue" => "struct pregrant_back_queue ",
        "Steer" => "struct pregrant_steer ",
        "Counters" => "struct pregrant_back_counters ",
        "Frame" => "struct pregrant_frame ",
        "Map" => "struct pregrant_map *",
        "Copies" => "struct pregrant_copies *",
        "CopyOp" => "struct pregrant_copy ",
        "LentPiece<'_>" | "LentPiece<'static>" => "struct pregrant_lent_piece ",
        "Port" => "struct pregrant_queue *",
        "Tx" => "struct pregrant_tx ",
        "Rx" => "struct pregrant_rx ",
        other => return Err(format!("{other:?} has no C type: name one in xtask/src/linux/declarations.rs")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn c(source: &str) -> Result<String, String> {
        functions(source)?.iter().map(|f| Ok(comment(&f.comment) + &prototype(f)?)).collect()
    }

    #[test]
    fn a_function_of_rust_becomes_one_of_c() {
        let source = "
/// A front for [`device`](crate::x). Null: none.
///
/// # Safety
/// It lives.
#[unsafe(no_mangle)]
pub unsafe extern \"C\" fn pregrant_front_new(
    device: shim::Device,
    settings: &Settings,
    to: &mut MaybeUninit<[u64; 8]>,
    mac: &[u8; 6],
) -> *mut Front {
";
        assert_eq!(
            c(source).unwrap(),
            "/* A front for `device`. Null: none. */\n\
             struct pregrant_front *pregrant_front_new(struct pregrant_device *device,\n\
             \tconst struct pregrant_settings *settings, u64 to[8], const u8 mac[6]);\n"
        );
    }

    #[test]
    fn a_function_of_c_becomes_one_of_c() {
        let source = "unsafe extern \"C\" {
    pub fn pk_now_ns() -> u64;
    /// A page.
    pub fn pk_put(at: *mut u8, from: *const u8, linear: *mut *mut u8, key: Text, n: usize);
}";
        assert_eq!(
            c(source).unwrap(),
            "u64 pk_now_ns(void);\n/* A page. */\n\
             void pk_put(void *at, const void *from, void **linear, const char *key, size_t n);\n"
        );
    }

    #[test]
    fn a_type_that_c_has_not_is_an_error() {
        assert!(c("pub fn pk_x(at: Vec<u8>);").unwrap_err().contains("has no C type"));
        assert!(c("pub fn pk_x(at: u8").is_err());
        assert!(c("pub fn pk_x(short: u8);").unwrap_err().contains("keyword"));
    }

    #[test]
    fn a_long_comment_has_lines() {
        let lines = comment(&"word ".repeat(60));
        assert!(lines.lines().all(|line| line.len() <= COLUMNS) && lines.lines().count() > 3, "{lines}");
    }
}

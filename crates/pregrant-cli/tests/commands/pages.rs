//! Commands of pages and units: each `pregrant SUBCOMMAND --option` and `pregrant-lab SUBCOMMAND
//! --option` in a block of code, in backticks or in an `ExecStart=` is one that the program has.
//! The same holds for `cargo lab` and `cargo demo`, which run the laboratory's program.

use crate::served::programs::{self, LAB, PREGRANT};
use crate::text;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The help texts that were asked for, by program and subcommand; None: there is no such one.
#[derive(Default)]
struct Helps(BTreeMap<String, Option<String>>);

/// How a text starts a program: the words, the program, and the subcommand that the words say.
const STARTS: [(&str, &str, Option<&str>); 4] = [
    (PREGRANT, PREGRANT, None),
    (LAB, LAB, None),
    ("cargo lab", LAB, None),
    ("cargo demo", LAB, Some("demo")),
];

/// A command that a text has.
struct Found<'a> {
    line: usize,
    /// `pregrant` or `pregrant-lab`.
    program: &'static str,
    /// Behind the program's name.
    words: Vec<&'a str>,
}

impl Helps {
    fn of(&mut self, program: &str, path: &[&str]) -> Option<&str> {
        let ask = || {
            let mut command = Command::new(programs::path(program));
            let out = command.args(path).arg("--help").output().expect("the program starts");
            out.status.success().then(|| text(&out.stdout))
        };
        self.0.entry(format!("{program} {}", path.join(" "))).or_insert_with(ask).as_deref()
    }

    /// Why a command is none.
    fn fault(&mut self, Found { program, words, .. }: &Found<'_>) -> Option<String> {
        let plain = |word: &&&str| word.bytes().all(|b| b.is_ascii_lowercase());
        let mut path = Vec::new();
        for word in words.iter().take(2).take_while(plain) {
            path.push(*word);
            if self.of(program, &path).is_none() {
                path.pop();
                // A plain word behind the subcommand may be its argument.
                let is_argument = !path.is_empty() && !self.of(program, &path)?.contains("\nCommands:");
                if !is_argument {
                    return Some(format!("there is no {word:?}"));
                }
                break;
            }
        }
        if path.is_empty() {
            return None;
        }
        let help = self.of(program, &path)?;
        let options = words.iter().filter(|word| word.starts_with("--") && word.len() > 2);
        let names = options.map(|word| word.split('=').next().unwrap_or(word));
        let missing = names.filter(|name| !has(help, name)).map(|name| format!("no option {name}"));
        missing.reduce(|all, one| format!("{all}, {one}"))
    }
}

/// Whether it is in the list of options; the examples have other subcommands' too.
fn has(help: &str, option: &str) -> bool {
    let goes_on = |rest: &str| rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-');
    let listed = help.split("\nExamples:").next().unwrap_or_default();
    let lines = listed.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    lines
        .flat_map(|line| line.split(' ').take(3))
        .any(|word| word.strip_prefix(option).is_some_and(|rest| !goes_on(rest)))
}

/// The words of a command behind the program's name, up to what a shell has next.
fn words(behind: &str) -> impl Iterator<Item = &str> {
    let ends = |word: &&str| ["#", "|", "&", "&&", "||", ";", ">", "<", "\\"].contains(word);
    let words = behind.split_whitespace().take_while(move |word| !ends(word));
    words.map(|word| word.trim_end_matches([';', ')', ',', '"', '\'', ':']))
}

/// The commands of a text: of a page those in code.
fn commands(text: &str, is_page: bool) -> Vec<Found<'_>> {
    let mut found = Vec::new();
    let mut in_block = false;
    for (line, number) in text.lines().zip(1..) {
        if is_page && line.trim_start().starts_with("```") {
            in_block = !in_block;
            continue;
        }
        let pieces: Vec<&str> = match is_page && !in_block {
            true => line.split('`').skip(1).step_by(2).collect(),
            false => vec![line],
        };
        for piece in pieces {
            let starts =
                STARTS.iter().flat_map(|start| piece.match_indices(start.0).map(move |at| (at.0, start)));
            for (at, (start, program, subcommand)) in starts {
                let behind = &piece[at + start.len()..];
                if !behind.is_empty() && !behind.starts_with(' ') {
                    continue; // another word, which begins so
                }
                // The program itself, and no text about it: where a shell has a command.
                let before = piece[..at].trim_end_matches("/usr/local/bin/").trim_end();
                let is_command = match is_page {
                    true => before.is_empty() || before.ends_with(['|', ';', '(', '&']),
                    false => piece[..at].ends_with("/usr/local/bin/"),
                };
                if is_command {
                    let words = subcommand.iter().copied().chain(words(behind)).collect();
                    found.push(Found { line: number, program, words });
                }
            }
        }
    }
    found
}

fn pages(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a folder").flatten().map(|entry| entry.path()) {
        let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if entry.is_dir() && name != "target" && !name.starts_with('.') {
            pages(&entry, into);
        } else if [".md", ".service"].iter().any(|end| name.ends_with(end)) && name != "CHANGELOG.md" {
            into.push(entry);
        }
    }
}

#[test]
fn commands_on_pages_are_the_programs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace");
    let mut all = vec![root.join("README.md")];
    for folder in ["docs", "dist", "crates"] {
        pages(&root.join(folder), &mut all);
    }
    let (mut helps, mut seen, mut faults) = (Helps::default(), 0, Vec::new());
    for path in all {
        let text = fs::read_to_string(&path).expect("text");
        for found in commands(&text, path.extension().is_some_and(|end| end == "md")) {
            seen += 1;
            if let Some(fault) = helps.fault(&found) {
                let Found { line, program, words } = found;
                faults.push(format!("{}:{line}: {program} {}: {fault}", path.display(), words.join(" ")));
            }
        }
    }
    assert!(seen > 100, "only {seen} commands are found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn commands_that_are_none_are_found() {
    let mut helps = Helps::default();
    let mut of = |page: &str| -> Vec<String> {
        commands(page, true).iter().filter_map(|found| helps.fault(found)).collect()
    };
    assert_eq!(of("`pregrant back --take 5.0 --give-back 5.0`, a pregrant front\n"), [""; 0]);
    assert_eq!(of("```sh\npregrant-lab loopback serve --dir /tmp/x --guest 5   # --no\n```\n"), [""; 0]);
    assert_eq!(of("`pregrant top --prometheus - | grep x --no`\n"), [""; 0]);
    assert_eq!(
        of("```sh\ncargo demo    # --no\ncargo lab bench net --path copy\n```\n`cargo demo`, `cargo lab`"),
        [""; 0]
    );
    for wrong in [
        "cargo lab bench nets",
        "cargo lab loopback serve --loopback /tmp/x",
        "cargo lab top",
        "cargo demo --no-such-option",
        "pregrant back --takes 5.0",
        "pregrant backs",
        "pregrant-lab loopback serves",
        "pregrant-lab loopback serve --loopback /tmp/x",
        "pregrant top --take",
        "pregrant demo",
        "pregrant-lab top",
    ] {
        assert_eq!(of(&format!("`{wrong}`\n")).len(), 1, "{wrong}");
    }
}

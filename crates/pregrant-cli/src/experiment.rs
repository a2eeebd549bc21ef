//! `--experiment KEY=VALUE`: options that a measurement needs and no operator does. Each is an
//! ordinary option of its command for the parser, which knows its values and what it excludes;
//! [`HEADING`] keeps it out of `--help`, and on the command line it is written as a key.
//!
//! ```text
//!   --experiment copy-below=256 --experiment rx-only=on   -->  expand  -->  --copy-below=256 --rx-only
//! ```
//! docs/strategies.md has the table of all keys, which a test compares with the commands' options.

use crate::usage::Usage;
use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, ArgMatches, Args, Command};
use std::ffi::OsString;

/// The heading under which the help lists experiments.
pub const HEADING: &str = "Experiments";

/// The value that switches on a key that has no other values.
const ON: &str = "on";

/// The option `--experiment`, for commands that have experiments.
#[derive(Args, Debug)]
pub struct ExperimentArgs {
    /// An option of a measurement (docs/strategies.md has the keys); may be repeated
    #[arg(long = "experiment", value_name = "KEY=VALUE")]
    pub keys: Vec<String>,
}

/// Replaces each experiment on the command line by the hidden option that it names.
///
/// # Errors
/// A key that the command does not have, or an experiment that is written as an option.
pub fn expand(command: &Command, args: Vec<OsString>) -> Result<Vec<OsString>, Usage> {
    let mut leaf = command;
    for name in args.iter().skip(1) {
        let Some(below) = name.to_str().and_then(|name| leaf.find_subcommand(name)) else { break };
        leaf = below;
    }
    let mut out = Vec::new();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let text = arg.to_str().unwrap_or_default();
        if text == "--" {
            out.push(arg);
            out.extend(args.by_ref());
        } else if let Some(pair) = text.strip_prefix("--experiment=") {
            out.push(option(leaf, pair)?);
        } else if text == "--experiment" {
            match args.next() {
                Some(pair) => out.push(option(leaf, &pair.to_string_lossy())?),
                None => out.push(arg),
            }
        } else if let Some(key) = written_as_option(leaf, text) {
            return Err(Usage::new(format_args!(
                "--{key} is an experiment, which no operator needs: write it as --experiment {key}=VALUE"
            )));
        } else {
            out.push(arg);
        }
    }
    Ok(out)
}

/// Returns true if the whole option is an experiment, and not only some of its values.
fn is_experiment(arg: &Arg) -> bool {
    arg.get_help_heading() == Some(HEADING)
}

/// Returns true if an option was given as a key of `--experiment`, because it or its value is an
/// experiment.
pub fn is_given_as_key(arg: &Arg, matches: &ArgMatches) -> bool {
    let mut values = matches.get_raw(arg.get_id().as_str()).into_iter().flatten();
    is_experiment(arg) || values.any(|value| hidden(arg).any(|one| value == one.get_name()))
}

/// Rewrites a text of the parser, which shows experiments as the options that they are for the
/// parser. The result shows them as the user types them: `--experiment hook=ACTION` instead of
/// `--hook <ACTION>`.
pub fn as_written(command: &Command, text: &str) -> String {
    let mut written = text.to_string();
    for arg in command.get_arguments().filter(|arg| is_experiment(arg)) {
        let key = arg.get_long().unwrap_or_default();
        let (option, value) = match arg.get_value_names() {
            Some([name, ..]) if !is_switch(arg) => (format!("--{key} <{name}>"), name.as_str()),
            _ => (format!("--{key}"), ON),
        };
        written = written.replace(&option, &format!("--experiment {key}={value}"));
    }
    command.get_subcommands().fold(written, |written, below| as_written(below, &written))
}

/// Returns the key of an experiment that the user wrote as an option of its own.
fn written_as_option<'a>(command: &'a Command, text: &str) -> Option<&'a str> {
    let name = text.strip_prefix("--")?.split('=').next()?;
    command
        .get_arguments()
        .filter(|arg| is_experiment(arg))
        .filter_map(Arg::get_long)
        .find(|key| *key == name)
}

fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// Returns the values of an ordinary option that are experiments, which the option's help does not
/// list.
fn hidden(arg: &Arg) -> impl Iterator<Item = PossibleValue> {
    arg.get_possible_values().into_iter().filter(PossibleValue::is_hide_set)
}

/// Converts `KEY=VALUE` to the hidden option that it stands for.
fn option(command: &Command, pair: &str) -> Result<OsString, Usage> {
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    let of_key = command.get_arguments().find(|arg| arg.get_long() == Some(key));
    match of_key {
        Some(arg) if is_experiment(arg) && is_switch(arg) => match value {
            ON => Ok(format!("--{key}").into()),
            _ => Err(Usage::new(format_args!("--experiment {key}: it is a switch: write {key}={ON}"))),
        },
        Some(arg) if is_experiment(arg) && value.is_empty() => Err(Usage::new(format_args!(
            "--experiment {key} takes a value: {key}=VALUE; docs/strategies.md lists the values"
        ))),
        Some(arg) if is_experiment(arg) || hidden(arg).any(|one| one.get_name() == value) => {
            Ok(format!("--{key}={value}").into())
        }
        _ => Err(Usage::new(no_such_key(command, pair, key))),
    }
}

/// Formats the error for a key that the command does not have, with the keys that it has.
fn no_such_key(command: &Command, pair: &str, key: &str) -> String {
    let has_keys = |arg: &&Arg| is_experiment(arg) || hidden(arg).next().is_some();
    let mut keys: Vec<&str> = command.get_arguments().filter(has_keys).filter_map(Arg::get_long).collect();
    keys.sort_by_key(|known| distance(known, key));
    match keys.first() {
        None => "--experiment: this command has no experiments; leave it out".into(),
        Some(nearest) => format!(
            "--experiment {pair}: there is no such key; the nearest is {nearest}, and all keys of this command are {}",
            keys.join(", ")
        ),
    }
}

/// Returns the number of letters by which two words differ (Levenshtein distance).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let changed = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::one_screen;
    use crate::{back, blkback, blkfront, doctor, front, hotplug, top};

    fn commands() -> Vec<Command> {
        vec![
            back::BackArgs::augment_args(Command::new("back")),
            blkback::BlkBackArgs::augment_args(Command::new("blkback")),
            front::FrontArgs::augment_args(Command::new("front")),
        ]
    }

    /// Formats the rows of docs/strategies.md that list the experiments of these commands.
    fn rows(commands: &[Command]) -> String {
        let mut rows = String::from("|command|key|value|\n|---|---|---|\n");
        for command in commands {
            for arg in command.get_arguments() {
                let key = arg.get_long().unwrap_or_default();
                if is_experiment(arg) {
                    let help =
                        arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
                    let values: Vec<String> =
                        arg.get_possible_values().iter().map(|one| format!("`{}`", one.get_name())).collect();
                    let values = match (is_switch(arg), values.is_empty()) {
                        (true, _) => format!("`{ON}`"),
                        (_, false) => values.join(", "),
                        _ => arg.get_value_names().map(|names| names.join(" ")).unwrap_or_default(),
                    };
                    rows += &format!(
                        "|`{}`|`{key}`|{values}: {}|\n",
                        command.get_name(),
                        help.replace('|', "or")
                    );
                }
                for one in hidden(arg) {
                    let help = one.get_help().map(ToString::to_string).unwrap_or_default();
                    rows += &format!("|`{}`|`{key}`|`{}`: {help}|\n", command.get_name(), one.get_name());
                }
            }
        }
        rows
    }

    fn of(line: &str) -> Result<String, String> {
        let program = Command::new("pregrant").subcommands(commands());
        let args = line.split(' ').map(OsString::from).collect();
        let out = expand(&program, args).map_err(|e| e.to_string())?;
        Ok(out.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_key_is_the_option_of_that_name() {
        for (line, expanded) in [
            ("pregrant back --experiment copy-below=256 --close", "pregrant back --copy-below=256 --close"),
            ("pregrant back --experiment=path=staging+map", "pregrant back --path=staging+map"),
            ("pregrant front --experiment rx-only=on", "pregrant front --rx-only"),
            ("pregrant back --path map", "pregrant back --path map"),
        ] {
            assert_eq!(of(line).as_deref(), Ok(expanded), "{line}");
        }
    }

    #[test]
    fn an_unknown_key_names_its_neighbours() {
        for (line, part) in [
            ("pregrant back --experiment copy-blow=256", "the nearest is copy-below"),
            ("pregrant back --experiment path=map", "there is no such key"),
            ("pregrant front --experiment rx-only=256", "rx-only=on"),
            ("pregrant front --experiment rx-head", "rx-head=VALUE"),
            ("pregrant back --copy-below 256", "--experiment copy-below=VALUE"),
        ] {
            let why = of(line).unwrap_err();
            assert!(why.contains(part), "{line}: {why}");
        }
        assert_eq!([distance("io", "io"), distance("hok", "hook"), distance("", "abc")], [0, 1, 3]);
    }

    /// Errors that come from the parser itself name experiments as the user writes them.
    #[test]
    fn an_error_names_the_key_and_not_the_option_of_the_parser() {
        let program = Command::new("pregrant").subcommands(commands());
        let of = |line: &str| {
            let args = expand(&program, line.split(' ').map(OsString::from).collect()).unwrap();
            let error = program.clone().try_get_matches_from(args).unwrap_err().to_string();
            as_written(&program, &error)
        };
        for (line, parts) in [
            ("pregrant front --tap x --experiment hook=x", ["--experiment hook=ACTION", "pass, drop"]),
            (
                "pregrant front --tap x --experiment rx-only=on --experiment tx-data-len=64",
                ["--experiment rx-only=on", "--experiment tx-data-len=N"],
            ),
            ("pregrant back --experiment copy-below=x", ["--experiment copy-below=BYTES", "invalid"]),
        ] {
            let why = of(line);
            assert!(parts.iter().all(|part| why.contains(part)), "{line}: {why}");
            assert!(
                !why.contains("--hook ") && !why.contains("--rx-only") && !why.contains("--copy-below"),
                "{why}"
            );
        }
    }

    #[test]
    fn an_option_is_known_as_a_key_by_its_value_too() {
        let back = back::BackArgs::augment_args(Command::new("back"));
        let of = |option: &str, value: &str| {
            let matches = back.clone().get_matches_from(["back", &format!("--{option}"), value]);
            let arg = back.get_arguments().find(|arg| arg.get_long() == Some(option)).unwrap();
            is_given_as_key(arg, &matches)
        };
        assert!(of("copy-below", "256") && of("path", "staging+map"));
        assert!(!of("path", "map") && !of("port", "tap"));
    }

    /// Each option in the help of an operator's command has a single line, no wider than a
    /// terminal.
    #[test]
    fn help_is_one_screen() {
        for command in commands().into_iter().chain([
            blkfront::BlkFrontArgs::augment_args(Command::new("blkfront")),
            doctor::DoctorArgs::augment_args(Command::new("doctor")),
            top::TopArgs::augment_args(Command::new("top")),
            hotplug::HotplugArgs::augment_args(Command::new("hotplug")),
        ]) {
            let help = one_screen(command.clone()).render_help().to_string();
            let options =
                help.split("Options:\n").nth(1).expect("options").split("\n\n").next().unwrap_or_default();
            let lines = options.lines().count();
            assert!(lines <= 24, "{}: {lines} lines\n{options}", command.get_name());
        }
    }

    /// Checks that docs/strategies.md has all keys; with `PREGRANT_WRITE=1` the test writes the
    /// page.
    #[test]
    fn the_page_has_all_keys() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/strategies.md");
        let text = std::fs::read_to_string(page).expect("the page");
        let table = rows(&commands());
        let (before, rest) = text.split_once("|command|key|value|\n").expect("a table of keys");
        let end = rest.lines().take_while(|line| line.starts_with('|')).map(|line| line.len() + 1).sum();
        let written = format!("{before}{table}{}", &rest[end..]);
        if std::env::var_os("PREGRANT_WRITE").is_some() {
            std::fs::write(page, &written).expect("the page is written");
        } else {
            assert!(text == written, "docs/strategies.md lacks a key: run this test with PREGRANT_WRITE=1");
        }
    }
}

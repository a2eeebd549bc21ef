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
use clap::error::{ContextKind, ContextValue, ErrorKind};
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

/// Returns the command that a command line calls: `program`, or one of its subcommands.
pub fn called<'a>(program: &'a Command, args: &[OsString]) -> &'a Command {
    let mut leaf = program;
    for name in args.iter().skip(1) {
        let Some(below) = name.to_str().and_then(|name| leaf.find_subcommand(name)) else { break };
        leaf = below;
    }
    leaf
}

/// Replaces each experiment on the command line by the hidden option of the called command that it
/// names.
///
/// # Errors
/// A key that the command does not have, or an experiment that is written as an option.
pub fn expand(leaf: &Command, args: Vec<OsString>) -> Result<Vec<OsString>, Usage> {
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
        } else if let Some(key) = experiment_of(leaf, text).and_then(Arg::get_long) {
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

/// Rewrites an error of the parser about the called command, in which experiments are the options
/// that they are for the parser. The result names them as the user types them: `--experiment
/// hook=ACTION` instead of `--hook <ACTION>`. Everything else that the user typed stays as it is.
pub fn as_written(leaf: &Command, mut error: clap::Error) -> clap::Error {
    let kinds = match error.kind() {
        // The unknown argument is the user's own word.
        ErrorKind::UnknownArgument => &[ContextKind::SuggestedArg][..],
        _ => &[ContextKind::InvalidArg, ContextKind::PriorArg],
    };
    let of_user = |option: &String| experiment_of(leaf, option).map_or_else(|| option.clone(), written);
    for &kind in kinds {
        let value = match error.get(kind) {
            Some(ContextValue::String(option)) => ContextValue::String(of_user(option)),
            Some(ContextValue::Strings(options)) => {
                ContextValue::Strings(options.iter().map(of_user).collect())
            }
            _ => continue,
        };
        error.insert(kind, value);
    }
    if let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) {
        let usage = usage.to_string();
        let of_user = usage_as_written(leaf, &usage);
        // Else it keeps its colours.
        if of_user != usage {
            error.insert(ContextKind::Usage, ContextValue::StyledStr(of_user.into()));
        }
    }
    error
}

/// Rewrites the parser's line of usage, which has no word of the user's. It names an experiment
/// only where another one requires it.
fn usage_as_written(leaf: &Command, usage: &str) -> String {
    let experiments = leaf.get_arguments().filter(|arg| is_experiment(arg));
    experiments.fold(usage.to_string(), |usage, arg| usage.replace(&of_parser(arg), &written(arg)))
}

/// Returns the experiment that is written as an option of its own, by the user or by the parser:
/// `--KEY`, `--KEY=VALUE` or `--KEY <NAME>`.
fn experiment_of<'a>(command: &'a Command, option: &str) -> Option<&'a Arg> {
    let key = option.strip_prefix("--")?.split(['=', ' ']).next();
    command.get_arguments().filter(|arg| is_experiment(arg)).find(|arg| arg.get_long() == key)
}

/// Returns an experiment as the user writes it, with the name of its value.
fn written(arg: &Arg) -> String {
    format!("--experiment {}={}", arg.get_long().unwrap_or_default(), value_name(arg).unwrap_or(ON))
}

/// Returns an experiment as the parser shows it, with the name of its value.
fn of_parser(arg: &Arg) -> String {
    let value = value_name(arg).map(|name| format!(" <{name}>")).unwrap_or_default();
    format!("--{}{value}", arg.get_long().unwrap_or_default())
}

/// Returns the name of an option's value; None: it is a switch.
fn value_name(arg: &Arg) -> Option<&str> {
    let name = arg.get_value_names().and_then(|names| names.first());
    name.filter(|_| !is_switch(arg)).map(|name| name.as_str())
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
        let args: Vec<_> = line.split(' ').map(OsString::from).collect();
        let out = expand(called(&program, &args), args).map_err(|e| e.to_string())?;
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

    /// Returns what the program says when it refuses this command line.
    fn refusal(line: &str) -> String {
        let program = Command::new("pregrant").subcommands(commands());
        let args: Vec<_> = line.split(' ').map(OsString::from).collect();
        let leaf = called(&program, &args);
        let error = program.clone().try_get_matches_from(expand(leaf, args).unwrap()).unwrap_err();
        as_written(leaf, error).to_string()
    }

    /// Errors that come from the parser itself name experiments as the user writes them.
    #[test]
    fn an_error_names_the_key_and_not_the_option_of_the_parser() {
        for (line, parts) in [
            ("pregrant front --tap x --experiment hook=x", ["--experiment hook=ACTION", "pass, drop"]),
            (
                "pregrant front --tap x --experiment rx-only=on --experiment tx-data-len=64",
                ["--experiment rx-only=on", "--experiment tx-data-len=N"],
            ),
            ("pregrant back --experiment copy-below=x", ["--experiment copy-below=BYTES", "invalid"]),
            ("pregrant back --copy-belo 256", ["'--copy-belo'", "'--experiment copy-below=BYTES'"]),
            ("pregrant front --tap x --experiment match=icmp-echo", ["required", "--experiment hook=ACTION"]),
        ] {
            let why = refusal(line);
            assert!(parts.iter().all(|part| why.contains(part)), "{line}: {why}");
            assert!(
                !why.contains("--hook ") && !why.contains("--rx-only") && !why.contains("--copy-below"),
                "{why}"
            );
        }
    }

    /// A value is shown as the user typed it, also where it resembles an experiment.
    #[test]
    fn an_error_shows_a_value_as_it_was_typed() {
        for (line, part) in [
            ("pregrant front --tap x --experiment hook=--rx-only", "invalid value '--rx-only'"),
            ("pregrant blkback --rx-only", "unexpected argument '--rx-only'"),
            ("pregrant front --tap x -- --hook", "unexpected argument '--hook'"),
        ] {
            let why = refusal(line);
            assert!(why.contains(part), "{line}: {why}");
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

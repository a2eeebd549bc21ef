//! The start and the end of every command of `pregrant` and of `pregrant-lab`: the log, the
//! signals, and the exit code. The code is 0 after success, 1 after a failure (stderr says what
//! failed, where, and what to do), 2 for wrong usage, and 3 if the machine that the process was on
//! has ended.

use crate::log_line::LogLine;
use crate::loopback_machine::{MACHINE_ENDED, MachineEnded};
use crate::usage::{Given, Usage};
use crate::{experiment, screen, signals};
use clap::{Arg, ArgAction, Command, CommandFactory, FromArgMatches};
use std::error::Error;
use std::process::ExitCode;

/// Exit code for wrong usage, the same as clap's.
pub const WRONG_USAGE: u8 = 2;

/// Parses the command line of the program `name`, and also returns which options the user gave.
/// Wrong usage ends the process.
pub fn parse<C: CommandFactory + FromArgMatches>(name: &str) -> (C, Given) {
    let command = one_screen(C::command());
    let args: Vec<_> = std::env::args_os().collect();
    let called = experiment::called(&command, &args);
    let args = experiment::expand(called, args).unwrap_or_else(|usage| {
        screen::say(format_args!("{name}: {usage}"));
        std::process::exit(i32::from(WRONG_USAGE))
    });
    let matches = command
        .clone()
        .try_get_matches_from(args)
        .unwrap_or_else(|error| experiment::as_written(called, error).exit());
    let given = Given::of(&command, &matches, experiment::is_given_as_key);
    (C::from_arg_matches(&matches).unwrap_or_else(|e| e.exit()), given)
}

/// Adds two helps to the command and its subcommands: `--help` has a line for each option and fits
/// on one screen, `--help-all` has everything.
pub fn one_screen(command: Command) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|below| below.get_name().into()).collect();
    let command = names.into_iter().fold(command, |command, name| command.mut_subcommand(name, one_screen));
    let flag = |name, says, action| Arg::new(name).long(name).help(says).action(action);
    command
        .disable_help_flag(true)
        // Else a line that is too long moves all texts below their options.
        .term_width(0)
        .arg(flag("help", "Print this, a line for each option", ArgAction::HelpShort).short('h'))
        .arg(flag("help-all", "Print all that there is to say of each option", ArgAction::HelpLong))
}

/// Runs a command of the program `name`, which was built from `commit`, if that is known. The log
/// has this level, unless `RUST_LOG` sets another.
pub fn run(
    name: &str,
    commit: Option<&'static str>,
    level: &str,
    command: impl FnOnce() -> Result<(), Box<dyn Error>>,
) -> ExitCode {
    if let Some(commit) = commit {
        pregrant_host::program::set_commit(commit);
    }
    let log_line = LogLine::of_stderr();
    log_line.begin(level);
    if let Err(e) = signals::begin() {
        log::warn!("cannot reset the signal mask and dispositions: {e}; keeping those of the parent process");
    }
    match command() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if screen::has_no_reader(&*e) => ExitCode::SUCCESS,
        Err(e) => {
            screen::say(log_line.last_words(&format_args!("{name}: {e}")));
            if e.is::<Usage>() {
                return ExitCode::from(WRONG_USAGE);
            }
            match e.downcast_ref::<MachineEnded>() {
                Some(_) => ExitCode::from(MACHINE_ENDED),
                None => ExitCode::FAILURE,
            }
        }
    }
}

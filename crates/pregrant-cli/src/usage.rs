//! Refuses options that cannot have an effect together with the other ones on the command line.
//!
//! ```text
//!   clap: one option excludes another         conflicts_with, requires
//!   here: a value of one makes another idle   Given::refuse, after parsing and before anything is opened
//! ```

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use std::collections::BTreeMap;
use std::fmt::{self, Display};

/// An error in the use of the command line. Its exit code is 2, as for any wrong usage.
#[derive(Debug)]
pub struct Usage(String);

impl Usage {
    /// Creates a usage error; the text says what is wrong and what to do.
    pub fn new(text: impl Display) -> Self {
        Self(text.to_string())
    }
}

impl Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The options given on the command line, by their long names, without those that have only their
/// default value; and whether each was written as an experiment (`--experiment NAME=VALUE`).
#[derive(Clone, Debug, Default)]
pub struct Given(BTreeMap<String, bool>);

impl Given {
    /// Collects the options that were given to the called subcommand of `command`. `is_experiment`
    /// tells which of them were written as experiments.
    pub fn of(
        command: &Command,
        matches: &ArgMatches,
        is_experiment: impl Fn(&Arg, &ArgMatches) -> bool,
    ) -> Self {
        let (mut leaf, mut matches) = (command, matches);
        while let Some((name, below)) = matches.subcommand() {
            let Some(sub) = leaf.find_subcommand(name) else { break };
            (leaf, matches) = (sub, below);
        }
        let stands =
            |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
        let name = |arg: &Arg| Some((arg.get_long()?.to_string(), is_experiment(arg, matches)));
        Self(leaf.get_arguments().filter(stands).filter_map(name).collect())
    }

    /// Returns true if this option was given.
    pub fn has(&self, option: &str) -> bool {
        self.0.contains_key(option)
    }

    pub fn others_than<'a>(&'a self, these: &'a [&str]) -> impl Iterator<Item = &'a str> {
        self.0.keys().map(String::as_str).filter(|option| !these.contains(option))
    }

    /// Refuses an option that the user gave and that can have no effect.
    ///
    /// # Errors
    ///
    /// The user gave the option; `why` follows "has no effect:" in the text.
    pub fn refuse(&self, option: &str, why: impl Display) -> Result<(), Usage> {
        let written = match self.0.get(option) {
            None => return Ok(()),
            Some(true) => "experiment ",
            Some(false) => "",
        };
        Err(Usage::new(format_args!("--{written}{option} has no effect: {why}; leave it out")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_there_is_refused_and_a_default_is_not() {
        let leaf = Command::new("leaf")
            .arg(Arg::new("data_len").long("data-len").default_value("256"))
            .arg(Arg::new("path").long("path").default_value("copy"));
        let given = |words: &[&str]| {
            let command = Command::new("x").subcommand(leaf.clone());
            let all = ["x", "leaf"].iter().chain(words);
            Given::of(&command, &command.clone().get_matches_from(all), |arg, _| arg.get_id() == "path")
        };
        let (none, one) = (given(&[]), given(&["--data-len", "256"]));
        assert!(none.refuse("data-len", "why").is_ok() && !none.has("path"));
        let said = one.refuse("data-len", "no path stages").unwrap_err().to_string();
        assert_eq!(said, "--data-len has no effect: no path stages; leave it out");
        assert_eq!(one.others_than(&["path"]).collect::<Vec<_>>(), ["data-len"]);
        let said = given(&["--path", "map"]).refuse("path", "why").unwrap_err().to_string();
        assert_eq!(said, "--experiment path has no effect: why; leave it out");
    }
}

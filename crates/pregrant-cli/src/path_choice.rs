//! `--path`: one of a few paths, by its name. Two paths exist only in the laboratory's program.
//! Every other program answers to their names which program has them.
//!
//! ```text
//!   a path of the command's table   --> its value           (choice)
//!   foreign, guest-copy             --> the same, where this program is built with the feature `research`
//!                                       what it is, why Xen refuses it, and pregrant-lab, where it is not
//! ```

use crate::choice::choice_with_experiments;
use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command, Error};
use pregrant::net::path::PathName;
use std::ffi::OsStr;

/// Creates the parser of [`choice_with_experiments`] for paths. For a path that is not built into
/// this program, its error names the program that has it.
pub fn path_choice<T: Copy + Send + Sync + 'static>(
    table: &'static [(T, &'static str)],
    name: fn(T) -> &'static str,
    is_experiment: fn(T) -> bool,
) -> impl TypedValueParser<Value = T> {
    PathParser { of_table: choice_with_experiments(table, name, is_experiment), is_built: PathName::is_built }
}

#[derive(Clone)]
struct PathParser<V> {
    of_table: V,
    /// Tells whether a path is built into this program.
    is_built: fn(PathName) -> bool,
}

impl<V> PathParser<V> {
    /// Returns the path of this name, and how it moves frames, if it is not built into this
    /// program.
    fn absent(&self, name: &str) -> Option<(PathName, &'static str)> {
        let path = name.parse().ok().filter(|path| !(self.is_built)(*path))?;
        Some((path, of_the_laboratory(path)?))
    }
}

impl<V: TypedValueParser> TypedValueParser for PathParser<V> {
    type Value = V::Value;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<V::Value, Error> {
        match value.to_str().and_then(|name| self.absent(name)) {
            Some((path, what)) => {
                Err(Error::raw(ErrorKind::ValueValidation, refusal(path, what)).with_cmd(command))
            }
            None => self.of_table.parse_ref(command, arg, value),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let of_table = self.of_table.possible_values()?;
        Some(Box::new(of_table.filter(|value| self.absent(value.get_name()).is_none())))
    }
}

/// Returns how a path of the laboratory moves frames, and why real Xen refuses it; None for a path
/// that each program has.
fn of_the_laboratory(path: PathName) -> Option<&'static str> {
    match path {
        PathName::GuestCopy => Some(
            "the guest copies received frames out of pages that its backend lends; real Xen refuses it, for Linux's gntalloc takes \
             back pages that a guest still has mapped",
        ),
        PathName::Foreign => Some(
            "the backend maps the whole memory of a guest; real Xen refuses it to all but privileged domains, and it leaves no \
             isolation between the two",
        ),
        PathName::Staging
        | PathName::DataRing
        | PathName::GrefMapping
        | PathName::Persistent
        | PathName::Map
        | PathName::Copy => None,
    }
}

/// Returns the error text that says why this program does not have a path, and which program has
/// it.
fn refusal(path: PathName, what: &str) -> String {
    format!(
        "--path {path} is not in this program: with it {what}. It is measured in the laboratory, without Xen: pregrant-lab back and \
         pregrant-lab front, with --loopback DIR --path {path}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: &[(PathName, &str)] = &[(PathName::Copy, "Copied"), (PathName::Foreign, "All of it")];

    /// Parses `--path NAME`, and returns the result and the names that the help lists.
    fn of(name: &str, is_built: fn(PathName) -> bool) -> (Result<PathName, String>, Vec<String>) {
        let parser =
            PathParser { of_table: choice_with_experiments(PATHS, PathName::name, |_| false), is_built };
        let names =
            parser.possible_values().into_iter().flatten().map(|value| value.get_name().into()).collect();
        let path = Arg::new("path").long("path").value_parser(parser);
        let matches = Command::new("x").arg(path).try_get_matches_from(["x", "--path", name]);
        (matches.map(|m| m.get_one("path").copied().unwrap_or_default()).map_err(|e| e.to_string()), names)
    }

    #[test]
    fn a_path_of_the_laboratory_is_refused_by_name_and_said_to_be_there() {
        let without = |path| !matches!(path, PathName::Foreign | PathName::GuestCopy);
        for path in [PathName::Foreign, PathName::GuestCopy] {
            let (parsed, names) = of(path.name(), without);
            let why = parsed.unwrap_err();
            assert!(why.contains(&format!("--path {path}")) && why.contains("pregrant-lab back"), "{why}");
            assert_eq!(names, ["copy"]);
        }
        for path in PathName::ALL {
            assert_eq!(of_the_laboratory(path).is_none(), without(path), "{path}");
        }
        assert_eq!(of("copy", without).0, Ok(PathName::Copy));
        assert!(of("nonesuch", without).0.is_err_and(|why| why.contains("nonesuch")));
        assert_eq!(of("foreign", |_| true), (Ok(PathName::Foreign), vec!["copy".into(), "foreign".into()]));
    }
}

//! Recognizes commands of `pregrant-lab` that were once commands of `pregrant`. The error for such
//! a command names the program that has it.

use std::ffi::OsString;

/// The commands of the laboratory's program.
const COMMANDS: [&str; 5] = ["demo", "bench", "loopback", "report", "frames"];
/// Options of the laboratory's front, which makes traffic itself.
const TRAFFIC: [&str; 7] = ["--ping", "--serve", "--send", "--address", "--count", "--interval", "--bytes"];

/// Returns the advice for a command line that belongs to the laboratory's program. `args` are the
/// arguments after the program's name.
pub fn remedy(args: &[OsString]) -> Option<String> {
    let args: Vec<&str> = args.iter().map_while(|arg| arg.to_str()).collect();
    let is_traffic = |arg: &&str| TRAFFIC.contains(&arg.split_once('=').map_or(*arg, |(name, _)| name));
    let command = match args[..] {
        [command, ..] if COMMANDS.contains(&command) => command.into(),
        ["store", "serve", ..] => "store serve".into(),
        ["front", ..] => match args.iter().copied().find(|arg| is_traffic(arg)) {
            Some(option) => format!("front {option}"),
            None if is_bare_front(&args) => "front without --tap".into(),
            None => return None,
        },
        _ => return None,
    };
    let line = args.join(" ");
    Some(format!(
        "`{command}` is a command of the laboratory, which is a program of its own: pregrant-lab {line} (in a checkout: \
         cargo lab {line})"
    ))
}

/// Returns true for a front on the loopback without an interface. Only the laboratory's front
/// answers pings itself.
fn is_bare_front(args: &[&str]) -> bool {
    let has = |name: &str| args.iter().any(|arg| arg.split_once('=').map_or(*arg, |(of, _)| of) == name);
    has("--loopback") && !["--tap", "--help", "--help-all", "-h"].into_iter().any(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_the_laboratory_is_said_to_be_there() {
        let of = |line: &str| remedy(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for line in ["demo", "bench net --size 64", "loopback serve", "report x", "frames --serve"] {
            assert!(of(line).is_some_and(|said| said.contains(&format!("pregrant-lab {line}"))), "{line}");
        }
        assert!(of("store serve --socket /x").is_some_and(|said| said.starts_with("`store serve`")));
        assert!(of("front --ping=10.0.0.6 --count 3").is_some_and(|said| said.starts_with("`front --ping=")));
        assert!(
            of("front --loopback /x --domain 5")
                .is_some_and(|said| said.starts_with("`front without --tap`"))
        );
        let others = ["front --loopback /x --tap eth0", "front --loopback=/x --help", "front --vif 1"];
        for line in ["back", "store ls", "front --tap demo", "doctor demo", "dmeo"].into_iter().chain(others)
        {
            assert_eq!(of(line), None, "{line}");
        }
    }
}

//! The scenarios to be played, by the command's arguments.

use super::combination::{Back, Combination, Kind};
use super::release::Release;
use super::scenario::counts;

/// Any kernel's options by which it checks slabs, and poisons them and free pages. A use of freed
/// memory, a second free and a write beyond an object are in its log: `kernel_well` sees them.
const POISON: [&str; 2] = ["slub_debug=FZP", "page_poison=1"];

/// `[NAME...] [--workers N[,N...]] [--debian N] [--guest-debian N] [--dom0 pv|pvh]
/// [--back process|module] [--icount] [--profile] [--poison] [--set NAME=VALUE...]`.
#[derive(Debug, Default)]
pub struct Selection {
    /// Parts of scenarios' names; empty: all scenarios are played.
    pub(super) names: Vec<String>,
    /// Numbers of workers that replace those in the scenarios' heads.
    pub(super) workers: Vec<u16>,
    /// Values for the scenarios' variables, such as `FRAMES=10000`.
    pub(super) settings: Vec<String>,
    /// True to play everything with QEMU counting instructions.
    pub(super) icount: bool,
    pub(super) profile: bool,
    pub(super) combination: Combination,
}

impl Selection {
    pub fn parse(args: &[&str]) -> Result<Self, String> {
        let mut selection = Self::default();
        let mut guests = None;
        let mut args = args.iter();
        while let Some(&arg) = args.next() {
            match arg {
                "--workers" => {
                    let list = args.next().ok_or("--workers takes numbers: 1,2")?;
                    selection.workers = counts(list.split(',')).map_err(|e| format!("--workers: {e}"))?;
                }
                "--debian" => {
                    selection.combination.dom0 = release(arg, args.next(), Release::of_dom0)?;
                }
                "--guest-debian" => guests = Some(release(arg, args.next(), Release::of_guests)?),
                "--dom0" => {
                    let kind = args.next().and_then(|kind| Kind::named(kind));
                    selection.combination.kind = kind.ok_or("--dom0 takes pv or pvh")?;
                }
                "--back" => {
                    let back = args.next().and_then(|back| Back::named(back));
                    selection.combination.back = back.ok_or("--back takes process or module")?;
                }
                "--set" => {
                    let setting = args.next().filter(|s| is_setting(s));
                    selection
                        .settings
                        .push(setting.ok_or("--set takes NAME=VALUE: FRAMES=10000")?.to_string());
                }
                "--icount" => selection.icount = true,
                // Dom0's kernel takes these itself; rig/domain.sh gives them to guests' kernels.
                "--poison" => selection.settings.extend(POISON.map(String::from)),
                "--profile" => {
                    (selection.icount, selection.profile) = (true, true);
                    selection.settings.push("PROFILE=yes".into());
                }
                _ if arg.starts_with('-') => return Err(format!("`rig` has no option {arg}")),
                _ => selection.names.push(arg.into()),
            }
        }
        selection.combination.guests = guests.unwrap_or(selection.combination.dom0);
        if selection.combination.back == Back::Module && !selection.workers.is_empty() {
            return Err("--workers is of the process: the module has none".into());
        }
        // Another has no rows of what a frame cost.
        if selection.profile && !matches!(selection.names.as_slice(), [name] if name.starts_with("32")) {
            return Err(
                "--profile goes with scenario 32, and with it alone: cargo xtask rig 32 --profile".into()
            );
        }
        Ok(selection)
    }
}

fn release(
    option: &str,
    name: Option<&&str>,
    find: fn(&str) -> Result<&'static Release, String>,
) -> Result<&'static Release, String> {
    find(name.unwrap_or(&"?")).map_err(|e| format!("{option} takes a release: {e}"))
}

/// True if the word has the form `NAME=VALUE`. Dom0's kernel passes such a word on to its first
/// process, which passes it to the scenarios.
fn is_setting(word: &str) -> bool {
    let is_name = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    word.split_once('=').is_some_and(|(name, value)| is_name(name) && !value.contains([' ', '"', ',']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_say_what_is_played() {
        let selection = Selection::parse(&["41", "--set", "FRAMES=10", "20", "--workers", "1,3"]).unwrap();
        assert_eq!(selection.names, ["41", "20"]);
        assert_eq!(
            (selection.settings, selection.workers, selection.icount),
            (vec!["FRAMES=10".to_string()], vec![1, 3], false)
        );
        let selection = Selection::parse(&["88", "--poison"]).unwrap();
        assert_eq!(selection.settings, POISON);
        let selection = Selection::parse(&["32", "--profile"]).unwrap();
        assert!(
            selection.icount && selection.profile && selection.settings == ["PROFILE=yes"],
            "{selection:?}"
        );
        assert!(
            Selection::parse(&["--profile"]).is_err()
                && Selection::parse(&["30", "32", "--profile"]).is_err()
        );
        for wrong in [
            &["--set"][..],
            &["--set", "frames=1"],
            &["--set", "FRAMES"],
            &["--set", "A=1 b"],
            &["--workers"],
            &["--workers", "0"],
            &["--workers", "1,"],
            &["--threads"],
            &["--debian"],
            &["--debian", "11"],
            &["--debian", "trixie"],
            &["--guest-debian", "sid"],
            &["--dom0"],
            &["--dom0", "hvm"],
            &["--back"],
            &["--back", "netback"],
            &["--back", "module", "--workers", "1"],
        ] {
            assert!(Selection::parse(wrong).is_err(), "{wrong:?}");
        }
        let said = Selection::parse(&["--guest-debian", "14"]).unwrap_err();
        assert!(said.contains("--guest-debian") && said.contains("12, 13"), "{said}");
    }

    #[test]
    fn guests_are_of_dom0s_release_unless_theirs_is_said() {
        let played = |args: &[&str]| {
            let combination = Selection::parse(args).unwrap().combination;
            (combination.dom0.name, combination.guests.name, combination.suffix())
        };
        assert_eq!(played(&[]), ("12", "12", String::new()), "what CI plays");
        assert_eq!(played(&["--debian", "12", "--dom0", "pv"]), played(&[]));
        assert_eq!(played(&["--debian", "13"]), ("13", "13", "-debian13-guests13".into()));
        assert_eq!(
            played(&["--debian", "13", "--guest-debian", "12"]),
            ("13", "12", "-debian13-guests12".into())
        );
        assert_eq!(played(&["--guest-debian", "12", "--debian", "13"]).1, "12", "in any order");
        assert_eq!(played(&["--guest-debian", "11"]), ("12", "11", "-debian12-guests11".into()));
        assert!(Selection::parse(&["--debian", "11"]).is_err());
        assert_eq!(played(&["--guest-debian", "13"]), ("12", "13", "-debian12-guests13".into()));
        assert_eq!(
            played(&["--debian", "13-backports"]),
            ("13-backports", "13-backports", "-debian13-backports-guests13-backports".into())
        );
        assert_eq!(played(&["--guest-debian", "13-backports"]).0, "12");
        assert_eq!(played(&["--dom0", "pvh"]), ("12", "12", "-debian12-pvh-guests12".into()));
        assert_eq!(played(&["--back", "process"]), played(&[]));
        assert_eq!(played(&["--back", "module"]), ("12", "12", "-debian12-guests12-module".into()));
    }
}

//! Facts about a run besides its records: the machine, the code, and the command. All facts are
//! optional. Old results have none, and the page then says so.

use crate::load::{BUSY_MOST, percent};
use pregrant_host::program;
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::SystemTime;

/// The facts that the page shows and `machine.json` keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    pub cpu: Option<String>,
    /// Cores that are online, as the kernel lists them (`0-1`).
    pub cores_online: Option<String>,
    /// A text that says which cores both ends use.
    pub pinned: Option<String>,
    pub kernel: Option<String>,
    /// True if the kernel knows that it runs in a virtual machine.
    pub virtual_machine: Option<bool>,
    /// A text that says how the platform did copies and maps.
    pub platform: Option<String>,
    /// The time at which the run began, in UTC.
    pub date: Option<String>,
    /// The version of this program, with the commit if that is known.
    pub version: Option<String>,
    pub command: Option<String>,
    /// The share of the processors that other programs used meanwhile, from 0 to 1.
    pub others: Option<f64>,
    /// The reason why the run ended early, if it did.
    pub failed: Option<String>,
}

impl Facts {
    /// Collects the facts of this machine, this program and its command line.
    pub fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_string());
        let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
        let kernel = [read("/proc/sys/kernel/ostype"), read("/proc/sys/kernel/osrelease")];
        let kernel: Vec<String> = kernel.into_iter().flatten().collect();
        Self {
            cpu: field(&cpuinfo, "model name").map(Into::into),
            cores_online: read("/sys/devices/system/cpu/online"),
            pinned: pregrant_testbed::limit::cores().ok().map(|cores| pinned(&cores)),
            kernel: (!kernel.is_empty()).then(|| format!("{}, {}", kernel.join(" "), std::env::consts::ARCH)),
            virtual_machine: field(&cpuinfo, "flags")
                .map(|flags| flags.split_whitespace().any(|f| f == "hypervisor")),
            platform: None,
            date: Some(humantime::format_rfc3339_seconds(SystemTime::now()).to_string()),
            version: Some(match program::commit() {
                Some(commit) => format!("{}, commit {commit}", program::VERSION),
                None => program::VERSION.into(),
            }),
            command: Some(command(std::env::args().skip(1))),
            others: None,
            failed: None,
        }
    }

    /// Returns a warning if other programs used too much CPU time.
    pub fn loaded(&self) -> Option<String> {
        let share = self.others.filter(|share| *share > BUSY_MOST)?;
        Some(format!(
            "Other programs took {} % of this machine\u{2019}s processors meanwhile: these figures are a loaded machine\u{2019}s",
            percent(share)
        ))
    }
}

/// Returns the value of the first line with this name in `/proc/cpuinfo`.
fn field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    let pairs = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Describes how `bench net` and the demo use the cores that this process may use.
fn pinned(cores: &[usize]) -> String {
    match cores {
        [a, b, ..] => format!("yes: the guest on core {a}, the backend on core {b}"),
        [only] => format!("no: both ends share core {only}, the only one; these figures say little"),
        [] => "no".into(),
    }
}

/// Returns the command line as one would type it.
fn command(args: impl Iterator<Item = String>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,=:+@%".contains(c);
    let mut line = String::from("pregrant-lab");
    for arg in args {
        line.push(' ');
        if !arg.is_empty() && arg.chars().all(plain) {
            line += &arg;
        } else {
            line += &format!("'{}'", arg.replace('\'', "'\\''"));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpuinfo_is_read_by_name() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 3.5 GHz: fast\nflags\t\t: fpu hypervisor\n";
        assert_eq!(field(text, "model name"), Some("Some CPU @ 3.5 GHz: fast"));
        assert_eq!(field(text, "model"), None);
    }

    #[test]
    fn a_command_can_be_typed_again() {
        let args = ["demo", "--report", "my dir", "it's", ""].map(String::from);
        assert_eq!(command(args.into_iter()), r"pregrant-lab demo --report 'my dir' 'it'\''s' ''");
    }

    #[test]
    fn what_is_not_known_is_left_open() {
        assert_eq!(
            serde_json::from_str::<Facts>("{\"cpu\":\"x\",\"later\":1}").unwrap().cpu.as_deref(),
            Some("x")
        );
        let here = Facts::here();
        assert!(here.version.is_some_and(|v| v.starts_with(program::VERSION)));
        assert!(here.date.is_some_and(|d| d.ends_with('Z')));
    }
}

//! Commands that have gone silent: a test that hangs says nothing, and would keep CI until its time
//! is over, and with it all that was printed.
//!
//! ```text
//!   the command (cargo) goes on | its children, theirs, ... (a test program, the processes that it started) are ended
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The time after which a test that has printed nothing is ended. A thousand kills take three
/// minutes.
pub const LONGEST: Duration = Duration::from_secs(600);

/// Ends all descendants of this process; returns how many there were. A runner that continues after
/// a failure needs this.
pub fn end_descendants(of: u32) -> usize {
    let all = descendants(&parents(Path::new("/proc")), of);
    for id in &all {
        // It is no error if the process has ended meanwhile.
        let _ = Command::new("kill").args(["-KILL", &id.to_string()]).status();
    }
    all.len()
}

/// Returns each process with its parent.
fn parents(proc: &Path) -> BTreeMap<u32, u32> {
    let entries = std::fs::read_dir(proc).into_iter().flatten().flatten();
    let parent = |id: u32| {
        let stat = std::fs::read_to_string(proc.join(id.to_string()).join("stat")).ok()?;
        // `1 (name) S 0 ...`; a name may have anything in it, brackets too.
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter_map(|id| Some((id, parent(id)?))).collect()
}

fn descendants(parents: &BTreeMap<u32, u32>, of: u32) -> Vec<u32> {
    let mut found = vec![of];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(parents.iter().filter(|&(id, p)| *p == parent && *id != of).map(|(id, _)| *id));
        next += 1;
    }
    found.remove(0);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_and_theirs_are_found_and_no_one_else() {
        let parents = BTreeMap::from([(1, 0), (2, 1), (3, 1), (4, 2), (5, 4), (6, 3), (7, 5)]);
        assert_eq!(descendants(&parents, 2), [4, 5, 7]);
        assert_eq!(descendants(&parents, 7), [0_u32; 0]);
    }

    #[test]
    fn what_a_shell_started_is_ended_and_the_shell_goes_on() {
        let script = "sh -c 'sleep 1000 & wait'; echo $?";
        let shell = Command::new("sh").args(["-c", script]).stdout(std::process::Stdio::piped()).spawn();
        let shell = shell.expect("a shell");
        // The inner shell and its sleep.
        while descendants(&parents(Path::new("/proc")), shell.id()).len() < 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(end_descendants(shell.id()), 2);
        let out = shell.wait_with_output().expect("it ends");
        assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "137");
    }
}

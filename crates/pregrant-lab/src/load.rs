//! Processor time of other programs during a measurement: figures of a loaded machine say little,
//! and ratios of them may say the opposite of what is so.
//!
//! ```text
//!   /proc/stat: not idle, all processors
//!   /proc/PID/stat: this process and those it started    the difference: others
//! ```
//! Both are counted in the kernel's ticks. A host that takes a virtual machine's processors away
//! (steal) is another program, too. Processes that have ended count with their parents.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The largest share of the CPU time that other programs may use before the machine counts as
/// loaded. `cargo xtask figures` does not measure on a loaded machine.
pub const BUSY_MOST: f64 = 0.05;
/// Figures are not compared if other programs used more than this share while they were measured.
/// It is twice as much, since ticks of short rows scatter.
pub const COMPARED_MOST: f64 = 2.0 * BUSY_MOST;

/// The time that the machine is watched before anything is measured.
const WATCHED: Duration = Duration::from_millis(200);
/// If fewer clock ticks than this have passed, over all processors, the share is unknown.
const TICKS_LEAST: u64 = 4;

/// The kernel's counts of CPU time at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    all: u64,
    busy: u64,
    own: u64,
}

impl Load {
    /// Reads the current counts. None: the kernel does not report them.
    pub fn now() -> Option<Self> {
        let processes = fs::read_dir("/proc").ok()?.flatten().filter(|entry| {
            entry.file_name().to_str().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()))
        });
        // One that ends meanwhile is with its parent the next time.
        let stats: Vec<String> =
            processes.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok()).collect();
        let all = stats.iter().filter_map(|stat| Process::of(stat));
        Self::of(&fs::read_to_string("/proc/stat").ok()?, all, std::process::id())
    }

    fn of(machine: &str, processes: impl Iterator<Item = Process>, own: u32) -> Option<Self> {
        // user nice system idle iowait irq softirq steal; guests' times are in user's.
        let line = machine.lines().next()?.strip_prefix("cpu ")?;
        let times: Vec<u64> =
            line.split_whitespace().take(8).map(|n| n.parse().ok()).collect::<Option<_>>()?;
        let (all, idle): (u64, u64) = (times.iter().sum(), times.get(3..5)?.iter().sum());
        let mut children: BTreeMap<u32, Vec<Process>> = BTreeMap::new();
        let mut of_own = None;
        for process in processes {
            if process.pid == own {
                of_own = Some(process.ticks);
            }
            children.entry(process.parent).or_default().push(process);
        }
        let (mut of_own, mut parents) = (of_own?, vec![own]);
        while let Some(parent) = parents.pop() {
            for process in children.remove(&parent).unwrap_or_default() {
                of_own += process.ticks;
                parents.push(process.pid);
            }
        }
        Some(Self { all, busy: all - idle, own: of_own })
    }

    /// Returns the share of the CPU time that other programs used since `before`, from 0 to 1.
    pub fn others_since(&self, before: &Self) -> f64 {
        let [all, busy, own] = [|l: &Self| l.all, |l: &Self| l.busy, |l: &Self| l.own]
            .map(|of| of(self).saturating_sub(of(before)));
        busy.saturating_sub(own) as f64 / all.max(1) as f64
    }
}

/// The CPU time of a process, including that of its children that have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Process {
    pid: u32,
    parent: u32,
    ticks: u64,
}

impl Process {
    fn of(stat: &str) -> Option<Self> {
        let pid = stat.split_whitespace().next()?.parse().ok()?;
        // Behind the name, which may have any character: state, parent and nine numbers, then utime
        // stime cutime cstime.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks: Vec<u64> = fields.get(11..15)?.iter().map(|n| n.parse().ok()).collect::<Option<_>>()?;
        Some(Self { pid, parent: fields.get(1)?.parse().ok()?, ticks: ticks.iter().sum() })
    }
}

/// The check that every bench makes before its rows: watches the machine while nothing is measured.
/// Returns a warning for the user if other programs use too much of it.
pub fn check() -> Option<String> {
    let before = Load::now()?;
    std::thread::sleep(WATCHED);
    let now = Load::now()?;
    *lock() = Some(Last { at: now, share: None });
    let share = now.others_since(&before);
    (share > BUSY_MOST).then(|| {
        format!(
            "other programs, or the host (steal), take {} % of this machine\u{2019}s processors now: the figures will be a loaded \
             machine\u{2019}s; see what runs (top), stop it, and run this again",
            percent(share)
        )
    })
}

/// Returns the share of CPU time that other programs used since the last call, or since the
/// [check], so while the last row was measured. None: the kernel does not report it.
pub fn since_last() -> Option<f64> {
    let mut last = lock();
    let now = Load::now()?;
    let Some(before) = &mut *last else {
        *last = Some(Last { at: now, share: None });
        return None;
    };
    // Of the same time as the last: several rows are measured at once.
    if now.all.saturating_sub(before.at.all) >= TICKS_LEAST {
        *before = Last { at: now, share: Some(now.others_since(&before.at)) };
    }
    before.share
}

/// The counts at the last call of [`since_last`], and the result of that call.
struct Last {
    at: Load,
    share: Option<f64>,
}

/// The last reading. There is one for the process, which measures one thing at a time.
static LAST: Mutex<Option<Last>> = Mutex::new(None);

fn lock() -> std::sync::MutexGuard<'static, Option<Last>> {
    LAST.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn percent(share: f64) -> String {
    format!("{:.0}", share.min(1.0) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(pid: u32, parent: u32, [u, s, cu, cs]: [u64; 4]) -> String {
        format!("{pid} (a ) b) R {parent} 7 7 0 -1 0 1 2 3 4 {u} {s} {cu} {cs} 20 0")
    }

    fn load(machine: &str, stats: &[String]) -> Option<Load> {
        Load::of(machine, stats.iter().filter_map(|stat| Process::of(stat)), 7)
    }

    #[test]
    fn others_took_what_was_neither_idle_nor_ours() {
        let other = |ticks| stat(9, 1, [ticks, 0, 0, 0]);
        let before = load(
            "cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1\n",
            &[stat(7, 1, [5, 5, 0, 10]), stat(8, 7, [1, 0, 0, 0]), other(3)],
        )
        .unwrap();
        // 200 more: 80 idle, 20 waiting for a disk; of the other 100 we took 70, our children among
        // it: those that have ended, one that goes on, and one of that one's.
        let after = load(
            "cpu  150 0 130 780 120 0 10 10 90 0\n",
            &[stat(11, 8, [2, 1, 0, 0]), stat(7, 1, [25, 15, 20, 20]), other(33), stat(8, 7, [5, 0, 3, 0])],
        )
        .unwrap();
        assert_eq!(after.others_since(&before), 0.15);
        assert_eq!(before.others_since(&before), 0.0);
        for (machine, stats) in [
            ("intr 1 2", vec![stat(7, 1, [1; 4])]),
            ("cpu 1 2", vec![]),
            ("cpu 1 2 3 4 5 6 7 8", vec!["7 (x) R 1".into()]),
            ("cpu 1 2 3 4 5 6 7 8", vec![stat(8, 1, [1; 4])]),
        ] {
            assert_eq!(load(machine, &stats), None);
        }
        assert!(Load::now().is_some());
    }

    #[test]
    fn a_process_that_goes_on_is_no_other() {
        let before = Load::now().unwrap().own;
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        while Load::now().unwrap().own < before + 5 {
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(Load::now().unwrap().own >= before + 5, "it counts with us when it has ended");
    }
}

//! Processor time of other programs during a measurement: figures of a loaded machine say little.
//!
//! ```text
//!   /proc/stat: not idle, all processors  -  /proc/self/stat: this process, and its children that have ended  =  others
//! ```
//! Both are counted in the kernel's ticks. A host that takes a virtual machine's processors away
//! (steal) is another program, too.

use std::fs;

/// The counts at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    all: u64,
    busy: u64,
    own: u64,
}

impl Load {
    /// Now; None where the kernel does not tell.
    pub fn now() -> Option<Self> {
        let read = |path| fs::read_to_string(path).ok();
        Self::of(&read("/proc/stat")?, &read("/proc/self/stat")?)
    }

    fn of(machine: &str, own: &str) -> Option<Self> {
        // user nice system idle iowait irq softirq steal; guests' times are in user's.
        let line = machine.lines().next()?.strip_prefix("cpu ")?;
        let times: Vec<u64> =
            line.split_whitespace().take(8).map(|n| n.parse().ok()).collect::<Option<_>>()?;
        let (all, idle): (u64, u64) = (times.iter().sum(), times.get(3..5)?.iter().sum());
        // Behind the name, which may have any character: state and ten numbers, then utime stime
        // cutime cstime.
        let fields: Vec<&str> = own.rsplit_once(')')?.1.split_whitespace().collect();
        let own: Vec<u64> = fields.get(11..15)?.iter().map(|n| n.parse().ok()).collect::<Option<_>>()?;
        Some(Self { all, busy: all - idle, own: own.iter().sum() })
    }

    /// Which share others took since then, from 0 to 1.
    pub fn others_since(&self, before: &Self) -> f64 {
        let [all, busy, own] = [|l: &Self| l.all, |l: &Self| l.busy, |l: &Self| l.own]
            .map(|of| of(self).saturating_sub(of(before)));
        busy.saturating_sub(own) as f64 / all.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_took_what_was_neither_idle_nor_ours() {
        let own = |u: u64, s: u64, cu: u64, cs: u64| {
            format!("7 (a ) b) R 1 7 7 0 -1 0 1 2 3 4 {u} {s} {cu} {cs} 20 0")
        };
        let before = Load::of("cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1\n", &own(5, 5, 0, 10)).unwrap();
        // 200 more: 80 idle, 20 waiting for a disk; of the other 100 we took 70, our children among
        // it.
        let after = Load::of("cpu  150 0 130 780 120 0 10 10 90 0\n", &own(25, 15, 30, 20)).unwrap();
        assert_eq!(after.others_since(&before), 0.15);
        assert_eq!(before.others_since(&before), 0.0);
        for (machine, own) in
            [("intr 1 2", &*own(1, 1, 1, 1)), ("cpu 1 2", ""), ("cpu 1 2 3 4 5 6 7 8", "7 (x) R 1")]
        {
            assert_eq!(Load::of(machine, own), None);
        }
        assert!(Load::now().is_some());
    }
}

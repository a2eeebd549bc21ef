//! `cargo xtask figures`: the demo measured, its figures as data, and the page of all results.
//!
//! ```text
//!   demo --report, N times --> records of all --+--> docs/results/demo.jsonl --.
//!                                               '--> report --> docs/*.svg     |
//!                       docs/results/*.jsonl, figures of other benches --------+--> docs/results.md
//! ```
//! `--page` measures nothing and makes the page alone. `tidy` compares it with the page in the
//! tree.

mod demo;
pub mod page;
mod result;

use crate::workspace::{Workspace, read, run, write};
use page::{FOLDER, PAGE};
use std::path::Path;
use std::time::Duration;

/// Runs of the demo by default.
const RUNS: u32 = 5;

/// If other programs use more than this share of a machine, nothing is measured.
const BUSY_MOST: f64 = 0.05;
/// How long the machine is watched before a measurement.
const WATCH: Duration = Duration::from_secs(3);

#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    runs: u32,
    /// True to measure although other programs use the machine.
    anyway: bool,
    /// True to make only the page, from figures that exist already.
    page: bool,
}

impl Plan {
    pub fn parse(args: &[&str]) -> Result<Self, String> {
        let mut plan = Self { runs: RUNS, anyway: false, page: false };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match *arg {
                "--anyway" => plan.anyway = true,
                "--page" => plan.page = true,
                "--runs" => {
                    let n = args.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                    plan.runs = n.ok_or("--runs takes a number of runs")?;
                }
                other => return Err(format!("figures takes --runs N, --anyway and --page, not {other:?}")),
            }
        }
        Ok(plan)
    }
}

/// Measures, unless only the page is wanted, and writes the page. The machine should do nothing
/// else.
pub fn make(w: &Workspace, plan: &Plan) -> Result<(), String> {
    if !plan.page {
        measure(w, plan)?;
    }
    write(&w.root().join(PAGE), &page::page(w)?)?;
    println!("{PAGE} has the figures of {FOLDER}; see git diff");
    Ok(())
}

/// Runs the demo, and puts its figures and pictures into the documentation.
fn measure(w: &Workspace, plan: &Plan) -> Result<(), String> {
    let runs = plan.runs;
    run(&mut w.cargo(&["build", "--release", "-p", "pregrant-lab"]))?;
    let busy = busy_share(&read(Path::new(STAT))?, || std::thread::sleep(WATCH), || read(Path::new(STAT)))?;
    if busy > BUSY_MOST && !plan.anyway {
        return Err(format!(
            "other programs take {:.0} % of this machine's processors: its figures would say nothing. Wait until they are done, or \
             say --anyway to see how it works",
            busy * 100.0
        ));
    }
    let lab = w.target().join("release/pregrant-lab");
    let lab = text_of(&lab)?;
    let dir = w.target().join("figures");
    let (mut records, mut machine) = (Vec::new(), String::new());
    for n in 1..=runs {
        let report = dir.join(format!("run-{n}"));
        run(w.program(lab).args(["demo", "--report", text_of(&report)?]))?;
        records.push(read(&report.join("records.jsonl"))?);
        if n == 1 {
            machine = read(&report.join("machine.json"))?;
            write(&dir.join("machine.json"), &machine)?;
        }
    }
    let all = dir.join("records.jsonl");
    write(&all, records.concat())?;
    let report = dir.join("all");
    run(w.program(lab).args(["report", text_of(&all)?, "--out", text_of(&report)?]))?;
    for picture in ["frames.svg", "restart.svg"] {
        write(&w.root().join("docs").join(picture), &read(&report.join(picture))?)?;
    }
    write(&w.root().join(FOLDER).join("demo.jsonl"), &demo::lines(&records, &machine)?)?;
    println!(
        "docs/frames.svg, docs/restart.svg and {FOLDER}/demo.jsonl have the figures of {runs} run(s); all plots: {}",
        report.join("index.html").display()
    );
    Ok(())
}

/// The kernel's file with the times of all processors.
const STAT: &str = "/proc/stat";

/// The share of the processors' time that was not idle between two readings.
fn busy_share(
    before: &str,
    wait: impl FnOnce(),
    after: impl FnOnce() -> Result<String, String>,
) -> Result<f64, String> {
    wait();
    let times = |text: &str| {
        // user nice system idle iowait irq softirq steal; guests' times are in user's.
        let line = text.lines().next().and_then(|line| line.strip_prefix("cpu "));
        let times: Vec<u64> =
            line.unwrap_or("").split_whitespace().take(8).filter_map(|n| n.parse().ok()).collect();
        let idle = times.get(3..5).map(|idle| idle.iter().sum::<u64>());
        idle.map(|idle| (idle, times.iter().sum::<u64>()))
            .ok_or(format!("{STAT} does not begin with the processors' times"))
    };
    let (idle_before, all_before) = times(before)?;
    let (idle, all) = times(&after()?)?;
    let (idle, all) = (idle.saturating_sub(idle_before), all.saturating_sub(all_before));
    Ok(1.0 - idle as f64 / all.max(1) as f64)
}

fn text_of(path: &Path) -> Result<&str, String> {
    path.to_str().ok_or(format!("{} is no UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::{Plan, RUNS, busy_share};

    #[test]
    fn arguments_are_runs() {
        let plan = |runs, anyway, page| Ok(Plan { runs, anyway, page });
        assert_eq!(
            (Plan::parse(&[]), Plan::parse(&["--anyway", "--runs", "2"])),
            (plan(RUNS, false, false), plan(2, true, false))
        );
        assert_eq!(Plan::parse(&["--page"]), plan(RUNS, false, true));
        assert!(
            Plan::parse(&["--runs", "0"]).is_err()
                && Plan::parse(&["--runs"]).is_err()
                && Plan::parse(&["2"]).is_err()
        );
    }

    #[test]
    fn what_others_take_is_what_was_not_idle() {
        let share = |before: &str, after: &str| busy_share(before, || (), || Ok(after.into()));
        let before = "cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 1 1 1\n";
        // 100 ticks more, of which 60 idle and 15 waiting for a disk; a guest's time is not counted
        // twice.
        assert_eq!(share(before, "cpu  110 5 105 760 115 1 2 2 90 0\n"), Ok(0.25));
        assert_eq!(share(before, before), Ok(1.0));
        assert!(share(before, "intr 1 2 3\n").is_err() && share("", before).is_err());
    }
}

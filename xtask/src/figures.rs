//! `cargo xtask figures`: the demo's figures anew, put where the documentation shows them.
//!
//! ```text
//!   demo --report, N times --> records of all --> report --+-- frames.svg, restart.svg --> docs/
//!                                                          '-- figures.md --> docs/benchmarks.md, its first paragraph --> README.md
//! ```
//! In the pages it replaces what stands between two comments, [`BEGIN`] and [`END`], and nothing else.

use crate::workspace::{Workspace, run};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Before and behind what this command writes.
const BEGIN: &str = "<!-- figures: made by `cargo xtask figures` -->";
const END: &str = "<!-- figures: end -->";

/// Runs of the demo unless told otherwise.
const RUNS: u32 = 5;

/// A machine of which others take more than this share is not measured.
const BUSY_MOST: f64 = 0.05;
/// For so long it is watched before.
const WATCH: Duration = Duration::from_secs(3);

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    runs: u32,
    /// Whatever else the machine does.
    anyway: bool,
}

impl Plan {
    /// From the arguments.
    pub fn parse(args: &[&str]) -> Result<Self, String> {
        let mut plan = Self { runs: RUNS, anyway: false };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match *arg {
                "--anyway" => plan.anyway = true,
                "--runs" => {
                    let n = args.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                    plan.runs = n.ok_or("--runs takes a number of runs")?;
                }
                other => return Err(format!("figures takes --runs N and --anyway, not {other:?}")),
            }
        }
        Ok(plan)
    }
}

/// Measures and writes. The machine should do nothing else meanwhile.
pub fn make(w: &Workspace, plan: &Plan) -> Result<(), String> {
    let runs = plan.runs;
    run(&mut w.cargo(&["build", "--release", "-p", "pregrant-cli"]))?;
    let busy = busy_share(&read(Path::new(STAT))?, || std::thread::sleep(WATCH), || read(Path::new(STAT)))?;
    if busy > BUSY_MOST && !plan.anyway {
        return Err(format!(
            "other programs take {:.0} % of this machine's processors: its figures would say nothing. Wait until they are done, or \
             say --anyway to see how it works",
            busy * 100.0
        ));
    }
    let pregrant = w.target().join("release/pregrant");
    let pregrant = text_of(&pregrant)?;
    let dir = w.target().join("figures");
    let mut records = String::new();
    for n in 1..=runs {
        let report = dir.join(format!("run-{n}"));
        run(w.program(pregrant).args(["demo", "--report", text_of(&report)?]))?;
        records += &read(&report.join("records.jsonl"))?;
        if n == 1 {
            write(&dir.join("machine.json"), &read(&report.join("machine.json"))?)?;
        }
    }
    let all = dir.join("records.jsonl");
    write(&all, &records)?;
    let report = dir.join("all");
    run(w.program(pregrant).args(["report", text_of(&all)?, "--out", text_of(&report)?]))?;
    let docs = w.root().join("docs");
    for picture in ["frames.svg", "restart.svg"] {
        write(&docs.join(picture), &read(&report.join(picture))?)?;
    }
    let figures = read(&report.join("figures.md"))?;
    let first = figures.split("\n\n").next().unwrap_or_default();
    for (page, text) in [(docs.join("benchmarks.md"), figures.as_str()), (w.root().join("README.md"), first)]
    {
        let filled = fill(&read(&page)?, text).map_err(|e| format!("{}: {e}", page.display()))?;
        write(&page, &filled)?;
    }
    println!(
        "docs/frames.svg, docs/restart.svg, docs/benchmarks.md and README.md have the figures of {runs} run(s); see git diff, and \
         {} for all plots",
        report.join("index.html").display()
    );
    Ok(())
}

/// Where the kernel says what its processors did.
const STAT: &str = "/proc/stat";

/// Which share of the processors' time was not idle between two readings.
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

/// The page with `text` between the two comments.
fn fill(page: &str, text: &str) -> Result<String, String> {
    let (before, rest) = page.split_once(BEGIN).ok_or(format!("there is no line {BEGIN}"))?;
    let (_, after) = rest.split_once(END).ok_or(format!("there is no line {END} below {BEGIN}"))?;
    Ok(format!("{before}{BEGIN}\n\n{}\n\n{END}{after}", text.trim()))
}

fn text_of(path: &Path) -> Result<&str, String> {
    path.to_str().ok_or(format!("{} is no UTF-8", path.display()))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::{BEGIN, END, Plan, RUNS, busy_share, fill, read};
    use crate::workspace::Workspace;

    #[test]
    fn what_stands_between_the_comments_is_replaced_and_nothing_else() {
        let page = format!("above\n{BEGIN}\nold\n{END}\nbelow {END}\n");
        let filled = fill(&page, "new\n").unwrap();
        assert_eq!(filled, format!("above\n{BEGIN}\n\nnew\n\n{END}\nbelow {END}\n"));
        assert_eq!(fill(&filled, "new").unwrap(), filled);
        assert!(fill("no comment", "new").is_err() && fill(BEGIN, "new").is_err());
    }

    #[test]
    fn the_pages_have_the_comments() {
        let root = Workspace::find().root().to_path_buf();
        for page in ["README.md", "docs/benchmarks.md"] {
            assert!(fill(&read(&root.join(page)).unwrap(), "").is_ok(), "{page}");
        }
    }

    #[test]
    fn arguments_are_runs() {
        let plan = |runs, anyway| Ok(Plan { runs, anyway });
        assert_eq!(
            (Plan::parse(&[]), Plan::parse(&["--anyway", "--runs", "2"])),
            (plan(RUNS, false), plan(2, true))
        );
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
        // 100 more, of these 60 idle and 15 waiting for a disk; a guest's time is not counted twice.
        assert_eq!(share(before, "cpu  110 5 105 760 115 1 2 2 90 0\n"), Ok(0.25));
        assert_eq!(share(before, before), Ok(1.0));
        assert!(share(before, "intr 1 2 3\n").is_err() && share("", before).is_err());
    }
}

//! `cargo xtask fuzz`: builds the fuzz targets with libFuzzer, runs them side by side, says what
//! they did.
//!
//! ```text
//!   fuzz/fuzz_targets/NAME.rs --nightly, sanitizer, coverage--> target/fuzz/.../NAME
//!   fuzz/corpus/NAME, fuzz/regressions/NAME (read)  -->  NAME  --> target/fuzz/corpus/NAME (what is new)
//!                                                        |-------> target/fuzz/artifacts/NAME-* (what was found)
//! ```
//! The targets are in `fuzz/`, and its `src/lib.rs` says what they are. The flags are those of
//! cargo-fuzz, given to plain cargo; decision 0050 says why that program is not used.

mod log;

use crate::tool;
use crate::workspace::{Workspace, run};
use log::{Log, heads};
use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Seconds for each target in CI, after its kept inputs.
const CI_SECONDS: u64 = log::FLOOR_SECONDS;
/// Bytes that a target's inputs in the project may have together; `fuzz/tests/replay.rs` checks it.
const CORPUS_BYTES: u64 = 256 * 1024;
/// Inputs are not longer than this.
const INPUT_BYTES: u32 = 4096;

/// The compiler's flags for libFuzzer's coverage (cargo-fuzz gives the same).
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address -Ccodegen-units=1";
/// Leaks are counted by the targets themselves; a short quarantine keeps memory in the cache.
const ASAN_OPTIONS: &str = "detect_leaks=0:quarantine_size_mb=8:malloc_context_size=0";

pub struct Plan {
    targets: Vec<String>,
    seconds: u64,
    jobs: usize,
    /// True to merge new inputs into the project's corpora.
    keep: bool,
}

impl Plan {
    /// `[TARGET...] [--seconds N] [--jobs N] [--keep]`.
    pub fn parse(args: &[&str]) -> Result<Self, String> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let mut plan = Self { targets: Vec::new(), seconds: 60, jobs: cpus, keep: false };
        let mut args = args.iter();
        while let Some(&arg) = args.next() {
            let mut number = || match args.next().map(|n| n.parse::<u64>()) {
                Some(Ok(n)) if n > 0 => Ok(n),
                _ => Err(format!("{arg} takes a number above 0")),
            };
            match arg {
                "--seconds" => plan.seconds = number()?,
                "--jobs" => plan.jobs = number()? as usize,
                "--keep" => plan.keep = true,
                _ if arg.starts_with('-') => return Err(format!("`fuzz` has no option {arg}")),
                _ => plan.targets.push(arg.into()),
            }
        }
        Ok(plan)
    }
}

/// The layer: every target for a short time.
pub fn layer(w: &Workspace) -> Result<(), String> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    fuzz(w, &Plan { targets: Vec::new(), seconds: CI_SECONDS, jobs: cpus, keep: false })
}

struct Running {
    name: String,
    child: Child,
    log: PathBuf,
    /// The time at which the target must end; None: it has not played all kept inputs yet.
    until: Option<Instant>,
}

/// How long a target may take to notice that its time is over.
const GRACE: Duration = Duration::from_secs(10);

impl Running {
    fn log(&self) -> Log {
        Log::new(String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()))
    }

    /// Asks the target to end when its time is over. LibFuzzer's own limit counts from the
    /// process's start, so a target with many or slow inputs would never reach new ones.
    fn turn(&mut self, seconds: u64) -> Result<(), String> {
        let now = Instant::now();
        match self.until {
            None => self.until = self.log().kept().map(|_| now + Duration::from_secs(seconds)),
            Some(until) if now >= until => {
                // The target ends after its current execution, and prints its figures.
                let pid = self.child.id().to_string();
                let asked = Command::new("kill").args(["-USR1", &pid]).stderr(Stdio::null()).status();
                asked.map_err(|e| format!("kill: {e}"))?;
                self.until = Some(now + GRACE);
            }
            Some(_) => {}
        }
        Ok(())
    }
}

/// Builds and runs the targets of the plan. The error names those that found something.
pub fn fuzz(w: &Workspace, plan: &Plan) -> Result<(), String> {
    let package = w.root().join("fuzz");
    let all = targets(&package)?;
    if let Some(name) = plan.targets.iter().find(|name| !all.contains(name)) {
        return Err(format!("there is no fuzz target {name:?}; the targets are {}", all.join(", ")));
    }
    let chosen = if plan.targets.is_empty() { all } else { plan.targets.clone() };
    let bins = build(w)?;
    let work = w.target().join("fuzz");
    println!(
        "Each target for {} s beyond its kept inputs, {} at a time; their logs are in {}",
        plan.seconds,
        plan.jobs,
        work.display()
    );
    println!("{}", heads());

    let mut waiting: VecDeque<String> = chosen.iter().cloned().collect();
    let mut running: Vec<Running> = Vec::new();
    let (mut found, mut idle) = (Vec::new(), Vec::new());
    while !waiting.is_empty() || !running.is_empty() {
        while running.len() < plan.jobs
            && let Some(name) = waiting.pop_front()
        {
            running.push(start(&package, &bins, &work, name)?);
        }
        std::thread::sleep(Duration::from_millis(100));
        let mut still = Vec::new();
        for mut one in running {
            match one.child.try_wait().map_err(|e| format!("{}: {e}", one.name))? {
                None => {
                    one.turn(plan.seconds)?;
                    still.push(one);
                }
                Some(status) => {
                    let log = one.log();
                    if status.success() {
                        println!("{}", log.row(&one.name));
                        idle.extend(log.check(&one.name, plan.seconds).err());
                    } else {
                        print!("{:14} {status}\n{}", one.name, finding(&one.name, &one.log, log.text()));
                        found.push(one.name);
                    }
                }
            }
        }
        running = still;
    }
    if !found.is_empty() {
        return Err(format!("fuzz targets ended early: {}; what to do is above", found.join(", ")));
    }
    if !idle.is_empty() {
        return Err(idle.join("; "));
    }
    if plan.keep {
        chosen.iter().try_for_each(|name| keep(&package, &bins, &work, name))?;
    }
    Ok(())
}

/// The names of the targets.
fn targets(package: &Path) -> Result<Vec<String>, String> {
    let dir = package.join("fuzz_targets");
    let entries = fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut names: Vec<String> =
        entries.flatten().filter_map(|e| Some(e.path().file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    Ok(names)
}

/// Builds all targets. Returns the folder with the binaries.
fn build(w: &Workspace) -> Result<PathBuf, String> {
    let nightly = tool::nightly(w, &[])?;
    tool::debian(w, "c++", "g++")?; // libFuzzer itself is C++
    let host = host(w, &nightly)?;
    let target = w.target().join("fuzz");
    let mut cargo = w.program("rustup");
    cargo.args(["run", &nightly, "cargo", "build", "--manifest-path", "fuzz/Cargo.toml", "--release"]);
    // With an explicit target, build scripts and libFuzzer are built without the flags.
    cargo.args(["--features", "libfuzzer", "--target", &host]);
    run(cargo.env("RUSTFLAGS", RUSTFLAGS).env("CARGO_TARGET_DIR", &target))?;
    Ok(target.join(host).join("release"))
}

fn host(w: &Workspace, nightly: &str) -> Result<String, String> {
    let out = w.program("rustup").args(["run", nightly, "rustc", "-vV"]).output();
    let text = out.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(String::from).ok_or_else(|| format!("`rustc -vV` of toolchain {nightly} names no host"))
}

fn make(dir: &Path) -> Result<(), String> {
    fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))
}

/// Returns the command for a target's binary, with the arguments of every run.
fn binary(bins: &Path, name: &str) -> Command {
    let mut command = Command::new(bins.join(name));
    command.env("ASAN_OPTIONS", ASAN_OPTIONS).stdin(Stdio::null()).stdout(Stdio::null());
    command.arg(format!("-max_len={INPUT_BYTES}"));
    command
}

fn start(package: &Path, bins: &Path, work: &Path, name: String) -> Result<Running, String> {
    let (corpus, artifacts) = (work.join("corpus").join(&name), work.join("artifacts"));
    let log = work.join(format!("{name}.log"));
    [&corpus, &artifacts].into_iter().try_for_each(|dir| make(dir))?;
    let mut command = binary(bins, &name);
    command.arg(format!("-artifact_prefix={}/{name}-", artifacts.display()));
    // An allocation of more than 64 MiB, or an input that takes a minute, is a finding, too.
    command.args(["-print_final_stats=1", "-timeout=60", "-malloc_limit_mb=64", "-len_control=10"]);
    // libFuzzer writes to the first folder and reads all.
    command.arg(&corpus).args(kept(package, &name));
    let out = fs::File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
    let child = command.stderr(out).spawn().map_err(|e| format!("{name} did not start: {e}"))?;
    Ok(Running { name, child, log, until: None })
}

/// The folders with the target's inputs in the project.
fn kept(package: &Path, name: &str) -> Vec<PathBuf> {
    let folders = ["corpus", "regressions"].map(|f| package.join(f).join(name));
    folders.into_iter().filter(|f| f.is_dir()).collect()
}

/// Formats a finding, with the command that reproduces it.
fn finding(name: &str, path_of_log: &Path, log: &str) -> String {
    let mut shown = Vec::new();
    let mut lines = log.lines();
    while let Some(line) = lines.next() {
        if line.contains("panicked at") {
            shown.extend([line, lines.next().unwrap_or("")]);
        } else if ["SUMMARY:", "Base64:"].iter().any(|start| line.starts_with(start))
            || line.contains("ERROR: ")
        {
            shown.push(line);
        }
    }
    let mut shown: Vec<String> = shown.into_iter().map(String::from).collect();
    let artifact =
        log.lines().rev().find_map(|l| l.split_once("Test unit written to ").map(|(_, path)| path));
    match artifact {
        Some(path) => shown.extend([
            format!("input:       {path}"),
            format!("play again:  cargo run --manifest-path fuzz/Cargo.toml --bin replay -- {name} {path}"),
            format!(
                "when mended: cp {path} fuzz/regressions/{name}/   (cargo xtask test plays it from then on)"
            ),
        ]),
        None => shown.push(format!("no input was written; {} has all that it said", path_of_log.display())),
    }
    shown.iter().map(|line| format!("  {line}\n")).collect()
}

/// Replaces the project's corpus of a target by the smallest set of inputs that covers the same
/// code as all inputs together.
fn keep(package: &Path, bins: &Path, work: &Path, name: &str) -> Result<(), String> {
    let failed = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    let (merged, corpus) = (work.join("merged").join(name), package.join("corpus").join(name));
    let _ = fs::remove_dir_all(&merged);
    make(&merged)?;
    let mut merge = binary(bins, name);
    merge
        .arg("-set_cover_merge=1")
        .arg(&merged)
        .arg(work.join("corpus").join(name))
        .args(kept(package, name));
    let log = work.join(format!("{name}-merge.log"));
    merge.stderr(fs::File::create(&log).map_err(|e| failed(&log, e))?);
    run(&mut merge)?;

    let mut inputs: Vec<(u64, PathBuf)> = Vec::new();
    for entry in fs::read_dir(&merged).map_err(|e| failed(&merged, e))? {
        let path = entry.map_err(|e| failed(&merged, e))?.path();
        inputs.push((path.metadata().map_err(|e| failed(&path, e))?.len(), path));
    }
    inputs.sort();
    let _ = fs::remove_dir_all(&corpus);
    make(&corpus)?;
    let (mut bytes, mut files) = (0, 0);
    for (len, path) in &inputs {
        if bytes + len > CORPUS_BYTES {
            break;
        }
        let to = corpus.join(path.file_name().unwrap_or_default());
        fs::copy(path, &to).map_err(|e| failed(&to, e))?;
        (bytes, files) = (bytes + len, files + 1);
    }
    println!("{name}: {files} of {} inputs, {bytes} bytes, in fuzz/corpus/{name}", inputs.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Plan, finding};
    use std::path::Path;

    #[test]
    fn options_are_read() {
        let plan = Plan::parse(&["back_tx", "--seconds", "900", "--jobs", "1", "xs_codec"]).unwrap();
        assert_eq!((plan.seconds, plan.jobs, plan.keep), (900, 1, false));
        assert_eq!(plan.targets, ["back_tx", "xs_codec"]);
        for wrong in [&["--seconds"][..], &["--seconds", "0"], &["--jobs", "x"], &["--forever"]] {
            assert!(Plan::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    /// The log is one of a real finding, without its backtrace.
    #[test]
    fn a_finding_is_shown_with_what_to_do() {
        let log = "thread '<unnamed>' (22552) panicked at src/back_tx.rs:339:17:\n60 bytes that are not\n\
                   ==22552== ERROR: libFuzzer: deadly signal\n    #0 0x55 in f\nSUMMARY: libFuzzer: deadly signal\n\
                   artifact_prefix='/t/back_tx-'; Test unit written to /t/back_tx-crash-17\nBase64: AQAA\n";
        let shown = finding("back_tx", Path::new("/t/back_tx.log"), log);
        for part in [
            "60 bytes that are not\n",
            "Base64: AQAA\n",
            "--bin replay -- back_tx /t/back_tx-crash-17\n",
            "cp /t/back_tx-crash-17 fuzz/regressions/back_tx/ ",
        ] {
            assert!(shown.contains(part), "{part:?} in {shown}");
        }
        assert!(!shown.contains("#0"));
        assert!(finding("back_tx", Path::new("/t/back_tx.log"), "killed").contains("/t/back_tx.log"));
    }
}

//! Counts tests by what test programs say of them: libtest's events, JSON, one a line.
//!
//! ```text
//!   {"type":"test","name":"a","event":"started"}   {"type":"test","name":"a","event":"ok"}
//!   {"type":"suite","event":"ok","passed":5,"failed":0,"ignored":1,...}     the last one
//! ```
//! The format is unstable: `RUSTC_BOOTSTRAP` has it of the toolchain that `rust-toolchain.toml`
//! pins (docs/decisions/0004). Programs with a runner of their own say the same. Lines that are no
//! events are printed. What was started in a program without a closing event has failed. A test
//! that says `skipped: why` has passed for its runner, and is counted here as well.

use crate::silence;
use serde_json::Value;
use std::fmt;
use std::io::{self, BufRead, BufReader};
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Prefix of the line by which a test reports that this machine cannot run it.
const SKIPPED: &str = "skipped: ";

pub struct Job {
    pub command: Command,
    pub says: Says,
}

/// How a program reports the results of its tests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Says {
    Events,
    /// The program is judged by its exit status, as one test: rustdoc's events would need
    /// `RUSTC_BOOTSTRAP`, which rebuilds everything.
    Status,
}

/// Counts of tests by their result.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, skipped } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// The events of one program's tests.
#[derive(Default)]
struct Events {
    tally: Tally,
    running: Vec<String>,
    closed: bool,
}

impl Events {
    /// Processes a line of a program's output; returns lines to be shown.
    fn line(&mut self, line: &str) -> Vec<String> {
        let event: Value = serde_json::from_str(line.trim()).unwrap_or_default();
        let text = |field: &str| event[field].as_str().unwrap_or_default();
        let count = |field: &str| event[field].as_u64().unwrap_or_default();
        let name = text("name");
        match (text("type"), text("event")) {
            ("test", "started") => {
                self.running.push(name.into());
                Vec::new()
            }
            ("test", end) => {
                let (failed, skips) = (end == "failed", |line: &&str| line.starts_with(SKIPPED));
                let why: Vec<_> = text("stdout").lines().filter(|line| failed || skips(line)).collect();
                let counted = match end {
                    "ok" => {
                        self.tally.skipped += u64::from(!why.is_empty());
                        &mut self.tally.passed
                    }
                    "failed" => &mut self.tally.failed,
                    "ignored" => &mut self.tally.skipped,
                    // The test takes long, and has not ended.
                    _ => return vec![format!("test {name} ... {end}")],
                };
                *counted += 1;
                self.running.retain(|running| running != name);
                let said = format!("test {name} ... {end}");
                std::iter::once(&*said).chain(why).map(String::from).collect()
            }
            ("suite", "ok" | "failed") => {
                self.closed = true;
                // The program's own counts are used: an event may have been lost among output of
                // child processes.
                self.tally.passed = count("passed");
                self.tally.failed = count("failed");
                self.tally.skipped = self.tally.skipped.max(count("ignored"));
                self.running.clear();
                Vec::new()
            }
            ("suite", _) => Vec::new(),
            _ => {
                self.tally.skipped += u64::from(line.trim().starts_with(SKIPPED));
                vec![line.into()]
            }
        }
    }

    /// Called when the program has ended: tests that it did not finish have failed.
    fn end(mut self) -> Tally {
        if !self.closed {
            self.tally.failed += (self.running.len() as u64).max(1);
        }
        self.tally
    }
}

impl Tally {
    /// Runs all jobs in their order, `at_once` at a time, and counts their tests. The output of
    /// each is printed when it has ended. All are run, even if some fail.
    pub fn run_all(&mut self, jobs: Vec<Job>, at_once: usize) -> Result<(), String> {
        let queue = Mutex::new(jobs.into_iter());
        let (done, ended) = mpsc::channel();
        let mut result = Ok(());
        std::thread::scope(|scope| {
            for _ in 0..at_once {
                let (queue, done) = (&queue, done.clone());
                scope.spawn(move || {
                    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                    while let Some(job) = next() {
                        println!("$ {} &", crate::workspace::show(&job.command));
                        let mut text = String::new();
                        let (tally, ran) = run(job, &mut |line| text += &format!("{line}\n"));
                        // The receiver lives as long as this scope.
                        let _ = done.send((tally, text, ran));
                    }
                });
            }
            drop(done);
            for (tally, text, ran) in ended {
                print!("{text}");
                self.passed += tally.passed;
                self.failed += tally.failed;
                self.skipped += tally.skipped;
                result = std::mem::replace(&mut result, Ok(())).and(ran);
            }
        });
        result
    }
}

/// Runs a program, prints its output line by line, and counts its tests. A program that prints no
/// line for [`silence::LONGEST`] is ended.
fn run(job: Job, print: &mut dyn FnMut(&str)) -> (Tally, Result<(), String>) {
    let Job { mut command, says } = job;
    let shown = crate::workspace::show(&command);
    print(&format!("$ {shown}"));
    let selects = command.get_args().next().is_some();
    if says == Says::Events {
        command.args(["--format=json", "-Zunstable-options", "--show-output"]).env("RUSTC_BOOTSTRAP", "1");
    }
    let (mut events, began) = (Events::default(), Instant::now());
    let ran = (|| -> io::Result<_> {
        // One pipe for both outputs, so that a runner's lines stay in the order in which they were
        // printed.
        let (out, to) = io::pipe()?;
        let mut child = command.stdout(to.try_clone()?).stderr(to).spawn()?;
        drop(command); // it holds the pipe's other end
        let (to, lines) = mpsc::channel();
        std::thread::spawn(move || {
            BufReader::new(out).split(b'\n').try_for_each(|line| to.send(line).map_err(drop))
        });
        loop {
            match lines.recv_timeout(silence::LONGEST) {
                Ok(line) => events.line(&String::from_utf8_lossy(&line?)).iter().for_each(|line| print(line)),
                // The runner has ended, but the pipe stays open: processes that a killed test left
                // behind hold it.
                Err(RecvTimeoutError::Timeout) if child.try_wait()?.is_some() => break,
                Err(RecvTimeoutError::Timeout) => {
                    let ended = silence::end_descendants(child.id());
                    let _ = child.kill();
                    print(&format!(
                        "xtask: no line for {} minutes: {ended} process(es) ended; hanging: {}",
                        silence::LONGEST.as_secs() / 60,
                        events.running.join(", ")
                    ));
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        child.wait()
    })();
    let ran = match ran {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{shown}` ended with {status}")),
        Err(e) => Err(format!("`{shown}` could not be run: {e}")),
    };
    if says == Says::Status {
        events.closed = true;
        events.tally.passed = u64::from(ran.is_ok());
        events.tally.failed = u64::from(ran.is_err());
    }
    let closed = events.closed;
    events.running.iter().for_each(|name| print(&format!("test {name} ... has no end")));
    let tally = events.end();
    print(&format!("{tally}, in {:.1} s", began.elapsed().as_secs_f64()));
    let ran = ran.and_then(|()| match (closed, selects && tally == Tally::default()) {
        (false, _) => Err(format!("`{shown}` ended without its closing event")),
        (true, true) => Err(format!("`{shown}`: no test has such a name")),
        (true, false) => Ok(()),
    });
    (tally, ran)
}

#[cfg(test)]
mod tests {
    use super::{Events, Tally};

    fn of(lines: &[&str]) -> (String, Vec<String>) {
        let mut events = Events::default();
        let said = lines.iter().flat_map(|line| events.line(line)).collect();
        (events.end().to_string(), said)
    }

    #[test]
    fn a_program_that_ends_in_a_test_has_failed_it() {
        let lines = [
            r#"{"type":"suite","event":"started","test_count":3}"#,
            r#"{"type":"test","event":"started","name":"a"}"#,
            r#"{"type":"test","event":"started","name":"b"}"#,
            r#"{"type":"test","name":"a","event":"ok"}"#,
            r#"{"type":"test","event":"started","name":"c"}"#,
        ];
        assert_eq!(of(&lines).0, "1 passed, 2 failed, 0 skipped");
        assert_eq!(of(&lines[..1]).0, "0 passed, 1 failed, 0 skipped");
        assert_eq!(of(&[]).0, "0 passed, 1 failed, 0 skipped");
    }

    /// The events in the form of libtest 1.95.
    #[test]
    fn events_count_and_are_shown_as_text() {
        let (counted, said) = of(&[
            r#"{ "type": "suite", "event": "started", "test_count": 4 }"#,
            r#"{ "type": "test", "event": "started", "name": "a" }"#,
            r#"{ "type": "test", "name": "a", "event": "ok" }"#,
            r#"{ "type": "test", "name": "b", "event": "failed", "stdout": "one\ntwo\n" }"#,
            r#"{ "type": "test", "name": "c", "event": "ok", "stdout": "much\nskipped: no tool\n" }"#,
            r#"{ "type": "test", "name": "d", "event": "ignored" }"#,
            "a child's {line}",
            r#"{ "type": "suite", "event": "failed", "passed": 2, "failed": 1, "ignored": 1, "exec_time": 0.1 }"#,
        ]);
        assert_eq!(counted, "2 passed, 1 failed, 2 skipped");
        let shown = [
            "test a ... ok",
            "test b ... failed",
            "one",
            "two",
            "test c ... ok",
            "skipped: no tool",
            "test d ... ignored",
            "a child's {line}",
        ];
        assert_eq!(said, shown);
    }

    #[test]
    fn what_a_test_prints_is_no_event() {
        let closing = r#"{"type":"suite","event":"ok","passed":13,"failed":0,"ignored":0}"#;
        let (counted, said) = of(&["13 passed, 0 failed", r#"{"passed":4}"#, "skipped: no tool", closing]);
        let tally = Tally { passed: 13, skipped: 1, ..Tally::default() };
        assert_eq!((counted, said.len()), (tally.to_string(), 3));
    }
}

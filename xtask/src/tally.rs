//! Adds up the last lines of test runners: a person reads one line after a dozen binaries.
//!
//! Two kinds of closing line are known: libtest's `test result: ok. 5 passed; 0 failed; 1 ignored;
//! ...`, and that of the tests that run themselves one after the other (`harness = false`), `5
//! passed, 0 failed`. A test that says `skipped: why` has passed for its runner, and is counted
//! here as well. One of the latter that panics ends its binary without a closing line: what was
//! started and did not end has failed.

use crate::silence;
use std::fmt;
use std::io::{self, BufRead, BufReader};
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};

/// Tests by how they ended.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
    /// A test that said its name, and not yet how it ended.
    started: Option<String>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, skipped, .. } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

impl Tally {
    /// Takes a line of a runner's output.
    fn read_line(&mut self, line: &str) {
        let line = line.trim();
        if let Some((name, rest)) = line.strip_prefix("test ").and_then(|test| test.split_once(" ...")) {
            if rest.is_empty() || self.started.as_deref() != Some(name) {
                self.end();
            }
            self.started = rest.is_empty().then(|| name.into());
        } else if line.starts_with("running ") && (line.ends_with(" tests") || line.ends_with(" test")) {
            self.end();
        }
        let counts = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "));
        // Without the prefix the whole line has to be counts: what a test prints is none.
        let (counts, own) = counts.map_or((line, true), |(_, counts)| (counts, false));
        let mut counted = Self::default();
        for part in counts.split([';', ',']) {
            match part.trim().split_once(' ').map(|(n, what)| (n.parse::<u64>(), what)) {
                Some((Ok(n), "passed")) => counted.passed += n,
                Some((Ok(n), "failed")) => counted.failed += n,
                Some((Ok(n), "ignored" | "skipped")) => counted.skipped += n,
                _ if own => {
                    self.skipped += u64::from(line.starts_with("skipped: "));
                    return;
                }
                _ => {}
            }
        }
        self.passed += counted.passed;
        self.failed += counted.failed;
        self.skipped += counted.skipped;
    }

    /// A test that was started has no end.
    fn end(&mut self) {
        self.failed += u64::from(self.started.take().is_some());
    }

    /// Runs all commands, `at_once` at a time, in their order, and counts. The output of each is
    /// printed when it has ended. All are run, whichever fails.
    pub fn run_all(&mut self, commands: Vec<Command>, at_once: usize) -> Result<(), String> {
        let queue = Mutex::new(commands.into_iter());
        let (done, ended) = mpsc::channel();
        let mut result = Ok(());
        std::thread::scope(|scope| {
            for _ in 0..at_once {
                let (queue, done) = (&queue, done.clone());
                scope.spawn(move || {
                    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                    while let Some(command) = next() {
                        println!("$ {} &", crate::workspace::show(&command));
                        let (mut tally, mut text) = (Self::default(), String::new());
                        let ran = tally.run(command, &mut |line| text += &format!("{line}\n"));
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

    /// Runs one command, whose output is printed as it comes, and counts.
    pub fn run_aloud(&mut self, command: Command) -> Result<(), String> {
        self.run(command, &mut |line| println!("{line}"))
    }

    /// Tests that passed.
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// Runs a command, whose output is printed line by line, and counted. A command without a line
    /// for [`silence::LONGEST`] is ended.
    fn run(&mut self, mut command: Command, print: &mut dyn FnMut(&str)) -> Result<(), String> {
        let shown = crate::workspace::show(&command);
        print(&format!("$ {shown}"));
        let ran = (|| -> io::Result<_> {
            // One pipe for both, so that a runner's lines stand where they were said.
            let (out, to) = io::pipe()?;
            let mut child = command.stdout(to.try_clone()?).stderr(to).spawn()?;
            drop(command); // it holds the pipe's other end
            let (to, lines) = mpsc::channel();
            std::thread::spawn(move || {
                BufReader::new(out).split(b'\n').try_for_each(|line| to.send(line).map_err(drop))
            });
            loop {
                match lines.recv_timeout(silence::LONGEST) {
                    Ok(line) => {
                        let line = String::from_utf8_lossy(&line?).into_owned();
                        print(&line);
                        self.read_line(&line);
                    }
                    // Its end was not the pipe's: what a killed test left behind holds that.
                    Err(RecvTimeoutError::Timeout) if child.try_wait()?.is_some() => break,
                    Err(RecvTimeoutError::Timeout) => {
                        let ended = silence::end_descendants(child.id());
                        print(&format!(
                            "xtask: no line for {} minutes: {ended} process(es) ended; the test named last hangs",
                            silence::LONGEST.as_secs() / 60
                        ));
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
            self.end();
            child.wait()
        })();
        match ran {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("`{shown}` ended with {status}")),
            Err(e) => Err(format!("`{shown}` could not be run: {e}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Tally;

    fn of(lines: &[&str]) -> Tally {
        let mut tally = Tally::default();
        lines.iter().for_each(|line| tally.read_line(line));
        tally
    }

    #[test]
    fn a_binary_that_ends_in_a_test_has_failed_one() {
        let counted = of(&[
            "test a ...",
            "test a ... ok",
            "test b ...",
            "running 2 tests",
            "test c ... ok",
            "test result: ok. 2 passed; 0 failed; 0 ignored",
            "test d ...",
            "running 1 test",
            "test f ... ok",
            "test result: ok. 1 passed; 0 failed; 0 ignored",
            "test g ...",
            "test e ...",
            "test e ... ok",
            "1 passed, 0 failed",
        ]);
        assert_eq!(counted.to_string(), "4 passed, 3 failed, 0 skipped");
    }

    #[test]
    fn both_runners_closing_lines_count() {
        let counted = of(&[
            "running 3 tests",
            "test a ... ok",
            "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.01s",
            "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "13 passed, 0 failed",
            "skipped: no tool",
        ]);
        assert_eq!(counted.to_string(), "16 passed, 2 failed, 2 skipped");
    }

    #[test]
    fn what_a_test_prints_is_no_closing_line() {
        let none = of(&[
            "",
            "13 passed",
            "3 passed, and more",
            "x 13 passed, 0 failed",
            "rows: 4 passed, -1 failed",
        ]);
        assert_eq!(none, Tally { passed: 13, ..Tally::default() }, "a bare count is one");
    }
}

//! A loopback machine with its toolstack in this process, and the domains that it starts as
//! processes of their own.
//!
//! ```text
//!   this process: broker + xenstored (threads, asleep) + toolstack
//!        |  stdin/stdout, a JSON object a line: commands out, reports back
//!        +-- `pregrant-lab process back`   domain 0        +-- `pregrant-lab process guest`  domain 5, 6 ...
//! ```
//! A process that dies shows as an end of its output, and in its exit code; when this one dies they
//! all do.

use crate::machine::Machine;
use crate::process::process_command::{Case, ProcessCommand, WorkerSetup};
use crate::process::report::{Played, Report};
use crate::toolstack::DiskSpec;
use pregrant::DomId;
use pregrant::xenbus::toolstack::{self, Vif};
use pregrant::xenstore::Client;
use pregrant_cli::loopback_machine::{self, DRIVER};
use pregrant_cli::signals;
use pregrant_host::UnixTransport;
use pregrant_loopback::{Control, DomainSpec};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::error::Error;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Extracts the value of the expected report; any other report is an error.
#[macro_export]
macro_rules! answer {
    ($report:expr, $wanted:pat => $value:expr) => {
        match $report {
            $wanted => $value,
            other => return Err(format!("an answer to another command: {other:?}").into()),
        }
    };
}

/// Entries of a machine's grant tables, as `pregrant-lab loopback grants` counts them: all; those
/// that are mapped or copied now; and those of the latter that have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Grants {
    pub granted: u64,
    pub in_use: u64,
    pub ended: u64,
}

impl fmt::Display for Grants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { granted, in_use, ended } = self;
        match granted {
            0 => f.write_str("none"),
            _ => write!(f, "{granted}, of which {in_use} are mapped or copied now, {ended} of them ended"),
        }
    }
}

pub struct Testbed {
    machine: Machine,
    dir: TestbedDir,
}

impl Testbed {
    /// Starts broker and xenstored in a new directory, with domain 0 as the driver domain.
    pub fn start() -> Result<Self> {
        let dir = TestbedDir::make()?;
        Ok(Self { machine: Machine::start(&dir.path, |_| ())?, dir })
    }

    /// The socket of this machine's xenstore for Xen's own tools (`XENSTORED_PATH`).
    pub fn store_socket(&self) -> PathBuf {
        loopback_machine::store_socket(&self.dir.path)
    }

    /// Returns the toolstack's connection to xenstore, which is domain 0's.
    pub fn xs(&mut self) -> &mut Client<UnixTransport> {
        self.machine.xs()
    }

    /// Counts the grants of all domains as they are now.
    pub fn grants(&self) -> Result<Grants> {
        let rows = Control::connect(&loopback_machine::broker_socket(&self.dir.path))?.grants()?;
        Ok(rows.iter().fold(Grants::default(), |sum, row| Grants {
            granted: sum.granted + row.granted,
            in_use: sum.in_use + row.in_use,
            ended: sum.ended + row.ended,
        }))
    }

    pub fn guest_domain(&self, domid: u16) -> Result<()> {
        self.machine.guest_domain(DomId(domid))
    }

    /// Makes a guest domain that can have long requests to a disk in flight.
    pub fn large_guest_domain(&self, domid: u16) -> Result<()> {
        self.machine.domain(DomainSpec { pages: 32768, grant_frames: 32, ..DomainSpec::guest(DomId(domid)) })
    }

    /// Makes a disk of guest `front` served by domain 0, as libxl does.
    pub fn make_disk(&mut self, front: u16, handle: u32, params: &str) -> Result<()> {
        let disk = DiskSpec { params: params.into(), writable: true };
        crate::toolstack::make_vbd(self.xs(), DomId(front), handle, &disk)
    }

    /// Makes a vif of guest `front` served by domain 0, as libxl does.
    pub fn make_vif(&mut self, front: u16, handle: u32) -> Result<()> {
        crate::toolstack::make_vif(self.xs(), DomId(front), handle)
    }

    /// Removes a vif whose two ends have closed it.
    pub fn remove_vif(&mut self, front: u16, handle: u32) -> Result<()> {
        let vif = Vif::new(DomId(front), DRIVER, handle, [0; 6]);
        Ok(toolstack::remove(self.xs(), &vif.id)?)
    }

    /// Starts the driver domain's process, with worker threads if any are wanted; `cpu` pins its
    /// first thread.
    pub fn back(&self, cpu: Option<usize>, worker_setup: Option<WorkerSetup>) -> Result<Process> {
        let mut back = self.process("back", DRIVER.0, cpu)?;
        if let Some(worker_setup) = worker_setup {
            answer!(back.ask(&ProcessCommand::StartWorkers(worker_setup), &mut [])?, Report::Done => ());
        }
        Ok(back)
    }

    /// Starts a process that attaches to domain `domid`; `cpu` pins it.
    pub fn process(&self, role: &str, domid: u16, cpu: Option<usize>) -> Result<Process> {
        let program = std::env::current_exe()
            .map_err(|e| format!("cannot find this program to start it again: {e}"))?;
        let mut command = Command::new(program);
        command.arg("process").arg(role).arg("--broker").arg(loopback_machine::broker_socket(&self.dir.path));
        command.arg("--domid").arg(domid.to_string());
        if let Some(cpu) = cpu {
            command.arg("--cpu").arg(cpu.to_string());
        }
        Process::start(command, format!("{role} (domain {domid})"))
    }
}

/// The directory of the sockets: of this user alone, and gone with the testbed, also when a signal
/// ends the program.
struct TestbedDir {
    path: PathBuf,
}

/// Largest number of bytes of a directory's name: a socket's path has at most 107, including the
/// sockets' own names.
const DIR_NAME_MAX: usize = 80;

impl TestbedDir {
    fn make() -> Result<Self> {
        let mut base = std::env::temp_dir();
        if base.as_os_str().len() > DIR_NAME_MAX {
            base = PathBuf::from("/tmp"); // sockets of a longer path cannot be bound
        }
        remove_stale(&base);
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("pregrant-{}-{number}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(|e| {
            format!("cannot make {}: {e}; set TMPDIR to a directory that you can write to", path.display())
        })?;
        remove_on_signal()?;
        directories().push(path.clone());
        Ok(Self { path })
    }
}

impl Drop for TestbedDir {
    fn drop(&mut self) {
        directories().retain(|p| *p != self.path);
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Removes directories of programs that were killed: no process of the name's id exists, and no one
/// listens on the broker's socket.
fn remove_stale(base: &Path) {
    for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let numbers = name.to_str().and_then(|name| name.strip_prefix("pregrant-")?.split_once('-'));
        let owner = numbers.and_then(|(pid, n)| n.parse().ok().and_then(|_: u32| pid.parse::<u32>().ok()));
        if owner.is_none_or(|pid| Path::new("/proc").join(pid.to_string()).exists()) {
            continue;
        }
        let answer = UnixStream::connect(loopback_machine::broker_socket(&path));
        if answer.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused) {
            let _ = std::fs::remove_dir_all(&path); // somebody else's stays
        }
    }
}

/// The directories to be removed when the program ends.
fn directories() -> MutexGuard<'static, Vec<PathBuf>> {
    static DIRECTORIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    DIRECTORIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of attempts to remove the directory, after which it is left.
const REMOVALS: u32 = 100;

/// Removes the directory on a signal (the processes die with this one, but the directory would
/// stay). Starts one thread, once.
fn remove_on_signal() -> Result<()> {
    static STARTED: AtomicBool = AtomicBool::new(false);
    if STARTED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let mut signals = signal_hook::iterator::Signals::new(signals::ending())?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            for path in directories().iter() {
                // A process that has just started may put something there meanwhile, which is an
                // error of the removal.
                for _ in 0..REMOVALS {
                    if std::fs::remove_dir_all(path).is_ok() || !path.exists() {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            std::process::exit(128 + signal);
        }
    })?;
    Ok(())
}

/// The processes of a backend and of its guests, or its only guest, and the machine that they are
/// on.
pub struct Ends {
    // The backend first: guests that go are then no one's business.
    pub back: Process,
    pub guests: Process,
    pub testbed: Testbed,
}

impl Ends {
    /// Sends a command to the backend and returns its report.
    pub fn ask_back(&mut self, command: ProcessCommand) -> Result<Report> {
        self.back.ask(&command, &mut [&mut self.guests])
    }

    /// Sends a command to the guests and returns their report.
    pub fn ask_guests(&mut self, command: ProcessCommand) -> Result<Report> {
        self.guests.ask(&command, &mut [&mut self.back])
    }

    /// Runs one case, whose vif is created and removed here. Returns the guest's report and the
    /// backend's. `between` is called after the backend has its command and before the guest gets
    /// its own.
    pub fn play<T>(
        &mut self,
        case: Case,
        between: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<(Played, Played, T)> {
        let (front, handle) = (case.front, case.handle);
        self.back.command(&ProcessCommand::Case(case.clone()))?;
        let started = between(self)?;
        self.testbed.make_vif(front, handle)?;
        // The guest's answer first: when it cannot, the back waits for a vif that will not come.
        let guest = answer!(self.ask_guests(ProcessCommand::Case(case))?, Report::Case(guest) => *guest);
        let back = answer!(self.back.report(&mut [&mut self.guests])?, Report::Case(back) => *back);
        self.testbed.remove_vif(front, handle)?;
        Ok((guest, back, started))
    }
}

/// A process that runs the part of one domain.
pub struct Process {
    name: String,
    child: Child,
    /// A descriptor that is readable once the process has ended.
    life: OwnedFd,
    commands: Option<ChildStdin>,
    reports: BufReader<ChildStdout>,
}

impl Process {
    fn start(mut command: Command, name: String) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|e| {
            format!("cannot start the process of the {name}: {e}; see ulimit -u and ulimit -n")
        })?;
        let pid = Pid::from_child(&child);
        let life = pidfd_open(pid, PidfdFlags::empty()).map_err(|e| {
            format!("cannot watch the process of the {name}: {e}; raise the limit of open files (ulimit -n)")
        })?;
        let commands = child.stdin.take();
        let reports = BufReader::new(child.stdout.take().ok_or("a child without output")?);
        Ok(Self { name, child, life, commands, reports })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command to the process.
    pub fn command(&mut self, command: &ProcessCommand) -> Result<()> {
        let line = serde_json::to_string(command)? + "\n";
        let commands = self.commands.as_mut().ok_or("the process was asked to end already")?;
        commands
            .write_all(line.as_bytes())
            .map_err(|e| format!("the {} does not listen any more: {e}", self.name))?;
        Ok(commands.flush()?)
    }

    /// Sends a command, and waits for the answer, or until one of `others` ends.
    pub fn ask(&mut self, command: &ProcessCommand, others: &mut [&mut Process]) -> Result<Report> {
        self.command(command)?;
        self.report(others)
    }

    /// Waits for the process's next report, or until it or one of `others` ends: then the first to
    /// die is reported.
    pub fn report(&mut self, others: &mut [&mut Process]) -> Result<Report> {
        while self.reports.buffer().is_empty() {
            let mut fds = vec![PollFd::new(self.reports.get_ref(), PollFlags::IN)];
            fds.extend(others.iter().map(|o| PollFd::new(&o.life, PollFlags::IN)));
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            let ended = fds[1..].iter().position(|fd| !fd.revents().is_empty());
            if !fds[0].revents().is_empty() {
                break;
            }
            if let Some(i) = ended {
                return Err(others[i].ended()?.into());
            }
        }
        let mut line = String::new();
        if self.reports.read_line(&mut line)? == 0 {
            return Err(self.ended()?.into());
        }
        match serde_json::from_str(&line)? {
            Report::Failed(why) => Err(format!("{}: {why}", self.name).into()),
            report => Ok(report),
        }
    }

    /// Kills the process by SIGKILL; returns when it is gone. That is expected, so no one is
    /// notified.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().map_err(|e| format!("cannot kill the process of the {}: {e}", self.name))?;
        self.child.wait()?;
        Ok(())
    }

    /// Describes how the process ended.
    fn ended(&mut self) -> Result<String> {
        let status = self.child.wait()?;
        let more = if status.code().is_some() { "; its last lines are above" } else { "" };
        Ok(format!("the process of the {} ended early ({status}){more}", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.commands.take()); // the end of its commands: it stops by itself
        for _ in 0..200 {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_directory_of_a_program_that_was_killed_goes_with_the_next_one() {
        let base = std::env::temp_dir().join(format!("pregrant-stale-{}", std::process::id()));
        let make = |name: String| {
            let dir = base.join(name);
            std::fs::create_dir_all(&dir).unwrap();
            UnixListener::bind(loopback_machine::broker_socket(&dir)).unwrap()
        };
        let (dead, this) = (u32::MAX, std::process::id());
        drop(make(format!("pregrant-{dead}-0")));
        // One that lives in another namespace, one that begins, and what is no testbed's.
        let _listens = make(format!("pregrant-{dead}-1"));
        drop(make(format!("pregrant-{this}-0")));
        drop(make(format!("pregrant-m-{dead}-name")));
        std::fs::create_dir(base.join(format!("pregrant-{dead}-2"))).unwrap();
        remove_stale(&base);
        let left = std::fs::read_dir(&base).unwrap().map(|entry| entry.unwrap().file_name());
        let mut left: Vec<_> = left.map(|name| name.into_string().unwrap()).collect();
        left.sort();
        let mut expected = [
            format!("pregrant-{dead}-1"),
            format!("pregrant-{dead}-2"),
            format!("pregrant-{this}-0"),
            format!("pregrant-m-{dead}-name"),
        ];
        expected.sort();
        assert_eq!(left, expected);
        std::fs::remove_dir_all(&base).unwrap();
    }
}

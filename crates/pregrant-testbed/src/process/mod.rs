//! The processes of a testbed: `pregrant-lab process back` and `pregrant-lab process guest`. The
//! program starts them itself.

mod account;
mod back;
mod consumer;
mod crowd;
pub mod disks;
mod fault;
mod guest;
pub mod mark;
mod neighbour;
mod own_frames;
mod port_plan;
mod ports;
pub mod process_command;
pub mod report;
mod signals;
mod transfer;
mod worker_threads;

use clap::{Args, ValueEnum};
use pregrant::DomId;
use pregrant::platform::Platform;
use pregrant::xenstore::Client;
use pregrant_cli::loopback_machine;
use pregrant_host::UnixTransport;
use pregrant_host::drivers::Backend;
use pregrant_host::wake::WakeOn;
use pregrant_loopback::{Loopback, LoopbackError};
use process_command::ProcessCommand;
use report::Report;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::error::Error;
use std::io::{BufRead, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type LoopbackBackend = Backend<Loopback, UnixTransport>;

/// Which domain to play.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Role {
    /// The process is the driver domain.
    Back,
    /// The process is a guest, or many guests.
    Guest,
}

/// Arguments of `pregrant-lab process`.
#[derive(Debug, Args)]
pub struct ProcessArgs {
    role: Role,
    /// The broker's socket
    #[arg(long)]
    broker: PathBuf,
    /// The domain to attach to
    #[arg(long)]
    domid: u16,
    /// The processor to stay on
    #[arg(long)]
    cpu: Option<usize>,
}

/// Attaches, and carries out commands until there are no more.
pub fn run(args: ProcessArgs) -> Result<()> {
    // No one is left behind when the testbed is killed.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    stay_on(args.cpu)?;
    let played = match args.role {
        Role::Back => back::play(&args),
        Role::Guest => guest::play(&args),
    };
    // When a testbed is asked to end, its broker ends and then its processes: there is nothing to
    // report.
    if played.as_ref().is_err_and(|e| is_end_of_machine(&**e)) {
        std::thread::sleep(Duration::from_millis(200));
        if rustix::process::getppid().is_none_or(|parent| parent == rustix::process::Pid::INIT) {
            return Ok(());
        }
    }
    played
}

/// True if the error means that the broker does not run, or has ended.
fn is_end_of_machine(e: &(dyn Error + 'static)) -> bool {
    matches!(e.downcast_ref(), Some(LoopbackError::NoBroker { .. } | LoopbackError::Gone { .. }))
}

/// Pins the calling thread and those that it starts from now on to a core, if one is given.
pub fn stay_on(cpu: Option<usize>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set).map_err(|e| format!("cannot stay on processor {cpu}: {e}"))?)
}

/// Attaches to a domain, and connects to its xenstore. Events of xenstore then wake the platform.
fn attach(broker: &Path, domid: DomId) -> Result<(Loopback, Client<UnixTransport>)> {
    let platform = Loopback::attach(broker, domid)?;
    let xs = loopback_machine::store_of(&platform)?;
    platform.events().also_wake_on(xs.transport().as_fd())?;
    Ok((platform, xs))
}

/// Reads the next command; None at the end of the input.
fn next_command() -> Result<Option<ProcessCommand>> {
    let mut line = String::new();
    if std::io::stdin().lock().read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line)?))
}

/// True if there is a command, or the input has ended. Commands come one at a time, each after the
/// last one's answer.
fn has_command() -> Result<bool> {
    let stdin = std::io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(!fds[0].revents().is_empty())
}

fn send_report(report: &Report) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all((serde_json::to_string(report)? + "\n").as_bytes())?;
    Ok(out.flush()?)
}

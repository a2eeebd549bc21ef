//! Reads the status of backends from their sockets: all at the same time, so that one that hangs
//! does not delay the others.
//!
//! ```text
//!   DIR/back-0.status      no socket, or no one listens        Absent: it does not run
//!   DIR/blkback-0.status   connected, and no whole answer in   Silent: its process runs and does not answer; the kernel says
//!                          PATIENCE, or its backlog is full            which process listens
//!                          an answer that is none              Failed
//!                          a document                          BackStatus
//! ```
//! Nothing here waits for longer than `PATIENCE` in all, whatever a backend does or does not.

use pregrant_host::drivers::BackStatus;
use pregrant_host::drivers::status::{self, FORMAT};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The time that backends have to answer. (An idle one checks for readers ten times a second.)
const PATIENCE: Duration = Duration::from_secs(2);
/// Largest size of a status document in bytes.
const DOCUMENT_MAX: usize = 16 << 20;

/// The remedy if this user may not access a socket, or the socket's directory.
pub const AS_ITS_USER: &str = "run this as root, or as the user whose backend it is";

/// The reason why there is no status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoStatus {
    /// The backend does not run: there is no socket, or no process listens on it.
    Absent,
    /// The backend runs and does not answer.
    Silent {
        /// The number of the backend's process, if the kernel reports it.
        pid: Option<u32>,
    },
    /// This user may not access the socket, so the backend may be running; the text is the error.
    Denied(String),
    Failed(String),
}

impl fmt::Display for NoStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("does not run"),
            Self::Silent { pid: Some(pid) } => {
                write!(
                    f,
                    "process {pid} runs and does not answer: it is stopped, its control thread hangs, or it has no descriptor left"
                )
            }
            Self::Silent { pid: None } => {
                f.write_str("a process runs and does not answer: it is stopped, its control thread hangs, or it has no descriptor left")
            }
            Self::Denied(why) | Self::Failed(why) => f.write_str(why),
        }
    }
}

/// A backend that was found by its socket.
#[derive(Clone, PartialEq, Debug)]
pub struct Daemon {
    /// The backend's command: `back` or `blkback`.
    pub name: &'static str,
    pub domain: u16,
    /// The backend's status, or the reason why there is none.
    pub status: Result<BackStatus, NoStatus>,
}

impl Daemon {
    /// Returns the status, if the backend answered.
    pub fn answer(&self) -> Option<&BackStatus> {
        self.status.as_ref().ok()
    }

    pub fn words(&self) -> String {
        format!("domain {}, {}", self.domain, self.name)
    }
}

/// Returns the statuses of the backends that answered.
pub fn answers(daemons: &[Daemon]) -> Vec<BackStatus> {
    daemons.iter().filter_map(Daemon::answer).cloned().collect()
}

/// Reads the status of the backend at one socket.
pub fn read(socket: &Path) -> Result<BackStatus, NoStatus> {
    ask(&[socket.into()]).pop().unwrap_or(Err(NoStatus::Absent))
}

/// Reads all backends whose sockets are in these directories; a directory may be missing.
///
/// # Errors
/// No directory can be read.
pub fn read_all(dirs: &[&Path]) -> std::io::Result<Vec<Daemon>> {
    let found: Vec<_> = dirs.iter().map(|dir| status::sockets_in(dir)).collect();
    let sockets: Vec<_> = if found.iter().any(Result::is_ok) {
        found.into_iter().flatten().flatten().collect()
    } else {
        // A socket that may not be accessed is more informative than one that does not exist.
        let mut errors: Vec<_> = found.into_iter().filter_map(Result::err).collect();
        errors.sort_by_key(|e| e.kind() == std::io::ErrorKind::NotFound);
        return errors.into_iter().next().map_or_else(|| Ok(Vec::new()), Err);
    };
    let answers = ask(&sockets);
    let daemon = |(socket, status): (&PathBuf, _)| {
        let (name, domain) = status::daemon_of(socket)?;
        Some(Daemon { name, domain, status })
    };
    Ok(sockets.iter().zip(answers).filter_map(daemon).collect())
}

/// The state of reading one backend's status.
struct Reader {
    fd: OwnedFd,
    document: Vec<u8>,
}

enum Asked {
    Reading(Reader),
    Done(Box<Result<BackStatus, NoStatus>>),
}

/// Reads the statuses of the backends at these sockets. The results have the order of the sockets.
fn ask(sockets: &[PathBuf]) -> Vec<Result<BackStatus, NoStatus>> {
    let until = Instant::now() + PATIENCE;
    let mut all: Vec<Asked> = sockets.iter().map(|socket| begin(socket)).collect();
    loop {
        let reading = || {
            all.iter().filter_map(|asked| match asked {
                Asked::Reading(reader) => Some(reader.fd.as_fd()),
                Asked::Done(_) => None,
            })
        };
        let mut fds: Vec<_> = reading().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let left = until.saturating_duration_since(Instant::now());
        if fds.is_empty() || left.is_zero() {
            break;
        }
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match rustix::event::poll(&mut fds, Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => break, // they count as silent
        }
        drop(fds);
        for (asked, socket) in all.iter_mut().zip(sockets) {
            if let Asked::Reading(reader) = asked
                && let Some(done) = reader.go_on(socket)
            {
                *asked = Asked::Done(Box::new(done));
            }
        }
    }
    let over = |asked| match asked {
        Asked::Done(done) => *done,
        Asked::Reading(reader) => Err(NoStatus::Silent { pid: listener_of(&reader.fd) }),
    };
    all.into_iter().map(over).collect()
}

/// Returns the process id of the process that listens at the other end.
fn listener_of(fd: &OwnedFd) -> Option<u32> {
    let pid = rustix::net::sockopt::socket_peercred(fd).ok()?.pid;
    u32::try_from(pid.as_raw_nonzero().get()).ok()
}

fn begin(socket: &Path) -> Asked {
    let connect = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Does not wait: a backlog that is full is EAGAIN.
        rustix::net::connect(&fd, &SocketAddrUnix::new(socket)?)?;
        Ok(fd)
    };
    match connect() {
        Ok(fd) => Asked::Reading(Reader { fd, document: Vec::new() }),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Asked::Done(Box::new(Err(NoStatus::Absent))),
        Err(Errno::AGAIN) => Asked::Done(Box::new(Err(NoStatus::Silent { pid: None }))),
        Err(e) => Asked::Done(Box::new(not_reached(socket, e))),
    }
}

/// Returns the result for a socket that could not be reached, so that it is unknown whether the
/// backend runs.
fn not_reached(socket: &Path, e: Errno) -> Result<BackStatus, NoStatus> {
    match e {
        Errno::ACCESS | Errno::PERM => {
            Err(NoStatus::Denied(format!("{}: {e}; {AS_ITS_USER}", socket.display())))
        }
        _ => failed(socket, format_args!("cannot connect: {e}")),
    }
}

fn failed(socket: &Path, why: fmt::Arguments<'_>) -> Result<BackStatus, NoStatus> {
    Err(NoStatus::Failed(format!("{}: {why}", socket.display())))
}

impl Reader {
    /// Reads the bytes that have arrived. None: the backend has not sent everything yet.
    fn go_on(&mut self, socket: &Path) -> Option<Result<BackStatus, NoStatus>> {
        let mut piece = [0; 1 << 16];
        loop {
            match rustix::io::read(&self.fd, &mut piece) {
                Ok(0) => return Some(self.parse(socket)),
                Ok(n) => self.document.extend_from_slice(&piece[..n]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return None,
                Err(e) => return Some(failed(socket, format_args!("{e}"))),
            }
            if self.document.len() > DOCUMENT_MAX {
                return Some(failed(socket, format_args!("not a backend's status: it has no end")));
            }
        }
    }

    fn parse(&self, socket: &Path) -> Result<BackStatus, NoStatus> {
        // It died, or it turned us away because too many read at the same time.
        if self.document.is_empty() {
            return failed(
                socket,
                format_args!("the backend closed the connection without an answer; try again"),
            );
        }
        let mut status: BackStatus = match serde_json::from_slice(&self.document) {
            Ok(status) => status,
            Err(e) => return failed(socket, format_args!("not a backend's status: {e}")),
        };
        if status.format != FORMAT {
            let format = status.format;
            let why = format_args!("format {format} of another version of pregrant; this one reads {FORMAT}");
            return failed(socket, why);
        }
        if let (true, Some((daemon, _))) = (status.daemon.is_empty(), status::daemon_of(socket)) {
            status.daemon = daemon.into();
        }
        Ok(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::sample;
    use std::io::Write;
    use std::os::unix::net::{UnixListener, UnixStream};

    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("pregrant-reader-{}-{name}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Reads a directory with the sockets of four backends: one answers, one hangs, one has a full
    /// backlog, and one has died.
    #[test]
    fn a_hung_backend_is_no_absent_one_and_keeps_no_one_waiting() {
        let place = Place::new("hung");
        let at = |name: &str| place.0.join(name);
        let answering = UnixListener::bind(at("back-0.status")).unwrap();
        let answer = std::thread::spawn(move || {
            let (mut stream, _) = answering.accept().unwrap();
            // As one that is older than the field.
            let status = BackStatus { daemon: String::new(), ..sample::status() };
            stream.write_all(&serde_json::to_vec(&status).unwrap()).unwrap();
        });
        let _hung = UnixListener::bind(at("blkback-0.status")).unwrap();
        let _crowded = UnixListener::bind(at("back-3.status")).unwrap();
        rustix::net::listen(&_crowded, 0).unwrap();
        let _first = UnixStream::connect(at("back-3.status")).unwrap();
        drop(UnixListener::bind(at("back-7.status")).unwrap());
        let elsewhere = Place::new("elsewhere");
        drop(UnixListener::bind(elsewhere.0.join("blkback-8.status")).unwrap());
        let missing = place.0.join("missing");
        let daemons = read_all(&[&missing, &elsewhere.0, &place.0]).unwrap();
        assert!(read_all(&[&missing, &missing]).is_err());
        answer.join().unwrap();
        let of = |domain, name| {
            let of = |d: &&Daemon| (d.domain, d.name) == (domain, name);
            daemons.iter().find(of).unwrap().status.clone().map(|status| status.daemon)
        };
        assert_eq!(of(0, "back"), Ok("back".into()));
        assert_eq!(of(0, "blkback"), Err(NoStatus::Silent { pid: Some(std::process::id()) }));
        assert_eq!(of(3, "back"), Err(NoStatus::Silent { pid: None }));
        assert_eq!(of(7, "back"), Err(NoStatus::Absent));
        assert_eq!(read(&at("back-9.status")), Err(NoStatus::Absent));
        assert_eq!(of(8, "blkback"), Err(NoStatus::Absent));
        assert_eq!(daemons.len(), 5);
    }

    #[test]
    fn a_socket_of_somebody_else_is_said_to_be_that() {
        let why = not_reached(Path::new("/run/pregrant/back-0.status"), Errno::ACCESS).unwrap_err();
        assert!(matches!(why, NoStatus::Denied(_)), "{why:?}");
        let why = why.to_string();
        assert!(why.starts_with("/run/pregrant/back-0.status: Permission denied"), "{why}");
        assert!(why.contains("run this as root"), "{why}");
    }

    #[test]
    fn what_is_no_status_is_said() {
        let place = Place::new("junk");
        let socket = place.0.join("back-0.status");
        let listener = UnixListener::bind(&socket).unwrap();
        let other = serde_json::to_vec(&BackStatus { format: 99, ..sample::status() }).unwrap();
        for (document, said) in [
            (&b""[..], "closed the connection without an answer"),
            (b"{", "not a backend's status"),
            (&other, "format 99 of another version"),
        ] {
            let why = std::thread::scope(|scope| {
                scope.spawn(|| listener.accept().unwrap().0.write_all(document).unwrap());
                read(&socket).unwrap_err().to_string()
            });
            assert!(why.contains(said) && why.contains("back-0.status"), "{why}");
        }
    }
}

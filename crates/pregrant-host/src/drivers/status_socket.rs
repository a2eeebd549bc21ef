//! A unix socket on which each connection gets one document, and its end.
//!
//! ```text
//!   owner's loop, between batches: turn() -- every 10 ms at most --> accept, make the document once, send what fits
//! ```
//! Nothing here sleeps. A descriptor wakes an idle owner once for a reader that comes, and
//! [`due`](StatusSocket::due) says when one that reads slowly is to be sent more.
//!
//! Where the process has no descriptor left one that is kept for that is given up for a reader, and
//! taken again afterwards: the status is what says that something is wrong. Without that one, too,
//! readers wait, and are tried again ten times a second: no one is woken without end.
//!
//! What a reader may do: connect often (a document is made ten times a second at most, and
//! [`READERS_MAX`] are served at a time, others are turned away), read slowly or not at all (it is
//! cut off after [`PATIENCE`]), send anything (it is never read). The socket is its user's alone.

use crate::listener::{ListenError, Listener};
use crate::ports::port_readiness::PortReadiness;
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Largest number of readers that are served at the same time.
pub const READERS_MAX: usize = 16;
/// The time that a reader may take to read the status.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Interval at which the socket is checked.
const CHECK: Duration = Duration::from_millis(10);
/// Interval of retries while the process has no file descriptor for a reader.
const NO_DESCRIPTOR: Duration = Duration::from_millis(100);
/// The time within which new readers get the same document, so that it is not made again.
const FRESH: Duration = Duration::from_millis(100);

/// The socket on which a backend publishes its status.
#[derive(Debug)]
pub struct StatusSocket {
    listener: Listener,
    /// Reports each reader that connects, once.
    comes: PortReadiness,
    /// A spare descriptor, which is closed when the process has none left.
    spare: Option<OwnedFd>,
    /// Time of the next attempt to accept a reader that may wait; None: no reader waits.
    left: Option<Instant>,
    readers: Vec<Reader>,
    last: Option<(Instant, Rc<[u8]>)>,
    checked: Option<Instant>,
}

#[derive(Debug)]
struct Reader {
    fd: OwnedFd,
    document: Rc<[u8]>,
    sent: usize,
    until: Instant,
}

impl Reader {
    /// Sends as much as the socket accepts. Returns true if there is more to send.
    fn send(&mut self, now: Instant) -> bool {
        while self.sent < self.document.len() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.fd, &self.document[self.sent..], flags) {
                Ok(n) => self.sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return now < self.until,
                Err(_) => return false, // it has gone
            }
        }
        false
    }
}

impl StatusSocket {
    /// Makes the socket, in place of one that a dead process left.
    ///
    /// # Errors
    /// A living process serves it, or the path cannot be bound.
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        let listener = Listener::bind(path)?;
        let comes = PortReadiness::new().and_then(|comes| {
            comes.add(&listener, 0)?;
            Ok(comes)
        });
        let comes = comes.map_err(|e| ListenError::Socket {
            path: path.into(),
            what: "wait for readers at it",
            errno: Errno::from_io_error(&e).unwrap_or(Errno::NOMEM),
            remedy: "",
        })?;
        let mut socket =
            Self { listener, comes, spare: None, left: None, readers: Vec::new(), last: None, checked: None };
        socket.keep_spare();
        Ok(socket)
    }

    fn keep_spare(&mut self) {
        if self.spare.is_none() {
            self.spare = rustix::io::fcntl_dupfd_cloexec(&self.comes, 0).ok();
        }
    }

    /// Accepts the next reader.
    fn accept(&mut self) -> Result<OwnedFd, Errno> {
        match self.listener.accept() {
            Err(Errno::MFILE | Errno::NFILE) if self.spare.take().is_some() => self.listener.accept(),
            other => other,
        }
    }

    /// Serves the readers that are there, at `now`; calls `document` only if there is a new reader.
    pub fn turn(&mut self, now: Instant, document: impl FnOnce() -> Vec<u8>) {
        if self.checked.is_some_and(|at| now.saturating_duration_since(at) < CHECK) {
            return;
        }
        self.checked = Some(now);
        self.readers.retain_mut(|reader| reader.send(now));
        self.keep_spare();
        // The order matters: a reader that connects after this wakes the thread again.
        self.comes.take(|_| {});
        self.left = None;
        let mut document = Some(document);
        // As many as fit in the backlog, so that a client that connects without end cannot block
        // this thread.
        for _ in 0..READERS_MAX * 4 {
            let fd = match self.accept() {
                Ok(fd) => fd,
                Err(Errno::AGAIN) => return,
                // This reader has gone.
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                Err(_) => {
                    self.left = Some(now + NO_DESCRIPTOR);
                    return;
                }
            };
            if self.readers.len() == READERS_MAX {
                continue; // closed
            }
            let stale = self.last.as_ref().is_none_or(|(at, _)| now.saturating_duration_since(*at) >= FRESH);
            if let (true, Some(make)) = (stale, document.take()) {
                self.last = Some((now, make().into()));
            }
            let Some((_, document)) = &self.last else { return };
            let mut reader = Reader { fd, document: Rc::clone(document), sent: 0, until: now + PATIENCE };
            if reader.send(now) {
                self.readers.push(reader);
            } else {
                drop(reader);
                self.keep_spare();
            }
        }
        self.left = Some(now + CHECK);
    }

    /// Time until the next turn is needed although no one connects. None: no turn is needed.
    pub fn due(&self) -> Option<Duration> {
        let slow = (!self.readers.is_empty()).then_some(CHECK);
        let left = self.left.map(|at| at.saturating_duration_since(Instant::now()));
        slow.into_iter().chain(left).min()
    }
}

impl AsFd for StatusSocket {
    /// Returns a descriptor that becomes readable once for each reader that connects.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.comes.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("pregrant-status-{}-{name}.sock", std::process::id()));
            Self(path)
        }
        fn connect(&self) -> UnixStream {
            UnixStream::connect(&self.0).unwrap()
        }
    }

    fn read(mut stream: UnixStream) -> Vec<u8> {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all
    }

    #[test]
    fn readers_that_come_together_get_one_document_and_later_ones_another() {
        let scratch = Scratch::new("together");
        let mut socket = StatusSocket::bind(&scratch.0).unwrap();
        let start = Instant::now();
        let mut made = 0;
        let mut turn = |socket: &mut StatusSocket, after: Duration| {
            socket.turn(start + after, || {
                made += 1;
                vec![made; 3]
            });
        };
        turn(&mut socket, Duration::ZERO);
        let (a, b) = (scratch.connect(), scratch.connect());
        turn(&mut socket, CHECK);
        let c = scratch.connect();
        turn(&mut socket, CHECK * 2);
        let d = scratch.connect();
        turn(&mut socket, CHECK * 3 + FRESH);
        assert_eq!([a, b, c, d].map(read), [[1; 3], [1; 3], [1; 3], [2; 3]].map(Vec::from));
        assert_eq!(made, 2);
        let error = StatusSocket::bind(&scratch.0).unwrap_err().to_string();
        assert!(error.contains("another process serves this socket"), "{error}");
        drop(socket);
        assert!(!scratch.0.exists());
    }

    #[test]
    fn slow_readers_are_cut_off_too_many_are_turned_away_and_junk_is_not_read() {
        let scratch = Scratch::new("slow");
        let mut socket = StatusSocket::bind(&scratch.0).unwrap();
        let document = vec![7; 4 << 20];
        let mut now = Instant::now();
        let mut turn = |socket: &mut StatusSocket, step: Duration| {
            now += step;
            socket.turn(now, || document.clone());
        };
        let slow: Vec<_> = (0..READERS_MAX).map(|_| scratch.connect()).collect();
        turn(&mut socket, CHECK);
        assert_eq!(socket.readers.len(), READERS_MAX);
        assert_eq!(read(scratch.connect_after(|| turn(&mut socket, CHECK))).len(), 0, "turned away");
        turn(&mut socket, PATIENCE);
        assert_eq!(socket.readers.len(), 0, "cut off");
        drop(slow);

        // A reader that sends junk gets the whole document nevertheless, in as many turns as that
        // takes.
        let mut junk = scratch.connect();
        junk.write_all(&[0xFF; 10_000]).unwrap();
        junk.set_nonblocking(true).unwrap();
        let mut all = Vec::new();
        while all.len() < document.len() {
            turn(&mut socket, CHECK);
            // until it would block; at the end perhaps a reset, for the unread junk
            let _ = junk.read_to_end(&mut all);
        }
        assert!(all == document);
    }

    /// A connected reader wakes the thread once; a reader that cannot be served does not keep it
    /// awake.
    #[test]
    fn a_reader_wakes_once() {
        let scratch = Scratch::new("once");
        let mut socket = StatusSocket::bind(&scratch.0).unwrap();
        let is_readable = |socket: &StatusSocket| {
            let mut fds = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            rustix::event::poll(&mut fds, Some(&now)).unwrap() > 0
        };
        assert!(!is_readable(&socket));
        let waiting = scratch.connect();
        assert!(is_readable(&socket));
        socket.comes.take(|_| {}); // as where there is no descriptor for it
        assert!(!is_readable(&socket), "it wakes for as long as it waits");
        let next = scratch.connect();
        assert!(is_readable(&socket));
        socket.turn(Instant::now(), || vec![5; 3]);
        assert_eq!([waiting, next].map(read), [[5; 3]; 2]);
        assert!(!is_readable(&socket) && socket.due().is_none() && socket.spare.is_some());
    }

    impl Scratch {
        fn connect_after(&self, then: impl FnOnce()) -> UnixStream {
            let stream = self.connect();
            then();
            stream
        }
    }
}

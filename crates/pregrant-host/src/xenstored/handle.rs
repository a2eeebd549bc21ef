//! Commands to a running xenstored from other threads: a channel, and an eventfd that wakes its
//! epoll.

use pregrant::DomId;
use pregrant_xenstored::DomainError;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A request of another thread.
#[derive(Debug)]
pub enum Command {
    /// Serve this connection for this domain.
    Connect(OwnedFd, DomId),
    /// Make a domain known.
    Introduce(DomId, Sender<Result<(), DomainError>>),
    /// Forget a domain.
    Release(DomId, Sender<Result<(), DomainError>>),
    /// Leave `run`.
    Stop,
}

/// The server's end.
#[derive(Debug)]
pub struct CommandQueue {
    receiver: Receiver<Command>,
    sender: Sender<Command>,
    wake: Arc<OwnedFd>,
}

impl CommandQueue {
    /// A channel and an eventfd.
    pub fn new() -> Result<Self, Errno> {
        let (sender, receiver) = channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Self { receiver, sender, wake })
    }

    /// The descriptor for epoll.
    pub fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Another end.
    pub fn handle(&self) -> Handle {
        Handle { sender: self.sender.clone(), wake: self.wake.clone() }
    }

    /// The next command; call until there is none.
    pub fn take(&self) -> Option<Command> {
        // Reset first: a command that comes after the last check wakes again. It fails only when no
        // one woke us.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        self.receiver.try_recv().ok()
    }
}

/// Tells a [`super::Xenstored`] that runs in another thread what to do. Each call but `stop` waits
/// until it is done, so do not call them from the thread that serves.
#[derive(Clone, Debug)]
pub struct Handle {
    sender: Sender<Command>,
    wake: Arc<OwnedFd>,
}

/// Why a command was not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// It was dropped or its thread ended.
    #[error("xenstored has stopped; start another")]
    Stopped,
    /// It runs, and refused.
    #[error(transparent)]
    Refused(DomainError),
}

impl Handle {
    /// Serve this connected stream socket for this domain.
    pub fn add_connection(&self, fd: OwnedFd, domid: DomId) -> Result<(), HandleError> {
        self.command(Command::Connect(fd, domid))
    }

    /// Make a domain known, with its home.
    pub fn introduce(&self, domid: DomId) -> Result<(), HandleError> {
        self.ask(|reply| Command::Introduce(domid, reply))
    }

    /// Forget a domain: its home goes and its connections are closed.
    pub fn release(&self, domid: DomId) -> Result<(), HandleError> {
        self.ask(|reply| Command::Release(domid, reply))
    }

    /// Leave [`super::Xenstored::run`].
    pub fn stop(&self) -> Result<(), HandleError> {
        self.command(Command::Stop)
    }

    fn ask(
        &self,
        command: impl FnOnce(Sender<Result<(), DomainError>>) -> Command,
    ) -> Result<(), HandleError> {
        let (reply, answer) = channel();
        self.command(command(reply))?;
        answer.recv().map_err(|_| HandleError::Stopped)?.map_err(HandleError::Refused)
    }

    fn command(&self, command: Command) -> Result<(), HandleError> {
        self.sender.send(command).map_err(|_| HandleError::Stopped)?;
        match rustix::io::write(&self.wake, &1u64.to_ne_bytes()) {
            // Full: it is awake already.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(_) => Err(HandleError::Stopped),
        }
    }
}

//! Commands to a running xenstored from other threads: a channel, and an eventfd that wakes its
//! epoll.

use pregrant::DomId;
use pregrant_xenstored::DomainError;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A command from another thread.
#[derive(Debug)]
pub enum Command {
    /// Serve this connection as one of this domain.
    Connect(OwnedFd, DomId),
    /// Introduce a domain.
    Introduce(DomId, Sender<Result<(), DomainError>>),
    /// Release a domain.
    Release(DomId, Sender<Result<(), DomainError>>),
    /// Return from `run`.
    Stop,
}

/// The server's end of the channel of commands.
#[derive(Debug)]
pub struct CommandQueue {
    receiver: Receiver<Command>,
    sender: Sender<Command>,
    wake: Arc<OwnedFd>,
}

impl CommandQueue {
    /// Creates the channel and the eventfd.
    pub fn new() -> Result<Self, Errno> {
        let (sender, receiver) = channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Self { receiver, sender, wake })
    }

    pub fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Returns another handle, which sends to this server.
    pub fn handle(&self) -> Handle {
        Handle { sender: self.sender.clone(), wake: self.wake.clone() }
    }

    /// Removes and returns the next command. Call it until it returns None.
    pub fn take(&self) -> Option<Command> {
        // Reset the eventfd first, so that a command that arrives after the last check wakes again.
        // The read fails only if nothing was written.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        self.receiver.try_recv().ok()
    }
}

/// Sends commands to a [`super::Xenstored`] that runs in another thread. Each call but `stop` waits
/// for the result, so do not call them on the server's own thread.
#[derive(Clone, Debug)]
pub struct Handle {
    sender: Sender<Command>,
    wake: Arc<OwnedFd>,
}

/// The reason why a command was not executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// The server was dropped, or its thread ended.
    #[error("xenstored has stopped; start another")]
    Stopped,
    /// The server refused the command.
    #[error(transparent)]
    Refused(DomainError),
}

impl Handle {
    /// Serves a connected stream socket for this domain.
    pub fn add_connection(&self, fd: OwnedFd, domid: DomId) -> Result<(), HandleError> {
        self.command(Command::Connect(fd, domid))
    }

    /// Introduces a domain and creates its home directory.
    pub fn introduce(&self, domid: DomId) -> Result<(), HandleError> {
        self.ask(|reply| Command::Introduce(domid, reply))
    }

    /// Releases a domain: its home is removed and its connections are closed.
    pub fn release(&self, domid: DomId) -> Result<(), HandleError> {
        self.ask(|reply| Command::Release(domid, reply))
    }

    /// Makes [`super::Xenstored::run`] return.
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
            // EAGAIN: the counter is full, so it is awake already.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(_) => Err(HandleError::Stopped),
        }
    }
}

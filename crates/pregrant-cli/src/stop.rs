//! Turns SIGTERM, SIGINT and SIGHUP into a flag that a loop checks, and a descriptor that ends the
//! loop's sleep.

use crate::signals;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that is set when this process is asked to stop.
#[derive(Debug)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    wake: UnixStream,
}

impl Stop {
    /// Sets the handlers of the signals that end this program. From now on the first signal only
    /// sets a flag. A second signal that arrives while the first is being handled ends the process.
    pub fn on_signals() -> io::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        let (wake, on_signal) = UnixStream::pair()?;
        on_signal.set_nonblocking(true)?;
        for signal in signals::ending() {
            // In this order: a signal that finds the flag set already ends the process.
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&asked))?;
            signal_hook::flag::register(signal, Arc::clone(&asked))?;
            signal_hook::low_level::pipe::register(signal, on_signal.try_clone()?)?;
        }
        Ok(Self { asked, wake })
    }

    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

impl AsFd for Stop {
    /// Returns a descriptor that is readable once a signal has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

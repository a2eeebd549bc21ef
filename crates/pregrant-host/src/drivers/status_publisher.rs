//! Collects and publishes the status of a backend's process: what [`BackStatus`] needs in addition
//! to the backend's own reports.

use crate::counters::Counters;
use crate::drivers::status::{DeviceStatus, FORMAT, ProcessStatus, daemon_of};
use crate::drivers::{BackStatus, Backend, StatusSocket};
use crate::listener::ListenError;
use crate::program;
use pregrant::platform::{Clock, Platform};
use pregrant::xenbus::Class;
use pregrant::xenstore::Transport;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Writes a backend's status to each process that connects to its socket.
pub struct StatusPublisher<P> {
    socket: StatusSocket,
    daemon: &'static str,
    started: Instant,
    counters: fn(&P) -> Counters,
    describe: fn(&P) -> String,
}

impl<P: Platform> StatusPublisher<P> {
    /// Serves the status of a backend at this socket. Each platform has its own counters and its
    /// own description.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn bind(
        socket: &Path,
        counters: fn(&P) -> Counters,
        describe: fn(&P) -> String,
    ) -> Result<Self, ListenError> {
        Ok(Self {
            socket: StatusSocket::bind(socket)?,
            daemon: daemon_of(socket).map_or("", |(daemon, _)| daemon),
            started: Instant::now(),
            counters,
            describe,
        })
    }

    /// Time until the next turn is needed although no one connects. None: no turn is needed.
    pub fn due(&self) -> Option<Duration> {
        self.socket.due()
    }

    /// Answers readers. To be called between batches, as often as is convenient.
    pub fn turn<T: Transport + 'static>(&mut self, backend: &Backend<P, T>) {
        let Self { socket, daemon, started, counters, describe } = self;
        socket.turn(Instant::now(), || {
            let platform = backend.platform();
            let others = backend.devices().filter(|(device, _)| device.id.class != Class::VIF);
            let others = others.map(|(device, served)| DeviceStatus::new(device, served.figures())).collect();
            let status = BackStatus {
                format: FORMAT,
                domain: platform.domid().0,
                daemon: (*daemon).into(),
                pid: std::process::id(),
                version: program::VERSION.into(),
                rev: program::commit().unwrap_or_default().into(),
                uptime_s: started.elapsed().as_secs_f64(),
                at_ns: platform.clock().now_ns(),
                platform: describe(platform),
                process: ProcessStatus {
                    missed_wakeups: backend.missed_wakeups(),
                    ..counters(platform).into()
                },
                workers: backend.carried().iter().map(|worker| worker.total()).collect(),
                module: None,
                vifs: backend.reports().into_iter().map(Into::into).collect(),
                devices: others,
            };
            // The status consists of numbers and texts, which JSON can always represent.
            serde_json::to_vec(&status).unwrap_or_default()
        });
    }
}

impl<P> AsFd for StatusPublisher<P> {
    /// Returns a descriptor that is readable when a reader connects.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

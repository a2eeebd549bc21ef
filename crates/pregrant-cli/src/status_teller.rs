//! A backend's process tells its status: what [`BackStatus`] needs beside the backend's own reports.

use pregrant::platform::{Clock, Platform};
use pregrant::xenstore::Transport;
use pregrant_host::counters::Counters;
use pregrant_host::drivers::status::{FORMAT, socket_path};
use pregrant_host::drivers::{BackStatus, Backend, StatusSocket};
use pregrant_host::linux::Xen;
use pregrant_host::listener::ListenError;
use pregrant_host::loopback::Loopback;
use std::path::Path;
use std::time::Instant;

/// See the module.
pub struct StatusTeller<P> {
    socket: StatusSocket,
    started: Instant,
    counters: fn(&P) -> Counters,
    describe: fn(&P) -> String,
}

impl StatusTeller<Loopback> {
    /// For the backend of domain `domid` of the machine in `dir`.
    pub fn on_loopback(dir: &Path, domid: u16) -> Result<Self, ListenError> {
        Ok(Self {
            socket: StatusSocket::bind(&socket_path(dir, domid))?,
            started: Instant::now(),
            counters: Loopback::counters,
            describe: Loopback::describe,
        })
    }
}

impl StatusTeller<Xen> {
    /// For the backend of domain `domid` of a real Xen.
    pub fn on_xen(dir: &Path, domid: u16) -> Result<Self, ListenError> {
        Ok(Self {
            socket: StatusSocket::bind(&socket_path(dir, domid))?,
            started: Instant::now(),
            counters: Xen::counters,
            describe: Xen::describe,
        })
    }
}

impl<P: Platform> StatusTeller<P> {
    /// Answers who asks; to be called between batches, as often as is convenient.
    pub fn turn<T: Transport>(&mut self, backend: &Backend<P, T>) {
        let Self { socket, started, counters, describe } = self;
        socket.turn(Instant::now(), || {
            let platform = backend.platform();
            let status = BackStatus {
                format: FORMAT,
                domain: platform.domid().0,
                pid: std::process::id(),
                uptime_s: started.elapsed().as_secs_f64(),
                at_ns: platform.clock().now_ns(),
                platform: describe(platform),
                process: counters(platform).into(),
                vifs: backend.reports().into_iter().map(Into::into).collect(),
            };
            // Plain figures and texts: there is nothing in it that JSON cannot say.
            serde_json::to_vec(&status).unwrap_or_default()
        });
    }
}

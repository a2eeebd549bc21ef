//! The kernel's FUSE, as much of its protocol as one file in a directory needs: mounted and agreed
//! on by `fuser`, served from here.
//!
//! ```text
//!   fuser: mount, INIT --> /dev/fuse --read, a thread each--> Request --> Serve::answer --> Reply, from any thread --writev--> /dev/fuse
//! ```
//! Served from here for the sake of one request: INTERRUPT says that the program which waits for
//! another one has a signal. `fuser` answers that it knows no such thing, after which the kernel
//! never says it again, and lets no program die before its request is done ([decision
//! 0040](../../../../../docs/decisions/0040-sectors-and-ranges.md)).
//!
//! Invariants: each request is answered once, by its [`Reply`]; a thread ends when the kernel has
//! let go of the mount. The kernel is trusted, as by any program; what it says is taken apart by
//! length all the same.

mod reply;
mod request;

pub(super) use reply::{Attr, Kind, Reply};
pub(super) use request::{Op, Request};

use super::Result;
use fuser::{Config, Filesystem, InitFlags, KernelConfig};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Largest number of bytes of one read or write; the kernel splits longer ones. A larger value
/// needs a larger `fs.fuse.max_pages_limit`.
const MAX_WRITE: u32 = 1 << 20;
/// Number of bytes for a request's header, in addition to the data of a write.
const HEADERS: usize = 4096;
/// Largest number of asynchronous requests that the kernel queues here: larger than programs' queue
/// depths.
const MAX_BACKGROUND: u16 = 128;

pub(super) const ROOT: u64 = 1;

/// Answers requests, on any thread.
pub(super) trait Serve: Send + Sync + 'static {
    fn answer(&self, request: Request<'_>, reply: Reply);
    /// Called when the program that waits for this request got a signal. The request may be
    /// answered already, or not have arrived yet.
    fn interrupted(&self, unique: u64);
}

/// The terms that are negotiated with the kernel before the first request.
struct Agreement;

impl Filesystem for Agreement {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        // The kernel does without features that it lacks.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.set_max_write(MAX_WRITE);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }
}

/// A mount that is served by threads. The last thread drops `serve`.
pub(super) struct Session {
    /// The mount. Dropping it unmounts the file system, if that was not done before.
    _mount: fuser::Session<Agreement>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Session {
    /// Mounts the file system, and starts `threads` threads that serve it.
    pub(super) fn new(mount: &Path, config: &Config, serve: impl Serve, threads: usize) -> io::Result<Self> {
        let mounted = fuser::Session::new(Agreement, mount, config)?;
        let device = Arc::new(mounted.as_fd().try_clone_to_owned()?);
        let serve = Arc::new(serve);
        let each = |number: usize| {
            let (serve, device) = (Arc::clone(&serve), Arc::clone(&device));
            let run = move || run(&*serve, &device);
            std::thread::Builder::new().name(format!("fuse {number}")).spawn(run)
        };
        let threads = (0..threads).map(each).collect::<io::Result<_>>()?;
        Ok(Self { _mount: mounted, threads })
    }

    /// Waits for the threads of the mount, which end when the kernel has released it.
    pub(super) fn join(self) -> Result<()> {
        let mut ended = Ok(());
        for thread in self.threads {
            match thread.join() {
                Ok(result) => ended = ended.and(result.map_err(Into::into)),
                Err(_) => ended = ended.and(Err("a thread that served the mount panicked".into())),
            }
        }
        ended
    }
}

fn run(serve: &impl Serve, device: &Arc<OwnedFd>) -> io::Result<()> {
    let mut buffer = vec![0; MAX_WRITE as usize + HEADERS];
    loop {
        let len = match rustix::io::read(device, &mut buffer[..]) {
            Ok(len) => len,
            // A request was taken back before it was read; a signal of ours.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
            Err(Errno::NODEV) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        let Some(request) = Request::parse(&buffer[..len]) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the kernel's FUSE request has no header",
            ));
        };
        match request.op {
            Op::Interrupt { of } => serve.interrupted(of),
            Op::Forget => {}
            _ => {
                let reply = Reply::new(Arc::clone(device), request.unique);
                serve.answer(request, reply);
            }
        }
    }
}

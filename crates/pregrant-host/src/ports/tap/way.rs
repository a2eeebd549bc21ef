//! Which way bursts take to a tap and from it: a system call for each, by io_uring, or one for each frame.
//!
//! What a system call costs depends on the machine: some 100 ns natively, many times that in a PV domain, where the
//! hypervisor is between a process and its kernel. A request in a ring costs the kernel something too, and may cost more
//! than a call. So both are tried, once in a process, with a write that a tap refuses before it looks at it.

use super::ring::Ring;
use crate::line_budget::LineBudget;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, IoSlice, ReadWriteFlags};
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Which way bursts take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TapWay {
    /// The one that is cheaper on this machine.
    #[default]
    Cheaper,
    /// A system call for each burst, by io_uring; where there is none, as for `Frame`.
    Burst,
    /// A system call for each frame.
    Frame,
}

impl TapWay {
    /// The ring that this way needs.
    pub fn ring(self, fd: &OwnedFd) -> Option<Ring> {
        match self {
            Self::Cheaper => ring_if_cheaper(fd),
            Self::Burst => ring(fd)
                .inspect_err(|e| {
                    static LINES: LineBudget = LineBudget::new(); // each queue of each connection asks
                    LINES.warn(format_args!(
                        "taps: a system call for each frame, for io_uring is not to be had: {e}"
                    ));
                })
                .ok(),
            Self::Frame => None,
        }
    }
}

/// Tries of each; the one in the middle counts. A vif waits for this: some milliseconds where calls are dear.
const TRIES: usize = 5;
/// Writes that a ring takes at once.
const WRITES: usize = 32;
/// How many times so many a try has, the first with which the clock moves: some clocks of virtual machines have steps of milliseconds.
const ROUNDS: [u32; 3] = [1, 8, 64];

/// No whole header: refused, and no frame that is counted anywhere.
const NO_FRAME: &[u8] = &[0];

/// A ring for taps.
///
/// # Errors
/// There is no io_uring, or it is forbidden.
fn ring(fd: &OwnedFd) -> io::Result<Ring> {
    // Linux 6.4: a tap that knows the flag goes on to refuse the write for its length.
    let asked = rustix::io::pwritev2(fd, &[IoSlice::new(NO_FRAME)], u64::MAX, ReadWriteFlags::NOWAIT);
    let mut ring = Ring::new(asked == Err(Errno::INVAL))?;
    // And so it does here, unless requests of this kind are not for taps at all.
    ring.write(fd.as_fd(), std::iter::once(NO_FRAME))?;
    match ring.done() {
        [one] if one.result == Err(Errno::INVAL.raw_os_error()) => Ok(ring),
        other => Err(io::Error::other(format!("a request was answered with {other:?}"))),
    }
}

/// The same, where it is the cheaper way. Says so in the log, once.
fn ring_if_cheaper(fd: &OwnedFd) -> Option<Ring> {
    static CHEAPER: OnceLock<bool> = OnceLock::new();
    let mut made = None;
    let cheaper = *CHEAPER.get_or_init(|| {
        let tried = ring(fd).and_then(|mut ring| {
            let times = try_both(fd, &mut ring)?;
            made = Some(ring);
            Ok(times)
        });
        match tried {
            Ok((call, request)) => {
                // What a ring reads goes to more memory than what calls read one by one.
                let cheaper = request + request / 4 < call;
                let each = if cheaper { "burst" } else { "frame" };
                // LOG: once a process.
                log::info!(
                    "taps: a system call for each {each}; a call costs {call:?} here, a request of io_uring {request:?}"
                );
                cheaper
            }
            Err(e) => {
                // LOG: once a process.
                log::info!("taps: a system call for each frame, for io_uring is not to be had: {e}");
                false
            }
        }
    });
    if cheaper { made.or_else(|| ring(fd).ok()) } else { None }
}

/// What a write costs by a call, and in a ring.
fn try_both(fd: &OwnedFd, ring: &mut Ring) -> io::Result<(Duration, Duration)> {
    let mut times = (Duration::ZERO, Duration::ZERO);
    for rounds in ROUNDS {
        times = try_some(fd, ring, rounds)?;
        if !times.0.is_zero() && !times.1.is_zero() {
            break;
        }
    }
    Ok(times)
}

/// The same, with so many times [`WRITES`] in a try.
fn try_some(fd: &OwnedFd, ring: &mut Ring, rounds: u32) -> io::Result<(Duration, Duration)> {
    let (mut calls, mut requests) = ([Duration::ZERO; TRIES], [Duration::ZERO; TRIES]);
    for (call, request) in calls.iter_mut().zip(&mut requests) {
        let start = Instant::now();
        for _ in 0..rounds * WRITES as u32 {
            let _ = rustix::io::write(fd, NO_FRAME);
        }
        *call = start.elapsed();
        let start = Instant::now();
        for _ in 0..rounds {
            ring.write(fd.as_fd(), [NO_FRAME; WRITES].into_iter())?;
        }
        *request = start.elapsed();
    }
    calls.sort_unstable();
    requests.sort_unstable();
    let each = |times: [Duration; TRIES]| times[TRIES / 2] / (rounds * WRITES as u32);
    Ok((each(calls), each(requests)))
}

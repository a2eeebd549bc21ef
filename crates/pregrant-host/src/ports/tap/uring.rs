//! Many writes to, or reads from, one descriptor in one system call, by an io_uring that is empty
//! between calls.
//!
//! ```text
//!   frames --SQE each--> | io_uring_enter: carried out in order, and waited for | --CQE each--> done()
//! ```
//! The descriptor is non-blocking. If its driver supports RWF_NOWAIT (a tap: Linux 6.4), a request
//! that would block ends with EAGAIN. Otherwise such a request would stay pending, so a last
//! request cancels all of those. A request that is just being woken can escape the cancellation,
//! find that another took its frame, and wait again; so what is pending after a call is cancelled
//! again until nothing is.
//!
//! Invariants: the kernel accesses the caller's memory, and reads a guest's memory that the caller
//! names, only during a call: a call returns when every request that the kernel accepted has ended,
//! whatever interrupted it. A ring with requests that the kernel did not accept is never entered
//! again. The kernel holds no reference to the descriptor between calls, so closing it takes effect
//! at once.

use super::gather::Frame;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, ReadWriteFlags};
use std::fmt;
use std::io;

/// Largest number of requests that one call submits.
pub const DEPTH: usize = 64;

/// `RWF_NOWAIT`.
const NOWAIT: i32 = 8;
/// The number of the request that cancels all others.
const END: u64 = u64::MAX;

/// Less than a header: a tap refuses it, and does not count it.
const NO_FRAME: &[u8] = &[0];

/// A completed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// The index of the request in its call.
    pub number: usize,
    /// The number of bytes that were transferred, or an errno.
    pub result: Result<usize, i32>,
}

/// An io_uring that is used for one kind of descriptor.
pub struct Ring {
    uring: IoUring,
    /// True if the descriptor's driver supports RWF_NOWAIT.
    nowait: bool,
    /// The ring contains requests that the kernel did not accept.
    stuck: bool,
    done: Vec<Done>,
}

impl Ring {
    /// Creates a ring for descriptors whose driver supports RWF_NOWAIT (`nowait`) or not.
    ///
    /// # Errors
    ///
    /// The kernel forbids io_uring, or is older than 5.19. (Older kernels use a thread for drivers
    /// without RWF_NOWAIT, or do not try the request first.)
    pub fn new(nowait: bool) -> io::Result<Self> {
        let uring = IoUring::builder()
            // The thread waits anyway, so completions need not interrupt it. Since 5.19.
            .setup_coop_taskrun()
            .setup_submit_all()
            .dontfork()
            .build(2 * DEPTH as u32)?;
        Ok(Self { uring, nowait, stuck: false, done: Vec::with_capacity(DEPTH) })
    }

    /// Creates a ring for taps.
    ///
    /// # Errors
    ///
    /// There is no io_uring, or it is forbidden.
    pub fn of_tap(fd: &OwnedFd) -> io::Result<Self> {
        // Since Linux 6.4 a tap accepts the flag and refuses the write only for its length.
        let asked = rustix::io::pwritev2(fd, &[IoSlice::new(NO_FRAME)], u64::MAX, ReadWriteFlags::NOWAIT);
        let mut ring = Self::new(asked == Err(Errno::INVAL))?;
        // It must also fail like this by io_uring, unless such requests are not supported for taps
        // at all.
        ring.write(fd.as_fd(), std::iter::once(NO_FRAME))?;
        match ring.done() {
            [one] if one.result == Err(Errno::INVAL.raw_os_error()) => Ok(ring),
            other => Err(io::Error::other(format!("io_uring completed a test request with {other:?}"))),
        }
    }

    fn flags(&self) -> i32 {
        if self.nowait { NOWAIT } else { 0 }
    }

    /// Writes each of `frames`, at most [`DEPTH`], in order.
    ///
    /// # Errors
    ///
    /// The kernel accepts no requests. Frames that are not [done](Self::done) were not written, and
    /// the ring cannot be used any more.
    pub fn write<'a, F: Into<Frame<'a>>>(
        &mut self,
        fd: BorrowedFd<'_>,
        frames: impl Iterator<Item = F>,
    ) -> io::Result<()> {
        let (fd, flags) = (types::Fd(fd.as_raw_fd()), self.flags());
        let writes = frames.map(|frame| frame.into().request(fd, flags));
        // SAFETY: what the frames name is borrowed for longer than this function runs, or vouched
        // for (`Vector`).
        unsafe { self.carry_out(writes.take(DEPTH)) }
    }

    /// Reads a frame to each `stride` bytes of `bytes`, at most [`DEPTH`], in order.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    pub fn read(&mut self, fd: BorrowedFd<'_>, bytes: &mut [u8], stride: usize) -> io::Result<()> {
        let (fd, flags) = (types::Fd(fd.as_raw_fd()), self.flags());
        let reads = bytes.chunks_exact_mut(stride).map(|place| {
            opcode::Read::new(fd, place.as_mut_ptr(), place.len() as u32).rw_flags(flags).build()
        });
        // SAFETY: `bytes` is borrowed mutably until this function returns; the chunks do not
        // overlap.
        unsafe { self.carry_out(reads.take(DEPTH)) }
    }

    /// Returns the requests that the last call completed, in the kernel's order.
    pub fn done(&self) -> &[Done] {
        &self.done
    }

    /// Executes all requests, at most DEPTH, by one system call. Only if the call is interrupted
    /// are there more.
    ///
    /// # Safety
    /// The memory of the requests stays, and no one else has it (or changes it, where they read it
    /// and it is private), until this function returns.
    unsafe fn carry_out(&mut self, requests: impl Iterator<Item = squeue::Entry>) -> io::Result<()> {
        self.done.clear();
        // Set until all requests have ended, also if `requests` panics.
        if std::mem::replace(&mut self.stuck, true) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut open = 0;
        let mut submission = self.uring.submission();
        for (number, request) in requests.enumerate() {
            // SAFETY: the caller's promise, which holds for as long as `open` counts it.
            open += usize::from(unsafe { submission.push(&request.user_data(number as u64)) }.is_ok());
        }
        drop(submission);
        // Requests that do not block have ended when they are submitted, so mostly there is nothing
        // to wait for.
        let mut wait_for = 0;
        let mut ending = false;
        loop {
            if !self.nowait && !ending {
                let end = opcode::AsyncCancel2::new(types::CancelBuilder::any().all()).build().user_data(END);
                // SAFETY: it points to nothing.
                ending = unsafe { self.uring.submission().push(&end) }.is_ok();
                open += usize::from(ending);
            }
            let called = self.uring.submit_and_wait(wait_for);
            for ended in self.uring.completion() {
                open -= 1;
                if ended.user_data() == END {
                    ending = false;
                    continue;
                }
                let result = usize::try_from(ended.result()).map_err(|_| -ended.result());
                self.done.push(Done { number: ended.user_data() as usize, result });
            }
            if open == 0 {
                self.stuck = false;
                return Ok(());
            }
            if let Err(error) = called
                && error.kind() != io::ErrorKind::Interrupted
            {
                // The kernel never reads the requests that it has not accepted, since no one enters
                // this ring again.
                if open == self.uring.submission().len() {
                    return Err(error);
                }
                // The kernel still has requests: wait for them, whatever the error is.
                std::thread::yield_now();
            }
            // With `nowait` wait for all. Otherwise wait for one at a time: the others may never
            // end without being cancelled.
            wait_for = if self.nowait { open } else { 1 };
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("nowait", &self.nowait)
            .field("stuck", &self.stuck)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use pregrant_testkit::skip::skip;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    /// Number of frames that the test sends one by one.
    const FRAMES: usize = 20_000;
    const ENOUGH: Duration = Duration::from_secs(5);

    /// Two ends of a non-blocking socket that keeps message boundaries.
    pub fn ends() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    /// Makes the kernel refuse every further request.
    pub fn cut(ring: &Ring) {
        let null = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: the ring's descriptor stays one, of another file; its mappings stay.
        assert!(unsafe { libc::dup2(null.as_raw_fd(), ring.uring.as_raw_fd()) } >= 0);
    }

    /// Creates a ring. None: the kernel has no io_uring.
    pub fn ring(nowait: bool) -> Option<Ring> {
        Ring::new(nowait).map_err(|e| skip(format!("no io_uring here: {e}"))).ok()
    }

    #[test]
    fn requests_are_carried_out_in_order_and_none_stays_behind() {
        for nowait in [true, false] {
            let Some(mut ring) = ring(nowait) else { return };
            let (from, to) = ends();
            let frames: Vec<Vec<u8>> = (0..44).map(|i| vec![i; 10 + 40 * i as usize]).collect();
            ring.write(from.as_fd(), frames.iter().map(|f| &f[..])).unwrap();
            let written: Vec<Done> = (0..44).map(|i| Done { number: i, result: Ok(10 + 40 * i) }).collect();
            assert_eq!(ring.done(), written, "{nowait}");

            let mut bytes = vec![0; 64 * 2000];
            ring.read(to.as_fd(), &mut bytes[..20 * 2000], 2000).unwrap();
            assert_eq!(ring.done(), &written[..20], "{nowait}");
            assert!(bytes.chunks(2000).zip(&frames[..20]).all(|(b, f)| b[..f.len()] == f[..]));

            // Ask for more than there are.
            ring.read(to.as_fd(), &mut bytes, 2000).unwrap();
            assert_eq!(ring.done().len(), 64);
            let read = ring.done()[..24].iter().map(|d| (d.number, d.result)).enumerate();
            assert!(read.clone().all(|(i, d)| d == (i, Ok(frames[20 + i].len()))), "{nowait}");
            assert!(bytes.chunks(2000).zip(&frames[20..]).all(|(b, f)| b[..f.len()] == f[..]));
            assert!(ring.done()[24..].iter().all(|d| d.result.is_err()), "{nowait}");

            // A read that stayed pending would take this one.
            rustix::io::write(&from, b"the next").unwrap();
            let before = bytes.clone();
            ring.write(from.as_fd(), std::iter::once(&b"and one more"[..])).unwrap();
            assert_eq!(ring.done(), [Done { number: 0, result: Ok(12) }]);
            assert_eq!(rustix::io::read(&to, &mut [0; 100]), Ok(8), "{nowait}");
            assert!(before == bytes);
        }
    }

    /// A frame that arrives while reads are pending wakes some of them. Those that find no frame
    /// any more wait again, and only the caller ends them. If such a read were left pending, this
    /// test would hang, since the next frame is sent only after the call returns.
    #[test]
    fn reads_that_a_frame_woke_in_vain_do_not_stay_behind() {
        for nowait in [true, false] {
            let Some(mut ring) = ring(nowait) else { return };
            let (from, to) = ends();
            let (calls, sent, over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
            let mut came: usize = 0;
            std::thread::scope(|s| {
                s.spawn(|| {
                    let start = Instant::now();
                    // Beside other work each frame may take several time slices.
                    for frame in (0..FRAMES).take_while(|_| start.elapsed() < ENOUGH) {
                        sent.store(frame + 1, Ordering::Release);
                        let at = calls.load(Ordering::Acquire);
                        (0..frame * 7 % 500).for_each(|_| std::hint::spin_loop());
                        rustix::io::write(&from, &frame.to_ne_bytes()).unwrap();
                        while calls.load(Ordering::Acquire) < at + 2 {
                            std::thread::yield_now();
                        }
                    }
                    over.store(true, Ordering::Release);
                });
                let mut bytes = [0; 32 * 8];
                while !over.load(Ordering::Acquire) || came < sent.load(Ordering::Acquire) {
                    ring.read(to.as_fd(), &mut bytes, 8).unwrap();
                    for done in ring.done().iter().filter(|done| done.result.is_ok()) {
                        let frame = bytes.chunks(8).nth(done.number).unwrap();
                        assert_eq!(frame, came.to_ne_bytes(), "{nowait}");
                        came += 1;
                    }
                    calls.fetch_add(1, Ordering::Release);
                }
            });
            assert!(came > 0);
        }
    }

    #[test]
    fn who_finds_no_room_learns_it_and_nothing_is_written_later() {
        for nowait in [true, false] {
            let Some(mut ring) = ring(nowait) else { return };
            let (from, to) = ends();
            let frame = vec![7; 60_000];
            ring.write(from.as_fd(), std::iter::repeat_n(&frame[..], DEPTH)).unwrap();
            let written = ring.done().iter().filter(|d| d.result == Ok(60_000)).count();
            assert_eq!(ring.done().len(), DEPTH);
            assert!(written > 0 && written < DEPTH, "{nowait}: {written}");
            let mut bytes = vec![0; 60_000];
            let read = std::iter::repeat_with(|| rustix::io::read(&to, &mut bytes[..]));
            assert_eq!(read.take_while(Result::is_ok).count(), written, "{nowait}");
        }
    }

    #[test]
    fn a_ring_that_the_kernel_left_is_never_entered_again() {
        let Some(mut ring) = ring(true) else { return };
        let (from, to) = ends();
        cut(&ring);
        for _ in 0..2 {
            assert!(ring.write(from.as_fd(), std::iter::once(&b"a frame"[..])).is_err());
            assert_eq!(ring.done(), []);
        }
        assert!(rustix::io::read(&to, &mut [0; 100]).is_err());
    }
}

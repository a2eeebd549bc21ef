//! The standing window onto a peer's memory: the whole of it has addresses here, twice (writable and read-only), and
//! only pages that are mapped as grants can be touched.
//!
//! ```text
//!   peer's memfd      |0 |1 |2 |3 |4 | ...
//!   writable alias    |  |  |2 |3 |  | ...    counts 0 0 1 2 0
//!   read-only alias   |  |1 |  |  |  | ...    counts 0 1 0 0 0
//! ```
//!
//! Showing a page is userfaultfd's CONTINUE, hiding it MADV_DONTNEED: page tables and TLB are worked on as by Xen's map
//! and unmap, and a touch of a hidden page is SIGBUS. Where the kernel lacks minor mode, pages are mapped over a
//! PROT_NONE range and replaced by one again: dearer, SIGSEGV.
//!
//! Invariants: a page shows while its count is not 0; counts are this window's own, for one thread.
//!
//! What a peer may do: write its pages. It cannot shrink its memory (sealed). If its machine swaps, a shown page may be
//! evicted and a touch is then SIGBUS: domains lock their memory as far as they are allowed.

use super::uffd::Uffd;
use crate::counters::{Tally, add};
use crate::line_budget::LineBudget;
use pregrant::PAGE_SIZE;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::rc::Rc;

/// Pages that one flush drops at most, as in Xen and Linux's netback.
pub(super) const FLUSH_PAGES: usize = 32;

/// How pages are shown and hidden in this process.
#[derive(Debug)]
pub(super) enum Paging {
    /// userfaultfd; and whether one call may drop several ranges.
    Minor(Uffd, OneCall),
    /// mmap over PROT_NONE; why.
    Overlay(String),
}

/// `process_madvise` on ourselves: a newer kernel drops a whole batch in one call.
#[derive(Debug)]
pub(super) struct OneCall {
    own: Option<OwnedFd>,
    refused: Cell<bool>,
}

impl Paging {
    /// What this kernel offers. `PREGRANT_NO_UFFD=1` asks for the overlay.
    pub(super) fn probe() -> Self {
        if std::env::var_os("PREGRANT_NO_UFFD").is_some_and(|v| v == "1") {
            return Self::Overlay("PREGRANT_NO_UFFD=1 asks for it".into());
        }
        match Uffd::open() {
            Ok(uffd) => {
                let own = rustix::process::pidfd_open(
                    rustix::process::getpid(),
                    rustix::process::PidfdFlags::empty(),
                )
                .ok();
                Self::Minor(uffd, OneCall { own, refused: Cell::new(false) })
            }
            Err((what, e)) => Self::Overlay(format!("{what} is not available: {e}")),
        }
    }

    /// In words, for results.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Minor(..) => "userfaultfd continue, unmap by MADV_DONTNEED".into(),
            Self::Overlay(why) => format!("mmap over PROT_NONE, dearer than userfaultfd ({why})"),
        }
    }
}

/// Addresses of the whole peer, of one kind of access.
#[derive(Debug)]
struct Alias {
    base: NonNull<u8>,
    prot: ProtFlags,
    counts: RefCell<Vec<u16>>,
}

/// Both.
#[derive(Debug)]
pub(super) struct Window {
    memory: OwnedFd,
    pages: usize,
    aliases: [Alias; 2],
    paging: Rc<Paging>,
}

/// Address ranges that are to be hidden with one flush.
#[derive(Debug, Default)]
pub(super) struct Hidden {
    ranges: Vec<libc::iovec>,
}

impl Window {
    /// Reserves addresses for a peer of `pages` pages.
    pub(super) fn open(memory: BorrowedFd<'_>, pages: usize, paging: &Rc<Paging>) -> Result<Self, Errno> {
        let memory = memory.try_clone_to_owned().map_err(|_| Errno::MFILE)?;
        let writable = Alias::open(&memory, pages, ProtFlags::READ | ProtFlags::WRITE, paging)?;
        let read_only =
            Alias::open(&memory, pages, ProtFlags::READ, paging).inspect_err(|_| writable.close(pages))?;
        Ok(Self { memory, pages, aliases: [read_only, writable], paging: Rc::clone(paging) })
    }

    /// Address of a page, shown or not. `frame` is within the peer.
    pub(super) fn address(&self, frame: u32, write: bool) -> NonNull<u8> {
        assert!((frame as usize) < self.pages, "frame {frame} of a window of {} pages", self.pages);
        // SAFETY: `frame` is inside of the alias, which spans `pages` pages.
        unsafe { self.aliases[usize::from(write)].base.add(frame as usize * PAGE_SIZE) }
    }

    /// Shows `count` pages from `frame` on, once more each.
    pub(super) fn show(&self, frame: u32, count: usize, write: bool, tally: &Tally) -> Result<(), Errno> {
        let alias = &self.aliases[usize::from(write)];
        let mut counts = alias.counts.borrow_mut();
        let run = frame as usize..frame as usize + count;
        if counts[run.clone()].contains(&u16::MAX) {
            return Err(Errno::NOSPC);
        }
        let mut at = run.start;
        while at < run.end {
            let fresh = counts[at..run.end].iter().take_while(|c| **c == 0).count();
            if fresh > 0 {
                if let Err(e) = self.enter(alias, at, fresh, tally) {
                    // What was shown before the failure is nobody's: hide it again.
                    let mut hidden = Hidden::default();
                    hidden.push(self.address(frame, write), 0);
                    for page in run.start..at + fresh {
                        let shown_by_us = page >= at || {
                            counts[page] -= 1;
                            counts[page] == 0
                        };
                        if shown_by_us {
                            hidden.push(self.address(page as u32, write), 1);
                        }
                    }
                    let _ = hidden.flush(&self.paging, tally);
                    return Err(e);
                }
                counts[at..at + fresh].fill(1);
                at += fresh;
            } else {
                counts[at] += 1;
                at += 1;
            }
        }
        Ok(())
    }

    /// Takes one showing of each page back, and puts those that nothing shows any more on the list for one flush.
    pub(super) fn hide(&self, frame: u32, count: usize, write: bool, hidden: &mut Hidden) {
        let mut counts = self.aliases[usize::from(write)].counts.borrow_mut();
        for page in frame as usize..frame as usize + count {
            debug_assert!(counts[page] > 0, "page {page} is hidden more often than shown");
            counts[page] -= 1;
            if counts[page] == 0 {
                hidden.push(self.address(page as u32, write), 1);
            }
        }
    }

    fn enter(&self, alias: &Alias, first: usize, count: usize, tally: &Tally) -> Result<(), Errno> {
        let (start, len) = (alias.base.as_ptr() as usize + first * PAGE_SIZE, count * PAGE_SIZE);
        match &*self.paging {
            Paging::Minor(uffd, _) => {
                let mut done = 0;
                while done < len {
                    add(&tally.syscalls, 1);
                    // SAFETY: inside of the alias, which was registered when it was opened.
                    match unsafe { uffd.show(start + done, len - done) } {
                        Ok(n) => done += n,
                        // Never touched by the peer: give it its (zeroed) page, as Xen's would be there all along.
                        Err(Errno::FAULT) => {
                            add(&tally.syscalls, 1);
                            let at = (first * PAGE_SIZE + done) as u64;
                            rustix::fs::fallocate(
                                &self.memory,
                                FallocateFlags::empty(),
                                at,
                                PAGE_SIZE as u64,
                            )?;
                        }
                        Err(e) => return Err(e),
                    }
                }
                Ok(())
            }
            Paging::Overlay(_) => {
                add(&tally.syscalls, 1);
                // SAFETY: replaces a part of the alias that shows nothing, so that no value points to.
                unsafe { overlay(start, len, alias.prot, self.memory.as_fd(), (first * PAGE_SIZE) as u64) }
            }
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.aliases.iter().for_each(|a| a.close(self.pages));
    }
}

impl Alias {
    fn open(memory: &OwnedFd, pages: usize, prot: ProtFlags, paging: &Paging) -> Result<Self, Errno> {
        let len = pages * PAGE_SIZE;
        let base = match paging {
            // SAFETY: the kernel chooses the addresses.
            Paging::Minor(..) => unsafe {
                rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, memory, 0)
            },
            Paging::Overlay(_) => reserve(len),
        }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        let alias = Self { base, prot, counts: RefCell::new(vec![0; pages]) };
        if let Paging::Minor(uffd, _) = paging {
            // SAFETY: the mapping is fresh and this alias' own.
            let registered = unsafe { uffd.register(base.as_ptr() as usize, len) };
            registered.inspect_err(|_| alias.close(pages))?;
        }
        Ok(alias)
    }

    fn close(&self, pages: usize) {
        unmap(self.base, pages * PAGE_SIZE);
    }
}

impl Hidden {
    /// Adds `pages` pages, as part of the last range where they adjoin it.
    fn push(&mut self, base: NonNull<u8>, pages: usize) {
        let (start, len) = (base.as_ptr() as usize, pages * PAGE_SIZE);
        if len == 0 {
            return;
        }
        if let Some(last) = self.ranges.last_mut() {
            let last_start = last.iov_base as usize;
            if last_start + last.iov_len == start {
                last.iov_len += len;
                return;
            }
            if start + len == last_start {
                *last = libc::iovec { iov_base: start as *mut c_void, iov_len: last.iov_len + len };
                return;
            }
        }
        self.ranges.push(libc::iovec { iov_base: start as *mut c_void, iov_len: len });
    }

    /// Drops the pages from the page tables: after this a touch faults.
    pub(super) fn flush(&mut self, paging: &Paging, tally: &Tally) -> Result<(), Errno> {
        let result = match paging {
            _ if self.ranges.is_empty() => Ok(()),
            Paging::Minor(_, call) => call.dont_need(&self.ranges, tally),
            Paging::Overlay(_) => self.ranges.iter().try_for_each(|r| {
                add(&tally.syscalls, 1);
                // SAFETY: a part of an alias that is to be hidden: its last showing was taken back.
                unsafe { conceal(r.iov_base as usize, r.iov_len) }
            }),
        };
        self.ranges.clear();
        result
    }
}

impl OneCall {
    fn dont_need(&self, ranges: &[libc::iovec], tally: &Tally) -> Result<(), Errno> {
        if let (Some(own), false, true) = (&self.own, self.refused.get(), ranges.len() > 1) {
            add(&tally.syscalls, 1);
            let total: usize = ranges.iter().map(|r| r.iov_len).sum();
            // SAFETY: the ranges are parts of aliases that are to be hidden; MADV_DONTNEED on a shared mapping drops
            // page table entries and no data.
            let done = unsafe {
                libc::syscall(
                    libc::SYS_process_madvise,
                    own.as_raw_fd(),
                    ranges.as_ptr(),
                    ranges.len(),
                    libc::MADV_DONTNEED,
                    0,
                )
            };
            if done as usize == total {
                return Ok(());
            }
            // Older than 6.13 for this advice: one call a range, from now on.
            self.refused.set(true);
        }
        ranges.iter().try_for_each(|r| {
            add(&tally.syscalls, 1);
            // SAFETY: as above.
            unsafe { rustix::mm::madvise(r.iov_base, r.iov_len, Advice::LinuxDontNeed) }
        })
    }
}

/// A range of addresses with nothing behind it.
fn reserve(len: usize) -> Result<*mut c_void, Errno> {
    // SAFETY: the kernel chooses the addresses.
    unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            len,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }
}

fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: callers give up a range of their own that nothing points into any more.
    if let Err(e) = unsafe { rustix::mm::munmap(base.as_ptr().cast(), len) } {
        static LINES: LineBudget = LineBudget::new();
        LINES.warn(format_args!("loopback: munmap of {len} bytes of a peer's window failed: {e}"));
    }
}

/// Maps a part of a memfd over a part of a reserved range.
///
/// # Safety
/// The range belongs to the caller and nothing points into it.
unsafe fn overlay(
    start: usize,
    len: usize,
    prot: ProtFlags,
    memory: BorrowedFd<'_>,
    at: u64,
) -> Result<(), Errno> {
    let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
    // SAFETY: the caller's.
    unsafe { rustix::mm::mmap(start as *mut c_void, len, prot, flags, memory, at) }.map(drop)
}

/// Puts nothing over a part of a reserved range.
///
/// # Safety
/// The range belongs to the caller and nothing points into it.
unsafe fn conceal(start: usize, len: usize) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the caller's.
    unsafe { rustix::mm::mmap_anonymous(start as *mut c_void, len, ProtFlags::empty(), flags) }.map(drop)
}

/// Pages of a peer that are not neighbours, side by side in a range of their own. For set-up: it costs a mapping for
/// each run of neighbours.
#[derive(Debug)]
pub(super) struct Stitched {
    pub(super) base: NonNull<u8>,
    len: usize,
}

impl Stitched {
    /// Maps the frames in their order.
    pub(super) fn open(
        memory: BorrowedFd<'_>,
        frames: &[u32],
        write: bool,
        tally: &Tally,
    ) -> Result<Self, Errno> {
        let len = frames.len() * PAGE_SIZE;
        add(&tally.syscalls, 1);
        let base = NonNull::new(reserve(len)?.cast()).ok_or(Errno::NOMEM)?;
        let stitched = Self { base, len };
        let prot = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let mut at = 0;
        while at < frames.len() {
            let run = frames[at..].iter().zip(frames[at]..).take_while(|(f, want)| **f == *want).count();
            let (start, from) =
                (base.as_ptr() as usize + at * PAGE_SIZE, frames[at] as u64 * PAGE_SIZE as u64);
            add(&tally.syscalls, 1);
            // SAFETY: a part of the fresh reservation.
            unsafe { overlay(start, run * PAGE_SIZE, prot, memory, from) }?;
            at += run;
        }
        Ok(stitched)
    }
}

impl Drop for Stitched {
    fn drop(&mut self) {
        unmap(self.base, self.len);
    }
}

//! The standing window onto a peer's memory: the whole of it has addresses here, twice (writable
//! and read-only), and only pages that are mapped as grants can be touched.
//!
//! ```text
//!   peer's memfd      |0 |1 |2 |3 |4 | ...
//!   writable alias    |  |  |2 |3 |  | ...    counts 0 0 1 2 0
//!   read-only alias   |  |1 |  |  |  | ...    counts 0 1 0 0 0
//! ```
//!
//! Showing a page is userfaultfd's CONTINUE, hiding it MADV_DONTNEED: page tables and TLB are
//! worked on as by Xen's map and unmap, and a touch of a hidden page is SIGBUS. Where the kernel
//! lacks minor mode, pages are mapped over a PROT_NONE range and replaced by one again: dearer,
//! SIGSEGV.
//!
//! Invariants: a page shows while its count is not 0; counts are this window's own.
//!
//! What a peer may do: write its pages. It cannot shrink its memory (sealed). If its machine swaps,
//! a shown page may be evicted and a touch is then SIGBUS: domains lock as much of their memory as
//! they may.

use super::span::Span;
use super::uffd::Uffd;
use crate::counters::Tally;
use crate::line_budget::LineBudget;
use crate::mapping::Base;
use pregrant::PAGE_SIZE;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    refused: AtomicBool,
}

impl Paging {
    /// The method that this kernel offers. `PREGRANT_NO_UFFD=1` requests the overlay.
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
                Self::Minor(uffd, OneCall { own, refused: AtomicBool::new(false) })
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
    base: Base,
    prot: ProtFlags,
    counts: Vec<u16>,
}

/// Both.
#[derive(Debug)]
pub(super) struct Window {
    memory: OwnedFd,
    pages: usize,
    aliases: [Alias; 2],
    paging: Arc<Paging>,
}

/// Address ranges that are to be hidden with one flush.
#[derive(Debug, Default)]
pub(super) struct Hidden {
    ranges: Vec<Span>,
}

impl Window {
    /// Reserves addresses for a peer of `pages` pages.
    pub(super) fn open(memory: BorrowedFd<'_>, pages: usize, paging: &Arc<Paging>) -> Result<Self, Errno> {
        let memory = memory.try_clone_to_owned().map_err(|_| Errno::MFILE)?;
        let writable = Alias::open(&memory, pages, ProtFlags::READ | ProtFlags::WRITE, paging)?;
        let read_only =
            Alias::open(&memory, pages, ProtFlags::READ, paging).inspect_err(|_| writable.close(pages))?;
        Ok(Self { memory, pages, aliases: [read_only, writable], paging: Arc::clone(paging) })
    }

    /// Address of a page, shown or not. `frame` is within the peer.
    pub(super) fn address(&self, frame: u32, write: bool) -> NonNull<u8> {
        assert!((frame as usize) < self.pages, "frame {frame} of a window of {} pages", self.pages);
        // SAFETY: `frame` is inside of the alias, which spans `pages` pages.
        unsafe { self.aliases[usize::from(write)].base.0.add(frame as usize * PAGE_SIZE) }
    }

    /// How pages are shown.
    pub(super) fn paging(&self) -> &Paging {
        &self.paging
    }

    /// Shows `count` pages from `frame` on, once more each.
    pub(super) fn show(&mut self, frame: u32, count: usize, write: bool, tally: &Tally) -> Result<(), Errno> {
        let mut counts = std::mem::take(&mut self.aliases[usize::from(write)].counts);
        let shown = self.show_counted(&mut counts, frame, count, write, tally);
        self.aliases[usize::from(write)].counts = counts;
        shown
    }

    fn show_counted(
        &self,
        counts: &mut [u16],
        frame: u32,
        count: usize,
        write: bool,
        tally: &Tally,
    ) -> Result<(), Errno> {
        let alias = &self.aliases[usize::from(write)];
        let run = frame as usize..frame as usize + count;
        if counts[run.clone()].contains(&u16::MAX) {
            return Err(Errno::NOSPC);
        }
        let mut at = run.start;
        while at < run.end {
            let fresh = counts[at..run.end].iter().take_while(|c| **c == 0).count();
            if fresh > 0 {
                if let Err(e) = self.enter(alias, at, fresh, tally) {
                    // Pages that were shown before the failure are no one's: hide them again.
                    let mut hidden = Hidden::default();
                    hidden.push(self.address(frame, write), 0);
                    for (page, shown) in counts[..at + fresh].iter_mut().enumerate().skip(run.start) {
                        let shown_by_us = page >= at || {
                            *shown -= 1;
                            *shown == 0
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

    /// Takes one showing of each page back, and puts those that nothing shows any more on the list
    /// for one flush.
    pub(super) fn hide(&mut self, frame: u32, count: usize, write: bool, hidden: &mut Hidden) {
        for page in frame as usize..frame as usize + count {
            let shown = &mut self.aliases[usize::from(write)].counts[page];
            debug_assert!(*shown > 0, "page {page} is hidden more often than shown");
            *shown -= 1;
            if *shown == 0 {
                hidden.push(self.address(page as u32, write), 1);
            }
        }
    }

    fn enter(&self, alias: &Alias, first: usize, count: usize, tally: &Tally) -> Result<(), Errno> {
        let (start, len) = (alias.base.0.as_ptr() as usize + first * PAGE_SIZE, count * PAGE_SIZE);
        match &*self.paging {
            Paging::Minor(uffd, _) => {
                let mut done = 0;
                while done < len {
                    tally.syscalls.add(1);
                    // SAFETY: inside of the alias, which was registered when it was opened.
                    match unsafe { uffd.show(start + done, len - done) } {
                        Ok(n) => done += n,
                        // Never touched by the peer: give it its (zeroed) page, as Xen's would be
                        // there all along.
                        Err(Errno::FAULT) => {
                            tally.syscalls.add(1);
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
                tally.syscalls.add(1);
                // SAFETY: replaces a part of the alias that shows nothing, so that no value points
                // to.
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
        let alias = Self { base: Base(base), prot, counts: vec![0; pages] };
        if let Paging::Minor(uffd, _) = paging {
            // SAFETY: the mapping is fresh and this alias' own.
            let registered = unsafe { uffd.register(base.as_ptr() as usize, len) };
            registered.inspect_err(|_| alias.close(pages))?;
        }
        Ok(alias)
    }

    fn close(&self, pages: usize) {
        unmap(self.base.0, pages * PAGE_SIZE);
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
            if last.end() == start {
                last.grow(len);
                return;
            }
            if start + len == last.start() as usize {
                *last = Span::new(start as *mut c_void, last.len() + len);
                return;
            }
        }
        self.ranges.push(Span::new(start as *mut c_void, len));
    }

    /// Drops the pages from the page tables: after this a touch faults.
    pub(super) fn flush(&mut self, paging: &Paging, tally: &Tally) -> Result<(), Errno> {
        let result = match paging {
            _ if self.ranges.is_empty() => Ok(()),
            Paging::Minor(_, call) => call.dont_need(&self.ranges, tally),
            Paging::Overlay(_) => self.ranges.iter().try_for_each(|r| {
                tally.syscalls.add(1);
                // SAFETY: a part of an alias that is to be hidden: its last showing was taken back.
                unsafe { conceal(r.start() as usize, r.len()) }
            }),
        };
        self.ranges.clear();
        result
    }
}

impl OneCall {
    fn dont_need(&self, ranges: &[Span], tally: &Tally) -> Result<(), Errno> {
        if let (Some(own), false, true) = (&self.own, self.refused.load(Ordering::Relaxed), ranges.len() > 1)
        {
            tally.syscalls.add(1);
            let total: usize = ranges.iter().map(Span::len).sum();
            // SAFETY: the ranges are parts of aliases that are to be hidden; MADV_DONTNEED on a
            // shared mapping drops page table entries and no data.
            let done = unsafe {
                libc::syscall(
                    libc::SYS_process_madvise,
                    own.as_raw_fd(),
                    Span::list(ranges),
                    ranges.len(),
                    libc::MADV_DONTNEED,
                    0,
                )
            };
            if done as usize == total {
                return Ok(());
            }
            // Older than 6.13 for this advice: one call a range, from now on.
            self.refused.store(true, Ordering::Relaxed);
        }
        ranges.iter().try_for_each(|r| {
            tally.syscalls.add(1);
            // SAFETY: as above.
            unsafe { rustix::mm::madvise(r.start(), r.len(), Advice::LinuxDontNeed) }
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

/// Pages of a peer that are not neighbours, side by side in a range of their own. For set-up: it
/// costs a mapping for each run of neighbours.
#[derive(Debug)]
pub(super) struct Stitched {
    pub(super) base: Base,
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
        tally.syscalls.add(1);
        let base = NonNull::new(reserve(len)?.cast()).ok_or(Errno::NOMEM)?;
        let stitched = Self { base: Base(base), len };
        let prot = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let mut at = 0;
        while at < frames.len() {
            let run = frames[at..].iter().zip(frames[at]..).take_while(|(f, want)| **f == *want).count();
            let (start, from) =
                (base.as_ptr() as usize + at * PAGE_SIZE, frames[at] as u64 * PAGE_SIZE as u64);
            tally.syscalls.add(1);
            // SAFETY: a part of the fresh reservation.
            unsafe { overlay(start, run * PAGE_SIZE, prot, memory, from) }?;
            at += run;
        }
        Ok(stitched)
    }
}

impl Drop for Stitched {
    fn drop(&mut self) {
        unmap(self.base.0, self.len);
    }
}

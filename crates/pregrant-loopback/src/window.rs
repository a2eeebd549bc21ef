//! The window onto a peer's memory: all of it has addresses here, twice (writable and read-only),
//! and only pages that are mapped as grants are accessible.
//!
//! ```text
//!   peer's memfd      |0 |1 |2 |3 |4 | ...
//!   writable alias    |  |  |2 |3 |  | ...    counts 0 0 1 2 0
//!   read-only alias   |  |1 |  |  |  | ...    counts 0 1 0 0 0
//! ```
//!
//! A page is mapped by userfaultfd's CONTINUE and unmapped by MADV_DONTNEED. Both change page
//! tables and the TLB as Xen's map and unmap do, and an access to an unmapped page raises SIGBUS.
//! If the kernel lacks userfaultfd's minor mode, pages are mapped over a PROT_NONE range with mmap,
//! which is slower and raises SIGSEGV.
//!
//! Invariants: a page is mapped while its count is not 0; the counts belong to this window.
//!
//! What a peer may do: write its pages. It cannot shrink its memory, which is sealed. If the
//! machine swaps, a mapped page may be evicted, and an access then raises SIGBUS; therefore domains
//! lock as much of their memory as they may.
#![expect(unsafe_code, reason = "mmap, munmap and madvise")]

use crate::span::Span;
use crate::uffd::Uffd;
use pregrant::PAGE_SIZE;
use pregrant_host::counters::Tally;
use pregrant_host::line_budget::LineBudget;
use pregrant_host::mapping::Base;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Largest number of pages per TLB flush, as in Xen and Linux's netback.
pub(super) const FLUSH_PAGES: usize = 32;

/// The method by which this process maps and unmaps pages.
#[derive(Debug)]
pub(super) enum Paging {
    /// Pages are mapped by userfaultfd; the second value tells whether one call may drop several
    /// ranges.
    Minor(Uffd, OneCall),
    /// Pages are mapped by mmap over a PROT_NONE range; the text says why userfaultfd is not used.
    Overlay(String),
}

/// True if `process_madvise` on this process drops several ranges in one call, as newer kernels
/// allow.
#[derive(Debug)]
pub(super) struct OneCall {
    own: Option<OwnedFd>,
    refused: AtomicBool,
}

impl Paging {
    /// Finds the method that this kernel offers. `PREGRANT_NO_UFFD=1` selects the overlay.
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

    pub(super) fn describe(&self) -> String {
        match self {
            Self::Minor(..) => "userfaultfd continue, unmap by MADV_DONTNEED".into(),
            Self::Overlay(why) => format!("mmap over PROT_NONE, dearer than userfaultfd ({why})"),
        }
    }
}

/// Addresses for the whole memory of the peer, with one kind of access.
#[derive(Debug)]
struct Alias {
    base: Base,
    prot: ProtFlags,
    counts: Vec<u16>,
}

/// The writable and the read-only addresses of a peer.
#[derive(Debug)]
pub(super) struct Window {
    memory: OwnedFd,
    pages: usize,
    aliases: [Alias; 2],
    paging: Arc<Paging>,
}

/// Address ranges that one flush will unmap.
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

    /// Returns the address of a page, mapped or not. `frame` must be within the peer's memory.
    pub(super) fn address(&self, frame: u32, write: bool) -> NonNull<u8> {
        assert!((frame as usize) < self.pages, "frame {frame} of a window of {} pages", self.pages);
        // SAFETY: `frame` is inside of the alias, which spans `pages` pages.
        unsafe { self.aliases[usize::from(write)].base.0.add(frame as usize * PAGE_SIZE) }
    }

    pub(super) fn paging(&self) -> &Paging {
        &self.paging
    }

    /// Maps `count` pages from `frame` on. A page that is mapped already only gets its count
    /// incremented.
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
                    // The pages mapped before the failure are unmapped again.
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

    /// Decrements the count of each page, and adds those that reach 0 to the list for the next
    /// flush.
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
                        // The peer never touched this page: allocate it, zeroed, since on Xen it
                        // would always exist.
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
    /// Appends `pages` pages; adjacent ranges are merged.
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

    /// Removes the pages from the page tables: from now on an access faults.
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
            // Kernels before 6.13 refuse this advice: use one call per range from now on.
            self.refused.store(true, Ordering::Relaxed);
        }
        ranges.iter().try_for_each(|r| {
            tally.syscalls.add(1);
            // SAFETY: as above.
            unsafe { rustix::mm::madvise(r.start(), r.len(), Advice::LinuxDontNeed) }
        })
    }
}

/// Reserves a range of inaccessible addresses.
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

/// Makes a part of a reserved range inaccessible.
///
/// # Safety
///
/// The range belongs to the caller and nothing points into it.
unsafe fn conceal(start: usize, len: usize) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the caller's.
    unsafe { rustix::mm::mmap_anonymous(start as *mut c_void, len, ProtFlags::empty(), flags) }.map(drop)
}

/// Pages of a peer that are not adjacent, mapped side by side in a range of its own. Meant for
/// set-up, because each run of adjacent pages costs an mmap.
#[derive(Debug)]
pub(super) struct Stitched {
    pub(super) base: Base,
    len: usize,
}

impl Stitched {
    /// Maps the frames in the given order.
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

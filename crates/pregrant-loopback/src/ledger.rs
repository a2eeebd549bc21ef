//! Xen's knowledge about one domain, in memory that the broker owns and that the domain and its
//! peers map.
//!
//! ```text
//!  0      header: magic, dead, incarnation, number of pages and grants
//!  4096   one page per attached process or thread: pending bits, mask bits, selector, waiting
//!  ...    event channel table: where a notify of each port goes
//!         active entries: per grant who holds it, for reading or writing, and who has it locked
//!         frames of the active entries; owners of grants; owners of pages
//! ```
//!
//! On real Xen these are the hypervisor's active grant entries and the shared info page's event
//! bits. Here the library in each process plays the hypervisor, so every state is one atomic word
//! that a `kill -9` cannot tear, and that says which attached process (slot) it belongs to: the
//! broker can always undo a dead one's part.
//!
//! Invariants: an active entry's lock is held for a bounded piece of code and names its holder;
//! pins are one bit for each slot of the domain in the entry. Numbers that come out of the ledger
//! are checked before use.
//!
//! What a peer may do: this is a development platform, not a security boundary; a hostile process
//! could write here. It can confuse accounts, never this process' memory.

use crate::grant_table_version::GrantTableVersion;
use pregrant::PAGE_SIZE;
use pregrant_host::backing::Backing;
use pregrant_host::mapping::Mapping;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// Number of processes and threads that can be attached to one domain; [`Active`] has this many
/// bits.
pub(super) const SLOTS: usize = 20;
/// Event channels per domain, as with Xen's 2-level ABI.
pub(super) const PORTS: usize = 4096;
/// Marks the owner of a dead process's grants and pages that a peer still uses.
pub(super) const ZOMBIE: u8 = 255;
/// Marks the owner of the pages that hold the grant table.
pub(super) const RESERVED: u8 = 254;

const MAGIC: u32 = 0x5072_6732;
const DEAD: usize = 4;
const INCARNATION: usize = 64;
const SLOT_PAGES: usize = PAGE_SIZE;
const PORT_TABLE: usize = SLOT_PAGES + SLOTS * PAGE_SIZE;
const ACTIVE: usize = PORT_TABLE + PORTS * 8;

/// Offsets in the ledger of a domain of a given size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Number of pages of the domain's memory.
    pub(super) pages: usize,
    /// Number of entries of the domain's grant table.
    pub(super) grants: usize,
    /// The version of the grant table.
    pub(super) version: GrantTableVersion,
}

impl Layout {
    /// Decodes the words that the broker sent. None: the version is unknown.
    pub(super) fn from_words([pages, grants, version]: [u64; 3]) -> Option<Self> {
        let version = GrantTableVersion::from_word(version)?;
        Some(Self { pages: pages as usize, grants: grants as usize, version })
    }
    /// Encodes the layout for [`from_words`](Self::from_words).
    pub(super) fn to_words(self) -> [u64; 3] {
        [self.pages as u64, self.grants as u64, self.version.to_word()]
    }
    /// Returns the number of pages of the grant table.
    #[inline(always)]
    pub(super) fn table_frames(self) -> usize {
        self.grants / self.version.entries_per_page()
    }
    fn frames(self) -> usize {
        ACTIVE + self.grants * 8
    }
    fn grant_owners(self) -> usize {
        self.frames() + self.grants * 4
    }
    fn page_owners(self) -> usize {
        self.grant_owners() + self.grants
    }
    pub(super) fn len(self) -> usize {
        (self.page_owners() + self.pages).next_multiple_of(PAGE_SIZE)
    }
}

#[derive(Debug)]
pub(super) struct Ledger {
    map: Mapping,
    layout: Layout,
}

impl Ledger {
    /// Maps a ledger. `layout` comes from the broker.
    pub(super) fn open(memory: &Backing, layout: Layout) -> Result<Self, Errno> {
        Ok(Self { map: Mapping::new(memory, layout.len())?, layout })
    }

    /// Initialises a new ledger: the first `table_frames` pages hold the grant table.
    pub(super) fn initialise(&self, table_frames: usize) {
        for page in 0..table_frames {
            self.page_owner(page).store(RESERVED, Ordering::Relaxed);
        }
        for gref in 0..pregrant::wire::grant::RESERVED_ENTRIES {
            self.grant_owner(gref).store(RESERVED, Ordering::Relaxed);
        }
        self.map.u32(0).store(MAGIC, Ordering::Release);
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }
    /// Returns true once the domain is destroyed. Its memory then stays mapped where it is.
    #[inline(always)]
    pub(super) fn is_dead(&self) -> bool {
        self.map.u32(DEAD).load(Ordering::Acquire) != 0
    }
    pub(super) fn set_dead(&self) {
        self.map.u32(DEAD).store(1, Ordering::Release);
    }
    /// Returns a number that changes with each attach and detach. A peer that sees a change asks
    /// the broker whose memory to read.
    #[inline(always)]
    pub(super) fn incarnation(&self) -> u32 {
        self.map.u32(INCARNATION).load(Ordering::Acquire)
    }
    pub(super) fn bump_incarnation(&self) {
        self.map.u32(INCARNATION).fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the active entry of a grant. None: the table has no such entry.
    #[inline(always)]
    pub(super) fn active(&self, gref: u32) -> Option<&AtomicU64> {
        ((gref as usize) < self.layout.grants).then(|| self.map.u64(ACTIVE + gref as usize * 8))
    }
    /// Returns the frame that was recorded when a grant was first mapped. `gref` must be in the
    /// table.
    pub(super) fn frame(&self, gref: u32) -> &AtomicU32 {
        self.map.u32(self.layout.frames() + gref as usize * 4)
    }
    /// Returns the owner of an entry of the grant table: the slot that may use the entry, plus 1;
    /// 0: the entry is free.
    pub(super) fn grant_owner(&self, gref: u32) -> &AtomicU8 {
        self.map.u8(self.layout.grant_owners() + gref as usize)
    }
    /// Returns the owner of a page: the slot that uses the page, plus 1; 0: the page is free.
    pub(super) fn page_owner(&self, page: usize) -> &AtomicU8 {
        assert!(page < self.layout.pages, "page {page} of a domain of {}", self.layout.pages);
        self.map.u8(self.layout.page_owners() + page)
    }

    /// Returns the [`Route`] of a port's notifications, which the broker writes.
    #[inline(always)]
    pub(super) fn route(&self, port: u32) -> &AtomicU64 {
        assert!((port as usize) < PORTS, "event channel {port}");
        self.map.u64(PORT_TABLE + port as usize * 8)
    }

    /// Returns the event bits of a slot.
    #[inline(always)]
    pub(super) fn upcall(&self, slot: usize) -> Upcall<'_> {
        assert!(slot < SLOTS, "slot {slot}");
        Upcall { map: &self.map, at: SLOT_PAGES + slot * PAGE_SIZE }
    }
}

/// The value of an active entry: who is using a grant.
///
/// `|lock 8 | writers 20 | readers 20 | domid 16 |`: writers and readers have one bit for each slot
/// of the domain; the lock is the slot of its holder, plus 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Active(pub(super) u64);

impl Active {
    pub(super) const NONE: Self = Self(0);
    const PINS: u64 = ((1 << 40) - 1) << 16;

    /// Returns the bit that slot `slot` sets while it maps the grant.
    pub(super) fn pin(slot: usize, write: bool) -> u64 {
        1 << (16 + slot + if write { SLOTS } else { 0 })
    }
    /// Returns the domain whose slots the bits stand for.
    pub(super) fn domid(self) -> u16 {
        self.0 as u16
    }
    /// Returns true if any slot maps the entry's page.
    pub(super) fn pinned(self) -> bool {
        self.0 & Self::PINS != 0
    }
    /// Returns true if any slot maps the entry's page writable.
    pub(super) fn written(self) -> bool {
        self.0 & Self::PINS >> (16 + SLOTS) << (16 + SLOTS) != 0
    }
    /// Returns the number of pins.
    pub(super) fn pins(self) -> u32 {
        (self.0 & Self::PINS).count_ones()
    }
    /// Returns the slot that holds the lock.
    pub(super) fn locked_by(self) -> Option<usize> {
        ((self.0 >> 56) as usize).checked_sub(1)
    }
    /// Returns this entry as it is when `slot` of `domid` has locked it.
    pub(super) fn locked(self, domid: u16, slot: usize) -> Self {
        Self(self.0 & Self::PINS | u64::from(domid) | (slot as u64 + 1) << 56)
    }
    /// Returns this entry unlocked; if no pin is left, it is empty.
    pub(super) fn unlocked(self) -> Self {
        if self.pinned() { Self(self.0 & (Self::PINS | 0xFFFF)) } else { Self::NONE }
    }
    /// Returns this entry without the pins of a slot.
    pub(super) fn without(self, slot: usize) -> Self {
        Self(self.0 & !Self::pin(slot, false) & !Self::pin(slot, true))
    }
    /// Returns true if slot `slot` of `domid` holds the lock or a pin.
    pub(super) fn involves(self, domid: u16, slot: usize) -> bool {
        self.domid() == domid && (self.without(slot) != self || self.locked_by() == Some(slot))
    }
}

/// The destination of a notification: `|generation 16 | port 16 | domid 16 | slot 8 | state 8 |`.
/// The generation tells a new binding of the same ports from an old one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Route(pub(super) u64);

impl Route {
    /// Creates a route to the given end.
    pub(super) fn to(domid: u16, slot: usize, port: u32, generation: u16) -> Self {
        Self(
            1 | (slot as u64) << 8
                | u64::from(domid) << 16
                | u64::from(port as u16) << 32
                | u64::from(generation) << 48,
        )
    }
    /// Returns true if the port is bound.
    #[inline(always)]
    pub(super) fn is_bound(self) -> bool {
        self.0 & 0xFF == 1
    }
    /// Returns the peer's slot, which the caller must check.
    pub(super) fn slot(self) -> usize {
        (self.0 >> 8) as usize & 0xFF
    }
    pub(super) fn domid(self) -> u16 {
        (self.0 >> 16) as u16
    }
    /// Returns the peer's port, which the caller must check.
    #[inline(always)]
    pub(super) fn port(self) -> u32 {
        u32::from((self.0 >> 32) as u16)
    }
}

/// Event bits of one attached process or thread.
///
/// The sender sets the pending bit, then the selector bit of its word unless the port is masked,
/// then checks `waiting`. The receiver sets `waiting`, then checks the selector. Each has a SeqCst
/// fence in between, so one of them sees the other: no wake-up is lost, and no system call is made
/// while the receiver is awake.
#[derive(Clone, Copy)]
pub(super) struct Upcall<'a> {
    map: &'a Mapping,
    at: usize,
}

impl Upcall<'_> {
    const MASK: usize = 512;
    const SELECTOR: usize = 1024;
    const WAITING: usize = 1088;

    fn pending(&self, port: u32) -> &AtomicU64 {
        self.map.u64(self.at + port as usize / 64 * 8)
    }
    fn mask(&self, port: u32) -> &AtomicU64 {
        self.map.u64(self.at + Self::MASK + port as usize / 64 * 8)
    }
    fn selector(&self) -> &AtomicU64 {
        self.map.u64(self.at + Self::SELECTOR)
    }
    fn waiting(&self) -> &AtomicU32 {
        self.map.u32(self.at + Self::WAITING)
    }

    /// Marks an event pending. Returns true if the receiver sleeps and must be woken.
    #[inline]
    pub(super) fn raise(&self, port: u32) -> bool {
        let bit = 1 << (port % 64);
        if self.pending(port).fetch_or(bit, Ordering::SeqCst) & bit != 0 {
            return false;
        }
        self.select(port)
    }

    /// Sets the selector bit of a pending event, unless the port is masked. Returns true if the
    /// receiver must be woken.
    pub(super) fn select(&self, port: u32) -> bool {
        if self.mask(port).load(Ordering::SeqCst) & 1 << (port % 64) != 0 {
            return false;
        }
        self.selector().fetch_or(1 << (port / 64), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.waiting().load(Ordering::Relaxed) != 0 && self.waiting().swap(0, Ordering::SeqCst) != 0
    }

    /// Unmasks a port and delivers an event that came while it was masked.
    pub(super) fn unmask(&self, port: u32) {
        let bit = 1 << (port % 64);
        self.mask(port).fetch_and(!bit, Ordering::SeqCst);
        if self.pending(port).load(Ordering::SeqCst) & bit != 0 {
            self.selector().fetch_or(1 << (port / 64), Ordering::SeqCst);
        }
    }

    /// Returns true if an event is pending and not masked. The selector may lack its bit, if the
    /// event's sender died half way.
    pub(super) fn is_pending(&self, port: u32) -> bool {
        self.pending(port).load(Ordering::SeqCst) & 1 << (port % 64) != 0
    }

    pub(super) fn reset(&self, port: u32) {
        let bit = 1 << (port % 64);
        self.pending(port).fetch_and(!bit, Ordering::SeqCst);
        self.mask(port).fetch_and(!bit, Ordering::SeqCst);
    }

    /// Clears all bits, for a new owner of the slot.
    pub(super) fn clear(&self) {
        for word in 0..PORTS / 64 {
            self.map.u64(self.at + word * 8).store(0, Ordering::SeqCst);
            self.map.u64(self.at + Self::MASK + word * 8).store(0, Ordering::SeqCst);
        }
        self.selector().store(0, Ordering::SeqCst);
        self.waiting().store(0, Ordering::SeqCst);
    }

    /// Masks each selected event and passes its port to `each`.
    #[inline]
    pub(super) fn take(&self, mut each: impl FnMut(u32)) {
        if self.selector().load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut words = self.selector().swap(0, Ordering::SeqCst);
        while words != 0 {
            let first = words.trailing_zeros() * 64;
            words &= words - 1;
            let mask = self.mask(first).load(Ordering::SeqCst);
            let mut bits = self.pending(first).load(Ordering::SeqCst) & !mask;
            if bits == 0 {
                continue;
            }
            self.mask(first).fetch_or(bits, Ordering::SeqCst);
            self.pending(first).fetch_and(!bits, Ordering::SeqCst);
            while bits != 0 {
                each(first + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// Announces that the receiver is about to sleep. Returns false if an event is pending, so that
    /// it must not sleep.
    pub(super) fn about_to_sleep(&self) -> bool {
        self.waiting().store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.selector().load(Ordering::SeqCst) == 0 {
            return true;
        }
        self.awake();
        false
    }

    /// Announces that the receiver is awake.
    pub(super) fn awake(&self) {
        self.waiting().store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        let layout = Layout { pages: 16, grants: 512, version: GrantTableVersion::V1 };
        let memory = Backing::sealed("test", layout.len()).unwrap();
        Ledger::open(&memory, layout).unwrap()
    }

    #[test]
    fn an_event_shows_once_until_unmasked() {
        let l = ledger();
        let up = l.upcall(3);
        let taken = || {
            let mut v = vec![];
            up.take(|p| v.push(p));
            v
        };
        assert!(!up.raise(70), "no one sleeps");
        assert!(!up.raise(70));
        assert!(!up.raise(4095));
        assert_eq!(taken(), [70, 4095]);
        up.raise(70);
        assert_eq!(taken(), [] as [u32; 0], "masked until unmasked");
        up.unmask(70);
        assert_eq!(taken(), [70]);
        up.unmask(70);
        assert_eq!(taken(), [] as [u32; 0]);
    }

    #[test]
    fn only_a_sleeper_is_woken_and_only_once() {
        let l = ledger();
        let up = l.upcall(0);
        assert!(up.about_to_sleep());
        assert!(up.raise(1));
        assert!(!up.raise(2), "the first one woke it");
        assert!(!up.about_to_sleep(), "there is something to take");
    }

    #[test]
    fn active_entries_tell_who_holds_them() {
        let held = Active(Active::pin(19, true) | 7).unlocked();
        assert!(held.pinned() && held.written() && held.domid() == 7 && held.pins() == 1);
        assert!(held.involves(7, 19) && !held.involves(7, 18) && !held.involves(8, 19));
        let locked = held.locked(7, 2);
        assert_eq!(locked.locked_by(), Some(2));
        assert!(locked.involves(7, 2) && locked.involves(7, 19));
        assert_eq!(locked.unlocked(), held);
        assert_eq!(held.without(19).unlocked(), Active::NONE);
        assert!(!Active(Active::pin(19, false) | 7).written());
    }
}

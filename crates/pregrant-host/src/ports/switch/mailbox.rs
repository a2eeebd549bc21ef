//! A bounded mailbox from one worker to one reader, on the same or another worker: one writer, one
//! reader.
//!
//! ```text
//!   writer: post ---> | slot | slot | slot | slot | ---> take :reader
//!           recall <--' the newest, if it is still there
//!
//!   writer  post, fence, waits?  -> ring        the writer says what it did and checks what the other said,
//!   reader  waits!, fence, check once more      and so does the reader: one of them sees the other
//! ```
//!
//! Each slot has a lock, because mail is moved and this needs no `unsafe`. It is uncontended, since
//! the counts say whose turn it is, except when the writer recalls the very mail that the reader is
//! about to take: then one of them waits for the few instructions of a move. No one waits for room
//! or for mail.
//!
//! Invariants: mail is in a slot from [`Writer::post`] until it is taken or recalled, whatever a
//! count says; a stale count makes the reader see less, or look at an empty slot. Mail that was
//! posted earlier (also by another writer to another mailbox, if one writer knows of the other) is
//! seen earlier: counts are stored with release and loaded with acquire. Loom runs this file
//! (`crates/pregrant/tests/mailbox_loom.rs`).

use super::sync::{Arc, AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering, fence};

struct Shared<T> {
    slots: Box<[Mutex<Option<T>>]>,
    /// Number of mails that were posted and not recalled.
    posted: AtomicU32,
    /// Number of mails that the reader has taken.
    taken: AtomicU32,
}

impl<T> Shared<T> {
    fn slot(&self, n: u32) -> MutexGuard<'_, Option<T>> {
        // A move cannot panic, so nothing is left half done.
        self.slots[n as usize & (self.slots.len() - 1)].lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// The end of the mailbox that posts mails.
pub struct Writer<T> {
    shared: Arc<Shared<T>>,
    next: u32,
}

/// The end of the mailbox that takes mails.
pub struct Reader<T> {
    shared: Arc<Shared<T>>,
    next: u32,
}

/// Creates a mailbox for `slots` mails, which must be a power of two.
pub fn mailbox<T>(slots: usize) -> (Writer<T>, Reader<T>) {
    let slots = slots.max(1).next_power_of_two();
    let shared = Arc::new(Shared {
        slots: (0..slots).map(|_| Mutex::new(None)).collect(),
        posted: AtomicU32::new(0),
        taken: AtomicU32::new(0),
    });
    (Writer { shared: Arc::clone(&shared), next: 0 }, Reader { shared, next: 0 })
}

impl<T> Writer<T> {
    /// Number of mails that the reader has not taken, or is about to count as taken.
    pub fn len(&self) -> usize {
        self.next.wrapping_sub(self.shared.taken.load(Ordering::Relaxed)) as usize
    }

    /// Returns true if the reader has taken all posted mail.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if there is no room for another mail.
    pub fn is_full(&self) -> bool {
        self.len() >= self.shared.slots.len()
    }

    /// Posts `mail`. Err: there is no room. The writer must then [wake](Waiting::is_over) a waiting
    /// reader.
    pub fn post(&mut self, mail: T) -> Result<(), T> {
        if self.is_full() {
            return Err(mail);
        }
        *self.shared.slot(self.next) = Some(mail);
        self.next = self.next.wrapping_add(1);
        self.shared.posted.store(self.next, Ordering::Release);
        Ok(())
    }

    /// Takes back the newest mail, so that frames can be added to it; it is posted again in the
    /// same slot. None: the reader has taken all mails.
    pub fn recall(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let newest = self.next.wrapping_sub(1);
        let mail = self.shared.slot(newest).take()?;
        self.shared.posted.store(newest, Ordering::Relaxed);
        self.next = newest;
        Some(mail)
    }
}

impl<T> Reader<T> {
    /// Returns true if there is mail, or was a moment ago.
    pub fn has_mail(&self) -> bool {
        self.shared.posted.load(Ordering::Acquire) != self.next
    }

    /// Examines the oldest mail in place.
    pub fn peek<R>(&self, check: impl FnOnce(&T) -> R) -> Option<R> {
        if self.has_mail() { self.shared.slot(self.next).as_ref().map(check) } else { None }
    }

    /// Removes and returns the oldest mail.
    pub fn take(&mut self) -> Option<T> {
        if !self.has_mail() {
            return None;
        }
        // None: the writer recalled it.
        let mail = self.shared.slot(self.next).take()?;
        self.next = self.next.wrapping_add(1);
        self.shared.taken.store(self.next, Ordering::Relaxed);
        Some(mail)
    }
}

/// True while the reader has found all its mailboxes empty and may sleep.
#[derive(Debug)]
pub struct Waiting(AtomicBool);

impl Default for Waiting {
    fn default() -> Self {
        Self(AtomicBool::new(false))
    }
}

impl Waiting {
    /// Called when the reader found no mail. Returns true if the reader must check once more; from
    /// now on a post wakes it. False: the reader has called this before, and has checked since.
    pub fn begin(&self) -> bool {
        if self.0.load(Ordering::Relaxed) {
            return false;
        }
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        true
    }

    /// Called when the reader found mail without being woken.
    pub fn end(&self) {
        if self.0.load(Ordering::Relaxed) {
            self.0.store(false, Ordering::Relaxed);
        }
    }

    /// Called after mail was posted. Returns whether the reader must be woken; of several writers,
    /// only one gets true.
    pub fn is_over(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

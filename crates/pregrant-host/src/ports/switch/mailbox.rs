//! Mail from one worker to one reader, on another worker or the same: bounded, one writer, one
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
//! A slot has a lock, for mail is moved and no `unsafe` is wanted; it is not contended, since the
//! counts say whose turn it is, but where the writer recalls the very mail that the reader is about
//! to take: then one of them waits for the few instructions of a move. No one waits for room, nor
//! for mail.
//!
//! Invariants: mail is in a slot from [`Writer::post`] on until it is taken or recalled, whatever a
//! count says: a count that is old makes the reader see less, or read an empty slot. Mail that was
//! posted before (also by another writer, in another mailbox, if one knows of the other) is seen
//! before: the count is stored with release and loaded with acquire. Loom runs all of it
//! (`crates/pregrant/tests/mailbox_loom.rs`, which compiles this file).

use super::sync::{Arc, AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering, fence};

struct Shared<T> {
    slots: Box<[Mutex<Option<T>>]>,
    /// Mail that was posted and not recalled.
    posted: AtomicU32,
    /// Mail that was taken.
    taken: AtomicU32,
}

impl<T> Shared<T> {
    fn slot(&self, n: u32) -> MutexGuard<'_, Option<T>> {
        // A move cannot panic, so nothing is left half done.
        self.slots[n as usize & (self.slots.len() - 1)].lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Where mail goes in.
pub struct Writer<T> {
    shared: Arc<Shared<T>>,
    next: u32,
}

/// Where it comes out.
pub struct Reader<T> {
    shared: Arc<Shared<T>>,
    next: u32,
}

/// A mailbox with room for `slots` pieces of mail, a power of two.
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
    /// Mail that the reader has not taken, or is about to have taken.
    pub fn len(&self) -> usize {
        self.next.wrapping_sub(self.shared.taken.load(Ordering::Relaxed)) as usize
    }

    /// Whether all that was posted was taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there is no room.
    pub fn is_full(&self) -> bool {
        self.len() >= self.shared.slots.len()
    }

    /// Puts `mail` in. Refused: there is no room. [Wake](Waiting::is_over) a
    /// waiting reader.
    pub fn post(&mut self, mail: T) -> Result<(), T> {
        if self.is_full() {
            return Err(mail);
        }
        *self.shared.slot(self.next) = Some(mail);
        self.next = self.next.wrapping_add(1);
        self.shared.posted.store(self.next, Ordering::Release);
        Ok(())
    }

    /// Takes the newest mail back, to put more into it; None: the reader has all. It is posted
    /// again in the same place.
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
    /// Whether there is mail, or was a moment ago.
    pub fn has_mail(&self) -> bool {
        self.shared.posted.load(Ordering::Acquire) != self.next
    }

    /// The oldest mail, checked where it is.
    pub fn peek<R>(&self, check: impl FnOnce(&T) -> R) -> Option<R> {
        if self.has_mail() { self.shared.slot(self.next).as_ref().map(check) } else { None }
    }

    /// The oldest mail.
    pub fn take(&mut self) -> Option<T> {
        if !self.has_mail() {
            return None;
        }
        // None: it was recalled.
        let mail = self.shared.slot(self.next).take()?;
        self.next = self.next.wrapping_add(1);
        self.shared.taken.store(self.next, Ordering::Relaxed);
        Some(mail)
    }
}

/// Whether a reader found none of its mailboxes with mail, and may sleep.
#[derive(Debug)]
pub struct Waiting(AtomicBool);

impl Default for Waiting {
    fn default() -> Self {
        Self(AtomicBool::new(false))
    }
}

impl Waiting {
    /// The reader found nothing. True: it is to check once more; a post from now on wakes
    /// it. False: it was said before, and it has checked since.
    pub fn begin(&self) -> bool {
        if self.0.load(Ordering::Relaxed) {
            return false;
        }
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        true
    }

    /// The reader found something without being woken.
    pub fn end(&self) {
        if self.0.load(Ordering::Relaxed) {
            self.0.store(false, Ordering::Relaxed);
        }
    }

    /// Mail was posted: whether the reader is to be woken. Of several that ask, one gets a yes.
    pub fn is_over(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

//! Where one queue's frames wait for its guest: a mailbox of each worker that sends to it.
//!
//! ```text
//!   worker 0 --mailbox--+                               +-- move_in --> the queue's arena, if that is empty
//!   worker 1 --mailbox--+--> Incoming: the oldest mail--+-- copy -----> behind what is in it
//!      ^                                                |
//!      +---- spent mail, to be filled again ------------+
//! ```
//!
//! The mail that was started first goes first, so a port that moves from one worker to another
//! keeps its frames in order. A mailbox is made when a worker first has a frame for the queue.
//!
//! Senders wait for a queue with more than [`FULL_BYTES`], as long as its guest's pace is worth it
//! (`patience.rs`), until it has [`LOW_BYTES`] or less.
//!
//! Invariants: what waits takes [`QUEUE_BYTES`] at most, counted as the memory that is held for it,
//! from all senders; what was moved on to the arena is one mail more. Spent mail waits for its
//! worker, [`SPENT_MAX`] of each worker; it was within that bound when it was sent. Mail that waits
//! when the queue ends is dropped, also by a worker that does not know of the end.
//!
//! Payload is lent to a reader that is at work: it copies it in the round in which it takes the
//! mail. One whose guest has no slots [stands](Incoming::stand): what was lent is made private at
//! once, and nothing is lent to it before it has read all, or [`LENDS_AGAIN`] bursts without
//! standing: with a worker of its own its sender may always be a burst ahead. A port that no one
//! reads, since its vif is not connected yet, does not take any.
//!
//! What a guest may do: take no frames. That fills its own queue, and has who sends to it wait, at
//! most as long as `patience.rs` says.

use super::mail::Mail;
use super::mailbox::{Reader, Waiting, Writer, mailbox};
use super::patience::{Patience, Registered};
use pregrant::port::{ARENA_BYTES, Arena, BURST_BYTES_MIN, QueueWaker};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes in a queue to a guest beyond which its senders wait.
const FULL_BYTES: usize = 512 * 1024;
/// They go on when so many are left.
const LOW_BYTES: usize = FULL_BYTES / 2;
/// Workers whose next burst has room in a queue that was not full when they were asked.
const SENDERS_AT_ONCE: usize = 4;
/// Bytes that may wait in each queue to a guest.
pub const QUEUE_BYTES: usize = FULL_BYTES + SENDERS_AT_ONCE * ARENA_BYTES;
/// Mail of one worker that may wait: all that comes before the queue is full, for mail takes 4 KiB
/// and more, and as much again.
const MAILBOX_SLOTS: usize = 2 * FULL_BYTES / super::mail::MAIL_BYTES_MIN;
/// Spent mail that may wait for its worker.
pub const SPENT_MAX: usize = 8;

/// Bursts that a guest takes without standing before it is lent to, though more wait.
const LENDS_AGAIN: u32 = 16;

/// The part of a queue that senders share.
#[derive(Default)]
pub struct Inbox {
    waiting: Waiting,
    waker: Mutex<Option<Arc<dyn QueueWaker>>>,
    /// Frames that wait, in the upper half; bytes of the memory that they take, in the lower.
    load: AtomicU64,
    started: AtomicU64,
    is_closed: AtomicBool,
    /// Bytes that the reader took since the queue began; it alone writes them.
    taken: AtomicU64,
    /// Of those who wait for room.
    patience: Patience,
    /// Its reader copies lent payload soon.
    takes_lent: AtomicBool,
    /// Mailboxes that the reader has not seen yet, and how many there are in all.
    new: Mutex<Vec<Letterbox>>,
    nr_boxes: AtomicU32,
}

/// One worker's mail, at the reader's end.
struct Letterbox {
    mail: Reader<Box<Mail>>,
    spent: Writer<Box<Mail>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every state that a panic could leave is a legal one.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inbox {
    /// A mailbox of one more worker: where mail goes in, and where it comes back.
    pub fn open(&self) -> (Writer<Box<Mail>>, Reader<Box<Mail>>) {
        let ((to, mail), (spent, back)) = (mailbox(MAILBOX_SLOTS), mailbox(SPENT_MAX));
        let mut new = lock(&self.new);
        new.push(Letterbox { mail, spent });
        self.nr_boxes.fetch_add(1, Ordering::Release);
        (to, back)
    }

    /// Reserves memory for frames that are to wait, and counts the first at once; false: there is
    /// no room.
    pub fn charge(&self, bytes: usize) -> bool {
        let before = self.load.fetch_add(1 << 32 | bytes as u64, Ordering::Relaxed) as u32;
        if before as usize + bytes > QUEUE_BYTES {
            self.discharge(1, bytes);
            return false;
        }
        true
    }

    /// More frames wait from now on, in memory that is held.
    pub fn add(&self, frames: usize) {
        if frames > 0 {
            self.load.fetch_add((frames as u64) << 32, Ordering::Relaxed);
        }
    }

    /// Frames wait no longer, nor is their memory held: senders that wait for room go on when there
    /// is some.
    pub fn discharge(&self, frames: usize, bytes: usize) {
        let gone = (frames as u64) << 32 | bytes as u64;
        let before = self.load.fetch_sub(gone, Ordering::Relaxed) as u32 as usize;
        // A sender waits while it sees more, behind its own fence.
        if before > LOW_BYTES && before - bytes <= LOW_BYTES {
            self.patience.end(self.taken.load(Ordering::Relaxed));
        }
    }

    /// The same, by the reader, which took them.
    fn take(&self, frames: usize, bytes: usize) {
        self.taken.store(self.taken.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
        self.discharge(frames, bytes);
    }

    /// Whether a sender is to wait; one that waits already, and was not woken, does so for longer.
    #[inline(always)]
    pub fn is_full(&self, is_waiting: bool, by: &Registered) -> bool {
        let bytes = self.bytes();
        bytes > FULL_BYTES || is_waiting && bytes > LOW_BYTES && self.patience.is_registered(by)
    }

    /// It is full: for how long its sender may wait before it asks again, unless it is woken. None:
    /// it is not to wait.
    pub fn wait(&self, by: &mut Registered, waker: &Arc<dyn QueueWaker>) -> Option<Duration> {
        if self.is_closed() {
            return None;
        }
        let wait = self.patience.wait(self.taken.load(Ordering::Relaxed), by, waker)?;
        // Bytes that were taken since: their reader's fence is before this one.
        (self.bytes() > LOW_BYTES).then_some(wait)
    }

    /// Frames that wait.
    pub fn len(&self) -> usize {
        (self.load.load(Ordering::Relaxed) >> 32) as usize
    }

    /// Bytes of memory that is held for them.
    pub fn bytes(&self) -> usize {
        self.load.load(Ordering::Relaxed) as u32 as usize
    }

    /// The number of a mail that is started. While there is one mailbox all have the same: who
    /// knows of another's mail knows of its mailbox.
    pub fn next_number(&self) -> u64 {
        if self.nr_boxes.load(Ordering::Relaxed) == 1 {
            return 0;
        }
        self.started.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// After mail was posted: wakes the reader, if it may sleep. False: there is none any more,
    /// take it back.
    #[must_use]
    pub fn wake(&self) -> bool {
        if self.waiting.is_over() {
            let waker = lock(&self.waker).clone();
            if let Some(waker) = waker {
                waker.ring();
            }
        }
        // Behind the fence in `is_over`, as the reader checks behind its own: one of them takes the
        // mail out.
        !self.is_closed.load(Ordering::Relaxed)
    }

    /// Whether payload may be lent to its reader, asked before the post and, [awake](Self::wake),
    /// behind it: if not, what was lent is to be [kept](super::lent_burst::LentBurst::keep).
    pub fn takes_lent(&self) -> bool {
        self.takes_lent.load(Ordering::Relaxed)
    }

    /// Whether the reader is gone.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }
}

/// The reader's end.
pub struct Incoming {
    inbox: Arc<Inbox>,
    boxes: Vec<Letterbox>,
    /// Mail that an arena took a part of, and whose.
    current: Option<(usize, Box<Mail>)>,
    /// Mail whose bytes are in the arena, and whose.
    moved: Option<(usize, Box<Mail>)>,
    /// Mail that was taken out to be made private, and whose; the oldest first.
    early: VecDeque<(usize, Box<Mail>)>,
    /// Bursts since it stood.
    taken: u32,
    has_waker: bool,
}

impl Incoming {
    /// Of this queue.
    pub fn new(inbox: &Arc<Inbox>) -> Self {
        Self {
            inbox: Arc::clone(inbox),
            boxes: Vec::new(),
            current: None,
            moved: None,
            early: VecDeque::new(),
            taken: 0,
            has_waker: false,
        }
    }

    /// The part that senders share.
    pub fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// This wakes the reader from now on.
    pub fn set_waker(&mut self, waker: &Arc<dyn QueueWaker>) {
        *lock(&self.inbox.waker) = Some(Arc::clone(waker));
        self.has_waker = true;
        // A sender that took the old one before has posted before, and rings at the wrong door.
        waker.ring();
    }

    fn see_new_boxes(&mut self) {
        if self.inbox.nr_boxes.load(Ordering::Acquire) as usize != self.boxes.len() {
            self.boxes.append(&mut lock(&self.inbox.new));
        }
    }

    /// The oldest mail.
    fn take(&mut self) -> Option<(usize, Box<Mail>)> {
        self.early.pop_front().or_else(|| self.take_posted())
    }

    fn take_posted(&mut self) -> Option<(usize, Box<Mail>)> {
        self.see_new_boxes();
        let whose = match &*self.boxes {
            [] => return None,
            [_] => 0,
            boxes => {
                // Checked twice: what was posted before what the first check found, in another
                // mailbox, the second finds.
                if !boxes.iter().any(|b| b.mail.has_mail()) {
                    return None;
                }
                let numbers = boxes.iter().enumerate();
                numbers.filter_map(|(i, b)| Some((b.mail.peek(|mail| mail.number)?, i))).min()?.1
            }
        };
        Some((whose, self.boxes[whose].mail.take()?))
    }

    fn give_back(&mut self, whose: usize, mail: Box<Mail>) {
        // Full: its worker does not send any more, and has enough.
        drop(self.boxes[whose].spent.post(mail));
    }

    /// Moves frames into `into`, or copies them behind what is there. Returns how many.
    pub fn pop_into(&mut self, into: &mut Arena) -> usize {
        if into.is_empty()
            && let Some((whose, mut mail)) = self.moved.take()
            && let Some(bytes) = into.move_out()
        {
            mail.bytes = bytes;
            self.give_back(whose, mail);
        }
        let mut n = self.fill(into);
        if n == 0 && self.has_waker && self.inbox.waiting.begin() {
            n = self.fill(into);
        }
        if n > 0 && self.has_waker {
            self.inbox.waiting.end();
        }
        self.taken = self.taken.saturating_add(u32::from(n > 0));
        // The guest takes frames.
        let has_all = self.current.is_none() && self.early.is_empty() && !self.has_mail();
        if has_all || self.taken >= LENDS_AGAIN {
            self.inbox.takes_lent.store(into.takes_lent(), Ordering::Relaxed);
        }
        n
    }

    fn has_mail(&self) -> bool {
        self.boxes.iter().any(|letterbox| letterbox.mail.has_mail())
    }

    /// The guest takes no frames at present: makes what is lent private, and has no more lent.
    pub fn stand(&mut self) {
        self.taken = 0;
        if !self.inbox.takes_lent.swap(false, Ordering::Relaxed) {
            return;
        }
        // A lender from before has posted before, or sees this when it checks behind its own fence.
        fence(Ordering::SeqCst);
        self.current.iter_mut().for_each(|(_, mail)| mail.make_private());
        while let Some((whose, mut mail)) = self.take_posted() {
            mail.make_private();
            self.early.push_back((whose, mail));
        }
    }

    fn fill(&mut self, into: &mut Arena) -> usize {
        let begin = into.len();
        while let Some((whose, mut mail)) = self.current.take().or_else(|| self.take()) {
            let size = mail.bytes.len();
            let before = into.len();
            if into.is_empty() {
                let lent = mail.lent.take();
                into.move_in_lent(std::mem::take(&mut mail.bytes), mail.rest(), lent);
                self.moved = Some((whose, mail));
                self.inbox.take(into.len(), size);
                continue;
            }
            // Behind what was moved there may be room for a little more; what is large is moved in
            // its turn.
            if self.moved.is_none() || mail.rest_bytes() < BURST_BYTES_MIN {
                mail.make_private();
                while mail.front().is_some_and(|(frame, offload)| into.push(frame, offload)) {
                    mail.pop();
                }
            }
            let n = into.len() - before;
            if !mail.rest().is_empty() {
                self.inbox.take(n, 0);
                self.current = Some((whose, mail));
                break;
            }
            self.inbox.take(n, size);
            self.give_back(whose, mail);
        }
        into.len() - begin
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.inbox.is_closed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.inbox.patience.end(self.inbox.taken.load(Ordering::Relaxed));
        self.see_new_boxes();
        for mut letterbox in self.boxes.drain(..) {
            while letterbox.mail.take().is_some() {}
        }
    }
}

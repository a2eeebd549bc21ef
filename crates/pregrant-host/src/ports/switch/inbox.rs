//! The frames that wait for one queue's guest: a mailbox per worker that sends to it.
//!
//! ```text
//!   worker 0 --mailbox--+                               +-- move_in --> the queue's arena, if that is empty
//!   worker 1 --mailbox--+--> Incoming: the oldest mail--+-- copy -----> behind what is in it
//!      ^                                                |
//!      +---- spent mail, to be filled again ------------+
//! ```
//!
//! The mail that was started first goes first, so a port that moves to another worker keeps its
//! frames in order. A mailbox is created when a worker first has a frame for the queue.
//!
//! When a queue holds more than [`FULL_BYTES`], its senders wait until it has [`LOW_BYTES`] or
//! less, for as long as its guest's rate justifies that (`patience.rs`).
//!
//! Invariants: the waiting frames of all senders use at most [`QUEUE_BYTES`], counted by the memory
//! that is held for them; one more mail may be in the arena. At most [`SPENT_MAX`] read mails wait
//! to return to each worker; they were within the bound when they were sent. When the queue ends,
//! its waiting mail is dropped, also by a worker that does not know of the end yet.
//!
//! Zero-copy payload goes only to a reader that is active: it copies the payload in the same round
//! in which it takes the mail. When its guest has no slots, the reader is
//! [stalled](Incoming::stand): pending payload is copied to private memory at once, and it gets no
//! more zero-copy payload until it has read all, or has taken [`LENDS_AGAIN`] bursts without a
//! stall, since a sender on another worker may always be a burst ahead. A port that is not read
//! because its vif is not connected gets none.
//!
//! What a guest may do: take no frames. That fills its own queue and makes its senders wait, at
//! most as long as `patience.rs` says.

use super::mail::Mail;
use super::mailbox::{Reader, Waiting, Writer, mailbox};
use super::patience::{Patience, Registered};
use pregrant::port::{ARENA_BYTES, Arena, BURST_BYTES_MIN, QueueWaker};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// If more bytes than this wait in a queue, its senders wait.
const FULL_BYTES: usize = 512 * 1024;
/// Waiting senders continue when the queue holds no more than this.
const LOW_BYTES: usize = FULL_BYTES / 2;
/// Number of workers whose next burst fits, if all saw the queue as not full.
const SENDERS_AT_ONCE: usize = 4;
/// Largest number of bytes that may wait in one queue.
pub const QUEUE_BYTES: usize = FULL_BYTES + SENDERS_AT_ONCE * ARENA_BYTES;
/// Largest number of mails from one worker that can wait: twice as many as fill the queue, since a
/// mail takes 4 KiB or more.
const MAILBOX_SLOTS: usize = 2 * FULL_BYTES / super::mail::MAIL_BYTES_MIN;
/// Largest number of mails that were read and wait to return to one worker.
pub const SPENT_MAX: usize = 8;

/// Number of bursts that a guest must receive without a stall before it gets zero-copy payload
/// again, although more waits.
const LENDS_AGAIN: u32 = 16;

/// The part of a queue that senders share.
#[derive(Default)]
pub struct Inbox {
    waiting: Waiting,
    waker: Mutex<Option<Arc<dyn QueueWaker>>>,
    /// The upper half counts the waiting frames; the lower half, the bytes of memory that they use.
    load: AtomicU64,
    started: AtomicU64,
    is_closed: AtomicBool,
    /// Number of bytes that the reader has taken so far. Only the reader writes this.
    taken: AtomicU64,
    /// The senders that wait for room, and how long they may wait.
    patience: Patience,
    /// True while the reader may get zero-copy payload, since it will soon copy it.
    takes_lent: AtomicBool,
    /// Mailboxes that the reader has not seen yet, and the number of all mailboxes.
    new: Mutex<Vec<Letterbox>>,
    nr_boxes: AtomicU32,
}

/// The reader's ends of the two mailboxes that connect it with one worker: of the mailbox with
/// mail, and of the one by which mails return.
struct Letterbox {
    mail: Reader<Box<Mail>>,
    spent: Writer<Box<Mail>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Any state that a panic could leave behind is valid.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inbox {
    /// Creates a mailbox for one more worker. Returns the end that mail is posted to, and the end
    /// where read mail returns.
    pub fn open(&self) -> (Writer<Box<Mail>>, Reader<Box<Mail>>) {
        let ((to, mail), (spent, back)) = (mailbox(MAILBOX_SLOTS), mailbox(SPENT_MAX));
        let mut new = lock(&self.new);
        new.push(Letterbox { mail, spent });
        self.nr_boxes.fetch_add(1, Ordering::Release);
        (to, back)
    }

    /// Reserves memory for waiting frames, and counts the first. False: there is no room.
    pub fn charge(&self, bytes: usize) -> bool {
        let before = self.load.fetch_add(1 << 32 | bytes as u64, Ordering::Relaxed) as u32;
        if before as usize + bytes > QUEUE_BYTES {
            self.discharge(1, bytes);
            return false;
        }
        true
    }

    /// Counts more waiting frames, in memory that is reserved already.
    pub fn add(&self, frames: usize) {
        if frames > 0 {
            self.load.fetch_add((frames as u64) << 32, Ordering::Relaxed);
        }
    }

    /// Releases frames and their memory. Wakes senders that wait for room, if there is enough now.
    pub fn discharge(&self, frames: usize, bytes: usize) {
        let gone = (frames as u64) << 32 | bytes as u64;
        let before = self.load.fetch_sub(gone, Ordering::Relaxed) as u32 as usize;
        // A waiting sender checks this again, after its own fence.
        if before > LOW_BYTES && before - bytes <= LOW_BYTES {
            self.patience.end(self.taken.load(Ordering::Relaxed));
        }
    }

    /// Discharges memory as [`discharge`](Self::discharge) does. It is called by the reader, and
    /// also counts what the guest received.
    fn take(&self, frames: usize, bytes: usize) {
        self.taken.store(self.taken.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
        self.discharge(frames, bytes);
    }

    /// Returns true if a sender must wait because the queue is full. A sender that waits already
    /// and was not woken must wait longer, until less of the queue is used.
    #[inline(always)]
    pub fn is_full(&self, is_waiting: bool, by: &Registered) -> bool {
        let bytes = self.bytes();
        bytes > FULL_BYTES || is_waiting && bytes > LOW_BYTES && self.patience.is_registered(by)
    }

    /// Returns how long a sender to this full queue may wait before it checks again, unless it is
    /// woken earlier. None: it must not wait.
    pub fn wait(&self, by: &mut Registered, waker: &Arc<dyn QueueWaker>) -> Option<Duration> {
        if self.is_closed() {
            return None;
        }
        let wait = self.patience.wait(self.taken.load(Ordering::Relaxed), by, waker)?;
        // The reader may have taken bytes since; its fence came before this one.
        (self.bytes() > LOW_BYTES).then_some(wait)
    }

    /// Number of waiting frames.
    pub fn len(&self) -> usize {
        (self.load.load(Ordering::Relaxed) >> 32) as usize
    }

    /// Returns the number of bytes that the waiting frames use.
    pub fn bytes(&self) -> usize {
        self.load.load(Ordering::Relaxed) as u32 as usize
    }

    /// Returns the number of a new mail. While there is one mailbox, all mails have the same
    /// number. A worker that knows of another worker's mail also knows of its mailbox.
    pub fn next_number(&self) -> u64 {
        if self.nr_boxes.load(Ordering::Relaxed) == 1 {
            return 0;
        }
        self.started.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Called after posting mail: wakes the reader if it may sleep. Returns false if the reader is
    /// gone, so that the mail must be recalled.
    #[must_use]
    pub fn wake(&self) -> bool {
        if self.waiting.is_over() {
            let waker = lock(&self.waker).clone();
            if let Some(waker) = waker {
                waker.ring();
            }
        }
        // After the fence in `is_over`, as the reader checks after its own: one of the two removes
        // the mail.
        !self.is_closed.load(Ordering::Relaxed)
    }

    /// Returns true if the reader may get zero-copy payload. The sender asks before it posts the
    /// burst, and once more after it has [woken](Self::wake) the reader. If the second answer is
    /// false, the sender must [keep](super::lent_burst::LentBurst::keep) a copy of the payload.
    pub fn takes_lent(&self) -> bool {
        self.takes_lent.load(Ordering::Relaxed)
    }

    /// Returns true if the reader is gone.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }
}

/// The reader's end of a queue.
pub struct Incoming {
    inbox: Arc<Inbox>,
    boxes: Vec<Letterbox>,
    /// The mail of which the arena received only a part, and the index of its mailbox.
    current: Option<(usize, Box<Mail>)>,
    /// The mail whose memory is in the arena, and the index of the mail's mailbox.
    moved: Option<(usize, Box<Mail>)>,
    /// Mails that were taken early so that their payload could be copied, each with the index of
    /// its mailbox; the oldest is first.
    early: VecDeque<(usize, Box<Mail>)>,
    /// Number of bursts taken since the guest last stalled.
    taken: u32,
    has_waker: bool,
}

impl Incoming {
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

    /// Returns the part of the queue that senders share.
    pub fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Sets the waker of the reader.
    pub fn set_waker(&mut self, waker: &Arc<dyn QueueWaker>) {
        *lock(&self.inbox.waker) = Some(Arc::clone(waker));
        self.has_waker = true;
        // A sender that still uses the old waker has posted already, and would wake the wrong
        // worker.
        waker.ring();
    }

    fn see_new_boxes(&mut self) {
        if self.inbox.nr_boxes.load(Ordering::Acquire) as usize != self.boxes.len() {
            self.boxes.append(&mut lock(&self.inbox.new));
        }
    }

    /// Takes the oldest mail.
    fn take(&mut self) -> Option<(usize, Box<Mail>)> {
        self.early.pop_front().or_else(|| self.take_posted())
    }

    fn take_posted(&mut self) -> Option<(usize, Box<Mail>)> {
        self.see_new_boxes();
        let whose = match &*self.boxes {
            [] => return None,
            [_] => 0,
            boxes => {
                // Check twice: mail in another mailbox that was posted before the mail found first
                // is seen by the second check.
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
        // If full, its worker no longer sends and has enough memory.
        drop(self.boxes[whose].spent.post(mail));
    }

    /// Moves mail into the arena `into`, or copies frames behind those that the arena has. Returns
    /// the number of frames.
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

    /// Called when the guest takes no frames: copies the zero-copy payload to private memory, and
    /// accepts no more.
    pub fn stand(&mut self) {
        self.taken = 0;
        if !self.inbox.takes_lent.swap(false, Ordering::Relaxed) {
            return;
        }
        // A sender that saw the old value has posted already, or sees the new one when it checks
        // after its own fence.
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
            // After moved memory there may be room for a little more; a large mail is moved in its
            // turn.
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

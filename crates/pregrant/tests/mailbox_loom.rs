//! The switch's mailbox under every order of its memory accesses that the C11 model allows (`cargo
//! xtask ci loom`); in a module of its own, the end of a grant.
//!
//! ```text
//!   writers: post, ring when the reader waits --> doorbell --> reader: takes, says that it waits, checks once more, sleeps
//! ```
//!
//! The mailbox is the host crate's; it is compiled here, for that crate needs more of a system than
//! loom has. A wake-up that is lost is a deadlock, which loom reports. The last tests leave one
//! ingredient out and expect loom to find the fault: they show that the models above can fail.
#![cfg(loom)]

mod grant_loom;
mod loom_event;

use loom::thread;
use loom_event::{Event, explore};
use std::sync::Arc;

#[path = "../../pregrant-host/src/ports/switch/mailbox.rs"]
#[allow(dead_code, reason = "the switch uses the rest")]
mod mailbox;

/// Replaces the switch's module `sync` by loom's types.
mod sync {
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
    pub use loom::sync::{Mutex, MutexGuard};
    pub use std::sync::Arc;
}

use mailbox::{Reader, Waiting, Writer, mailbox};

/// A reader, as its writers know it.
#[derive(Default)]
struct Inbox {
    waiting: Waiting,
    /// A worker's doorbell: it stays rung until the worker has slept.
    doorbell: Event,
}

/// The cases that are left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// The second check before the sleep.
    SecondCheck,
    /// The question whether the reader waits: no one rings.
    Doorbell,
}

/// False: there is no room.
fn post(to: &mut Writer<u32>, inbox: &Inbox, without: Without, mail: u32) -> bool {
    let is_in = to.post(mail).is_ok();
    if is_in && without != Without::Doorbell && inbox.waiting.is_over() {
        inbox.doorbell.send();
    }
    is_in
}

fn take_one(boxes: &mut [Reader<u32>]) -> Option<u32> {
    boxes.iter_mut().find_map(Reader::take)
}

/// Takes mail until there are `count` of them, in the order in which they were found.
fn take(boxes: &mut [Reader<u32>], inbox: &Inbox, without: Without, count: usize) -> Vec<u32> {
    let mut got = Vec::new();
    while got.len() < count {
        if let Some(mail) = take_one(boxes) {
            inbox.waiting.end();
            got.push(mail);
            continue;
        }
        if inbox.waiting.begin()
            && without != Without::SecondCheck
            && let Some(mail) = take_one(boxes)
        {
            got.push(mail);
            continue;
        }
        inbox.doorbell.sleep();
    }
    got
}

/// One writer posts `count` mails; the reader sleeps whenever it finds none.
fn mail_wakes_the_reader(slots: usize, count: u32, without: Without) {
    explore(Some(3), move || {
        let inbox = Arc::new(Inbox::default());
        let (mut to, from) = mailbox(slots);
        let reader = {
            let inbox = Arc::clone(&inbox);
            thread::spawn(move || take(&mut [from], &inbox, without, count as usize))
        };
        (0..count).for_each(|mail| assert!(post(&mut to, &inbox, without, mail)));
        assert_eq!(reader.join().unwrap(), (0..count).collect::<Vec<_>>(), "all of it, in order");
        assert!(to.is_empty());
    });
}

#[test]
fn no_mail_is_slept_over() {
    mail_wakes_the_reader(2, 2, Without::Nothing);
}

/// One slot for three mails: the writer learns when there is no room; all other mail arrives, in
/// order. The last word is in a mailbox of its own: a reader that has it sees what was posted
/// before.
#[test]
fn slots_are_used_again_and_what_finds_none_is_known() {
    const LAST: u32 = 9;
    explore(Some(3), || {
        let inbox = Arc::new(Inbox::default());
        let (mut to, from) = mailbox(1);
        let (mut to_last, last) = mailbox(1);
        let reader = {
            let inbox = Arc::clone(&inbox);
            thread::spawn(move || {
                let (mut got, mut boxes) = (Vec::new(), [from, last]);
                while got.last() != Some(&LAST) {
                    got.extend(take(&mut boxes, &inbox, Without::Nothing, 1));
                }
                got.pop();
                got.extend(std::iter::from_fn(|| take_one(&mut boxes)));
                got
            })
        };
        let posted: Vec<u32> = (0..3).filter(|n| post(&mut to, &inbox, Without::Nothing, *n)).collect();
        assert!(post(&mut to_last, &inbox, Without::Nothing, LAST));
        assert_eq!(reader.join().unwrap(), posted);
    });
}

/// Two workers write to one reader, which has a mailbox of each.
#[test]
fn one_of_two_writers_wakes_the_reader() {
    explore(Some(2), || {
        let inbox = Arc::new(Inbox::default());
        let (boxes, writers): (Vec<_>, Vec<_>) = (0..2)
            .map(|n| {
                let (mut to, from) = mailbox(1);
                let inbox = Arc::clone(&inbox);
                (from, thread::spawn(move || assert!(post(&mut to, &inbox, Without::Nothing, n))))
            })
            .unzip();
        let mut boxes = boxes;
        let mut got = take(&mut boxes, &inbox, Without::Nothing, 2);
        got.sort_unstable();
        assert_eq!(got, [0, 1]);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
}

/// Mail is recalled and extended while the reader may take it: each number arrives once, in order,
/// and the reader never sleeps over one.
#[test]
fn what_is_recalled_is_not_lost_and_not_doubled() {
    explore(Some(3), || {
        let inbox = Arc::new(Inbox::default());
        let (mut to, mut from) = mailbox::<Vec<u32>>(2);
        let reader = {
            let inbox = Arc::clone(&inbox);
            thread::spawn(move || {
                let mut got: Vec<u32> = Vec::new();
                while got.len() < 3 {
                    let mail = from.take().or_else(|| if inbox.waiting.begin() { from.take() } else { None });
                    match mail {
                        Some(mail) => got.extend(mail),
                        None => inbox.doorbell.sleep(),
                    }
                }
                got
            })
        };
        for n in 0..3 {
            let mut mail = to.recall().unwrap_or_default();
            mail.push(n);
            to.post(mail).unwrap();
            if inbox.waiting.is_over() {
                inbox.doorbell.send();
            }
        }
        assert_eq!(reader.join().unwrap(), [0, 1, 2]);
    });
}

/// The second mailbox's writer knew of the first: a reader that finds the second finds the first,
/// too.
#[test]
fn mail_that_was_posted_before_is_seen_before() {
    explore(Some(3), || {
        let (mut first, from_first) = mailbox(1);
        let (mut second, from_second) = mailbox(1);
        let reader = thread::spawn(move || {
            if from_second.has_mail() {
                assert!(from_first.has_mail(), "the later mail is there, the earlier is not");
            }
        });
        // The port moves to another worker.
        thread::spawn(move || {
            first.post(1).unwrap();
            first
        })
        .join()
        .unwrap();
        second.post(2).unwrap();
        reader.join().unwrap();
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_reader_that_does_not_look_again_loses_mail() {
    mail_wakes_the_reader(2, 2, Without::SecondCheck);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_writer_that_does_not_ring_loses_mail() {
    mail_wakes_the_reader(2, 2, Without::Doorbell);
}

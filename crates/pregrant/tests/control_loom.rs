//! What a vif's control and a queue's worker share, under every order of their memory accesses that
//! the C11 model allows with at most three preemptions (`cargo xtask ci loom`): lists of pages
//! (`gref_mapping::exchange`), and the settings (`shared_control`).
//!
//! ```text
//!   control: list --lock--> exchange, generation, event        worker: generation? try_lock --> table
//!            settings --lock--> changes, event                 worker: changes?    try_lock --> its copy, its own requests
//! ```
//! The worker never waits for a lock. What it missed for that it finds at its next turn, which
//! control's event brings: if it does not, it sleeps for ever, and loom reports a deadlock. The
//! test of a list that is announced too early expects that.
#![cfg(loom)]

mod loom_event;

use loom::thread;
use loom_event::{Event, explore};
use pregrant::GrantRef;
use pregrant::bounded::Bounded;
use pregrant::net::back::SharedControl;
use pregrant::net::back::guest_settings::GuestSettings;
use pregrant::net::batch::tx::MulticastAsk;
use pregrant::net::headers::MacAddr;
use pregrant::net::path::gref_mapping::exchange::{GrefExchange, KeepOrder};
use pregrant::net::path::gref_mapping::table::{GrefTable, Mapped};
use pregrant::sync::{AtomicU32, Ordering};
use std::sync::Arc;

const PREEMPTIONS: Option<usize> = Some(3);

/// A queue, as control and its worker see it.
#[derive(Default)]
struct Queue {
    exchange: GrefExchange<u32>,
    generation: AtomicU32,
    event: Event,
    control: Event,
}

impl Queue {
    fn order(&self) {
        self.generation.fetch_add(1, Ordering::Release);
        self.event.send();
    }
}

/// Control adds two lists, and wants one back. `early`: it announces the last two before they are
/// there.
fn lists(early: bool) {
    explore(PREEMPTIONS, move || {
        let queue = Arc::new(Queue::default());
        let worker = {
            let queue = queue.clone();
            thread::spawn(move || {
                let mut table = GrefTable::new(4).expect("memory");
                let mut applied = 0;
                loop {
                    let generation = queue.generation.load(Ordering::Acquire);
                    if generation != applied || queue.exchange.waits() {
                        applied = generation;
                        if queue.exchange.apply(&mut table) {
                            queue.control.send();
                            return (table.len(), table.locate(GrantRef(9)).is_some());
                        }
                    }
                    queue.event.sleep();
                }
            })
        };
        let page =
            |r: u32| KeepOrder::of([(GrantRef(r), Mapped::new(r, false))].into_iter()).expect("memory");
        queue.exchange.keep(page(8));
        queue.order();
        if early {
            queue.order();
        }
        queue.exchange.keep(page(9));
        let refs = Bounded::of([GrantRef(8)].into_iter()).expect("memory");
        queue.exchange.want_back(refs).expect("memory");
        if !early {
            queue.order();
        }
        queue.control.sleep();
        assert_eq!(queue.exchange.given().as_deref(), Some(&[8][..]));
        assert_eq!(worker.join().unwrap(), (1, true));
    });
}

#[test]
fn a_list_that_was_missed_is_found_later() {
    lists(false);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_list_that_is_announced_before_it_is_there_is_slept_over() {
    lists(true);
}

/// Control changes a setting while the worker executes a request of the guest, and copies the
/// settings: both changes are there in the end, in the state and in the copy.
#[test]
fn settings_of_both_are_kept_and_copied() {
    explore(PREEMPTIONS, || {
        let (control, event) = (Arc::new(SharedControl::default()), Arc::new(Event::default()));
        control.lock().offer_multicast(true);
        let mac = MacAddr([1, 0, 0x5E, 0, 0, 1]);
        let worker = {
            let (control, event) = (control.clone(), event.clone());
            thread::spawn(move || {
                let (mut settings, mut seen, mut asks) = (GuestSettings::default(), 0, true);
                loop {
                    if asks && let Some(mut locked) = control.try_lock(true) {
                        locked.multicast([MulticastAsk::Add(mac)].into_iter(), |_| panic!("a group"));
                        asks = false;
                    }
                    if control.changes() != seen {
                        seen = control.copy_settings(&mut settings).unwrap_or(seen);
                    }
                    if !asks && settings.touches_rx() {
                        return settings;
                    }
                    event.sleep();
                }
            })
        };
        control.lock().multicast.request(true);
        event.send();
        let settings = worker.join().unwrap();
        assert_eq!(control.lock().multicast.addresses(), [mac]);
        assert_eq!(settings.multicast(), &control.lock().multicast);
    });
}

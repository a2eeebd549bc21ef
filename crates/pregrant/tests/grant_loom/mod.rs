//! A grant of version 2 that its owner ends while another domain begins to use the page: the order
//! of the two words (`crates/pregrant-loopback/src/table/v2.rs`, compiled here).
//!
//! ```text
//!   owner: end --ended--> the page is its own again      loom's cell finds a use beside that
//!   user:  claims, checks --granted--> uses the page, lets go
//! ```

use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;
use sync::{AtomicU32, AtomicU64, Ordering};

#[path = "../../../pregrant-loopback/src/table/v2.rs"]
#[allow(dead_code, reason = "the table uses the rest")]
mod v2;

/// Replaces the table's module `sync` by loom's types.
mod sync {
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

    /// Loom treats a SeqCst access as an acquiring or releasing one.
    pub fn ordered_as_seq_cst() {
        fence(Ordering::SeqCst);
    }
}

const PERMIT: u32 = 1;
const CLAIMED: u64 = 1 << 56;

/// An entry, its status, and the page.
struct Granted {
    head: AtomicU32,
    status: AtomicU64,
    page: UnsafeCell<u32>,
}

impl Granted {
    fn new() -> Arc<Self> {
        Arc::new(Self { head: AtomicU32::new(PERMIT), status: AtomicU64::new(0), page: UnsafeCell::new(0) })
    }

    /// Xen's side, once. Whether the page was used.
    fn use_page(&self, check: impl Fn(&AtomicU32) -> u32) -> bool {
        let claimed = self.status.compare_exchange(0, CLAIMED, Ordering::SeqCst, Ordering::Relaxed);
        if claimed.is_err() {
            return false;
        }
        let granted = check(&self.head) & PERMIT != 0;
        if granted {
            self.page.with_mut(|_| ());
        }
        self.status.store(0, Ordering::Release);
        granted
    }

    /// The owner's side, once. Whether the page is its own.
    fn take_back(&self, end: impl Fn(&AtomicU32, &AtomicU64) -> bool) -> bool {
        let ended = end(&self.head, &self.status);
        if ended {
            self.page.with_mut(|_| ());
        }
        ended
    }
}

fn play(
    users: usize,
    check: impl Fn(&AtomicU32) -> u32 + Copy + Send + Sync + 'static,
    end: impl Fn(&AtomicU32, &AtomicU64) -> bool + Copy + Send + Sync + 'static,
) {
    loom::model(move || {
        let granted = Granted::new();
        let users: Vec<_> = (0..users)
            .map(|_| {
                let granted = Arc::clone(&granted);
                thread::spawn(move || granted.use_page(check))
            })
            .collect();
        let ended = granted.take_back(end);
        for user in users {
            user.join().unwrap();
        }
        // What stood can be ended once no one uses it.
        assert!(ended || granted.take_back(end), "a grant that no one uses is in use");
        assert!(!granted.use_page(check), "a grant that has ended was used");
    });
}

#[test]
fn a_page_is_its_owner_s_again_only_after_its_use() {
    play(1, v2::claimed, v2::end);
}

#[test]
fn of_two_users_neither_is_missed() {
    play(2, v2::claimed, v2::end);
}

/// Without first reading the status, several grants are ended with one fence.
#[test]
fn a_lazy_end_is_ordered_by_its_fence() {
    play(1, v2::claimed, |head, status| {
        v2::disable(head);
        v2::before_statuses();
        v2::is_free(status)
    });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_end_without_its_fence_misses_a_use() {
    play(1, v2::claimed, |head, status| {
        v2::disable(head);
        v2::is_free(status)
    });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_claim_without_its_order_misses_the_end() {
    play(1, |head| head.load(Ordering::Relaxed), v2::end);
}

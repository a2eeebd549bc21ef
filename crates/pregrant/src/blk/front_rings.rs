//! Finds the rings that a front's keys name, although an earlier driver of the same guest may have
//! left keys, too (docs/protocol 5.4).
//!
//! ```text
//!   ring-page-order ----there---> ring-ref0, ring-ref1, ...        multi-queue-num-queues --2 or more--> below queue-0/, queue-1/ ...
//!                  '---absent--> ring-ref                                                 '--else------> at the top
//!          = the reading of Linux's blkback        every other reading that the keys allow: only where its rings seem new
//! ```
//! Fronts write their own keys and leave those of others: GRUB leaves a `ring-ref`, the kernel
//! before a kexec an order or a number of queues. The keys alone cannot show which are stale, but
//! the pages can: a front has [initialised](is_new) its rings, and sent no request yet. The name of
//! the key with the first page is stored in the back's directory as `ring-active`, because rings in
//! use do not look new, and a successor must find the same ones.
//!
//! What a front may do: write anything. Thereby it only chooses between rings of its own; the page
//! of another reading is mapped read-only to be inspected, within the number of pages that its ring
//! may have mapped anyway.

use crate::platform::{Access, PeerMem, Platform};
use crate::ring::Word;
use crate::shm::SharedBytes;
use crate::units::{DomId, EvtchnPort, GrantRef};
use crate::xenbus::key_source::{KeySource, needed};
use crate::xenbus::ring_keys::{asked_order, nr_queues, queue_prefix, ring_key, ring_pages};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// One queue, as the front set it up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueKeys {
    /// The pages of the ring, from `ring-ref` or from `ring-ref%u`; a power of two of them.
    pub ring: Vec<GrantRef>,
    /// Whether the keys are `ring-ref%u`. If the front wrote a ring order of 0, a ring of one page
    /// has such a key, too.
    pub numbered: bool,
    /// The event channel, from the key `event-channel`.
    pub channel: EvtchnPort,
}

impl QueueKeys {
    /// The keys of a queue of our own fronts, which number the keys of a ring of several pages.
    pub fn new(ring: Vec<GrantRef>, channel: EvtchnPort) -> Self {
        let numbered = ring.len() > 1;
        Self { ring, numbered, channel }
    }

    /// The key that names page `k` of queue `i` of `n`, below the front's directory.
    pub fn ring_key(&self, (i, n): (usize, usize), k: usize) -> String {
        ring_key(&queue_prefix(i, n), k, self.numbered).to_string()
    }
}

/// The largest rings that a back takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    /// Largest number of queues.
    pub(super) queues: u32,
    /// log2 of the largest number of pages per ring.
    pub(super) order: u32,
}

impl Most {
    fn order(self) -> (u32, &'static str) {
        (self.order, "at most the back's max-ring-page-order")
    }
}

/// The source of the number of a ring's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RingOrder {
    /// There is no order key: a ring has one page, and its key has no number.
    None,
    /// A key in the front's directory has the order of all queues' rings.
    OfAll(u32),
    /// A key in each queue's directory has the order, where earlier versions of Pregrant's fronts
    /// wrote it.
    OfEach,
}

/// One way of reading a front's keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reading {
    queues: usize,
    order: RingOrder,
}

impl Reading {
    /// All readings that the keys allow; the first is that of Linux's blkback.
    pub(super) fn all<S: KeySource>(keys: &mut S, most: Most) -> Result<Vec<Self>, S::Error> {
        let n = nr_queues(keys, most.queues)? as usize;
        let order = asked_order(keys, "", most.order())?.map(RingOrder::OfAll);
        let plain = RingOrder::None;
        let mut all = Vec::from([(n, order.unwrap_or(plain))]);
        match order {
            Some(_) => all.push((n, plain)),
            None if n >= 2 => all.push((n, RingOrder::OfEach)),
            None => {}
        }
        if n >= 2 {
            all.extend(order.map(|order| (1, order)));
            all.push((1, plain));
        }
        Ok(all.into_iter().map(|(queues, order)| Self { queues, order }).collect())
    }

    /// The way in which a predecessor that stored `active` read the keys. None: an older version
    /// that stored nothing; it used a key without a number if there was one, even beside an order.
    pub(super) fn of_predecessor<S: KeySource>(
        keys: &mut S,
        most: Most,
        active: Option<&str>,
    ) -> Result<Self, S::Error> {
        let all = Self::all(keys, most)?;
        let Some(active) = active else {
            let queues = all[0].queues;
            let plain = Self { queues, order: RingOrder::None };
            return Ok(match (plain.read(keys, most), queues) {
                (Ok(_), _) => plain,
                (Err(_), 1) => all[0],
                (Err(_), _) => Self { queues, order: RingOrder::OfEach },
            });
        };
        let found = all.into_iter().find(|reading| reading.first_key() == active);
        found.ok_or_else(|| {
            keys.bad(
                active,
                "",
                "as it was connected, with the ring-page-order and multi-queue-num-queues of then",
            )
        })
    }

    /// The key that names the first page of the first ring.
    pub(super) fn first_key(&self) -> String {
        ring_key(&queue_prefix(0, self.queues), 0, self.order != RingOrder::None).to_string()
    }

    /// Reads the keys of all queues by this reading: ring pages and event channel of each. `most`
    /// bounds the number of ring pages.
    pub(super) fn read<S: KeySource>(&self, keys: &mut S, most: Most) -> Result<Vec<QueueKeys>, S::Error> {
        let queue = |i| {
            let at = queue_prefix(i, self.queues);
            let order = match self.order {
                RingOrder::None => None,
                RingOrder::OfAll(order) => Some(order),
                RingOrder::OfEach => asked_order(keys, &at, most.order())?,
            };
            let ring = ring_pages(keys, &at, order)?;
            let channel = EvtchnPort(needed(keys, &format!("{at}event-channel"))?);
            Ok(QueueKeys { ring, numbered: order.is_some(), channel })
        };
        (0..self.queues).map(queue).collect()
    }
}

/// Chooses the queues of a front, which may have at most `most_pages` pages mapped.
pub(super) fn choose<P: Platform, S: KeySource>(
    p: &P,
    (of, page_limit): (DomId, usize),
    keys: &mut S,
    most: Most,
) -> Result<Vec<QueueKeys>, S::Error> {
    let all = Reading::all(keys, most)?;
    let first = all[0].read(keys, most);
    // An incomplete reading is ignored; the first reading reports what is wrong.
    let others: Vec<_> = all[1..].iter().filter_map(|reading| reading.read(keys, most).ok()).collect();
    let is_new_layout = |queues: &[QueueKeys]| {
        let pages: usize = queues.iter().map(|queue| queue.ring.len()).sum();
        pages <= page_limit && queues.iter().all(|queue| is_new(p, of, queue))
    };
    if others.is_empty() || first.as_ref().is_ok_and(|queues| is_new_layout(queues)) {
        return first;
    }
    others.into_iter().find(|queues| is_new_layout(queues)).map_or(first, Ok)
}

/// Whether a ring is in its initial state: both producers 0, both event indices 1.
fn is_new<P: Platform>(p: &P, of: DomId, queue: &QueueKeys) -> bool {
    let Ok(map) = p.peer().map(of, &queue.ring, Access::ReadOnly) else { return false };
    // The header is the same in both layouts of slots.
    let begins = [(Word::ReqProd, 0), (Word::RspProd, 0), (Word::ReqEvent, 1), (Word::RspEvent, 1)];
    begins.into_iter().all(|(word, value)| map.load_u32(word as usize * 4) == Some(value))
}

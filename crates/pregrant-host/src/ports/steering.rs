//! A port whose frames another party distributes over queues (for a tap: the kernel), redistributed
//! to the queues that the guest wants.
//!
//! ```text
//!   the kernel's queue i --read--> which queue does the guest want?  i: on its way
//!                                                                    j: queue j's frames, until j's port is asked
//! ```
//! A frame that moves to another queue wakes the worker of that queue's port. Moved frames wait in
//! this process's memory and count as [held](FramePort::held).
//!
//! What a guest may do: steer all frames to one queue and not read that. The queue is bounded
//! ([`QUEUE_BYTES`]); frames that do not fit are dropped and counted. Until a guest steers, no
//! memory is allocated and frames pass unchanged.

use super::frame_queue::FrameQueue;
use pregrant::port::{
    Arena, Burst, DropCounts, FramePort, Offloads, Payload, PortDrop, PortOwner, QueueWaker, Room, Steering,
    ZeroCopyBurst,
};
use rustix::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Largest number of bytes that wait for one queue of the guest.
pub const QUEUE_BYTES: usize = 512 * 1024;

/// The state that the ports of one vif share.
#[derive(Debug, Default)]
struct Shared {
    by: Option<Arc<dyn Steering>>,
    /// One queue of frames for each queue of the guest; empty until the guest steers.
    queues: Vec<FrameQueue>,
    /// For each queue, the waker of the worker that has the queue's port.
    wakers: Vec<Option<Arc<dyn QueueWaker>>>,
    /// Number of frames that were dropped because a queue was full.
    overflow: u64,
}

/// The port of one queue.
#[derive(Debug)]
pub struct Steered<P> {
    inner: P,
    queue: usize,
    nr_queues: usize,
    shared: Arc<Mutex<Shared>>,
    /// Frames that were read and must be sorted. None: the guest has not steered yet.
    read: Option<Box<Arena>>,
}

impl<P: FramePort> Steered<P> {
    /// Wraps the ports of one vif, in the order of its queues.
    pub fn all(ports: Vec<P>) -> Vec<Self> {
        let nr_queues = ports.len();
        let shared = Shared { wakers: vec![None; nr_queues], ..Shared::default() };
        let shared = Arc::new(Mutex::new(shared));
        let steered =
            |(queue, inner)| Self { inner, queue, nr_queues, shared: Arc::clone(&shared), read: None };
        ports.into_iter().enumerate().map(steered).collect()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        // Any state that a panic could leave behind is valid.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts the frames that the inner ports dropped, and those that the queues of this port dropped.
struct SteeredDrops {
    inner: Option<Arc<dyn DropCounts>>,
    shared: Arc<Mutex<Shared>>,
}

impl DropCounts for SteeredDrops {
    fn read(&self) -> Vec<PortDrop> {
        let mut drops = self.inner.as_ref().map_or_else(Vec::new, |inner| inner.read());
        let frames = self.shared.lock().unwrap_or_else(PoisonError::into_inner).overflow;
        drops.push(PortDrop { dir: "rx", reason: "queue_full", frames });
        drops
    }
}

impl<P: FramePort> FramePort for Steered<P> {
    fn caps(&self) -> Offloads {
        self.inner.caps()
    }

    fn room(&mut self) -> Room {
        self.inner.room()
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        self.inner.tx_burst(frames)
    }
    fn payload(&self) -> Payload {
        self.inner.payload()
    }
    fn tx_zero_copy(&mut self, frames: &mut ZeroCopyBurst<'_>) -> usize {
        self.inner.tx_zero_copy(frames)
    }

    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let before = into.len();
        let by = {
            let Shared { by, queues, .. } = &mut *self.shared();
            match queues.get_mut(self.queue) {
                None => None,
                Some(queue) => {
                    queue.pop_into(into);
                    // Frames that were moved here before go first.
                    if !queue.is_empty() {
                        return into.len() - before;
                    }
                    by.clone()
                }
            }
        };
        let Some(by) = by else {
            self.inner.rx_burst(into);
            return into.len() - before;
        };
        let mut read = self.read.take().unwrap_or_default();
        read.clear();
        self.inner.rx_burst(&mut read);
        let mut shared = self.shared();
        let Shared { queues, overflow, wakers, .. } = &mut *shared;
        let mut moved = 0u64;
        for (frame, offload) in read.burst().iter() {
            let to = by.queue_of(frame) % self.nr_queues;
            let Some(queue) = queues.get_mut(to) else { break };
            if to == self.queue && queue.is_empty() && into.push(frame, offload) {
                continue;
            }
            // That queue's worker may have polled already. And there may be more frames after
            // these, although none of these was for this queue.
            moved |= 1 << (to % 64) | 1 << (self.queue % 64);
            *overflow += u64::from(!queue.push(frame, offload));
        }
        let is_moved = |queue: usize| moved & 1 << (queue % 64) != 0;
        let wakers = wakers.iter().enumerate().filter(|(queue, _)| is_moved(*queue));
        wakers.filter_map(|(_, waker)| waker.as_ref()).for_each(|waker| waker.ring());
        drop(shared);
        self.read = Some(read);
        into.len() - before
    }

    fn drop_counts(&self) -> Option<Arc<dyn DropCounts>> {
        let (inner, shared) = (self.inner.drop_counts(), Arc::clone(&self.shared));
        Some(Arc::new(SteeredDrops { inner, shared }))
    }

    fn held(&self) -> usize {
        self.inner.held() + self.shared().queues.get(self.queue).map_or(0, FrameQueue::len)
    }

    /// Sets the guest's rule for the distribution of frames. Frames that were moved already stay in
    /// their queue.
    fn steer(&mut self, by: Option<Arc<dyn Steering>>) {
        let nr_queues = self.nr_queues;
        let mut shared = self.shared();
        if by.is_some() && shared.queues.is_empty() {
            shared.queues.extend((0..nr_queues).map(|_| FrameQueue::new(QUEUE_BYTES)));
        }
        shared.by = by;
    }

    fn became_readable(&mut self) {
        self.inner.became_readable();
    }

    fn owned_by(&mut self, owner: &PortOwner) {
        self.inner.owned_by(owner);
        self.shared().wakers[self.queue] = Some(Arc::clone(&owner.waker));
    }
}

impl<P: AsFd> AsFd for Steered<P> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pregrant::port::Offload;
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A port that returns its frames, a few per burst.
    #[derive(Default)]
    struct Source(VecDeque<Vec<u8>>);

    impl FramePort for Source {
        fn caps(&self) -> Offloads {
            Offloads::default()
        }
        fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
            frames.frames.len()
        }
        fn rx_burst(&mut self, into: &mut Arena) -> usize {
            let mut n = 0;
            while n < 8 && self.0.front().is_some_and(|frame| into.push(frame, Offload::default())) {
                self.0.pop_front();
                n += 1;
            }
            n
        }
    }

    /// Steers by the first byte of a frame.
    #[derive(Debug)]
    struct ByFirst;

    impl Steering for ByFirst {
        fn queue_of(&self, frame: &[u8]) -> usize {
            frame[0].into()
        }
    }

    /// A doorbell of the tests that records whether it was rung.
    #[derive(Debug, Default)]
    struct Rung(AtomicBool);

    impl QueueWaker for Rung {
        fn ring(&self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Polls each port, and again while any has been woken, as a worker does before it sleeps.
    fn all(ports: &mut [Steered<Source>]) -> Vec<Vec<Vec<u8>>> {
        let mut got = vec![Vec::new(); ports.len()];
        let mut arena = Arena::new();
        let waker = Arc::new(Rung::default());
        ports.iter_mut().for_each(|port| port.owned_by(&PortOwner { worker: 0, waker: waker.clone() }));
        loop {
            for (port, got) in ports.iter_mut().zip(&mut got) {
                arena.clear();
                port.rx_burst(&mut arena);
                got.extend(arena.burst().iter().map(|(frame, _)| frame.to_vec()));
            }
            if !waker.0.swap(false, Ordering::Relaxed) {
                return got;
            }
        }
    }

    fn frames(queue: impl Fn(u8) -> u8) -> VecDeque<Vec<u8>> {
        (0..200).map(|n| vec![queue(n), n]).collect()
    }

    #[test]
    fn each_frame_comes_where_the_guest_wants_it_and_in_order() {
        let mut ports = Steered::all(vec![Source::default(), Source::default(), Source::default()]);
        ports[2].inner.0 = frames(|n| n % 3);
        assert_eq!(all(&mut ports).iter().map(Vec::len).collect::<Vec<_>>(), [0, 0, 8], "as they come");
        ports[2].inner.0.clear();
        // 200 frames. The last queue is polled last, after the first two queues' frames.
        ports[0].steer(Some(Arc::new(ByFirst)));
        ports[2].inner.0 = frames(|n| n % 4);
        let got = all(&mut ports);
        for (queue, got) in got.iter().enumerate() {
            let due: Vec<Vec<u8>> =
                frames(|n| n % 4).into_iter().filter(|f| usize::from(f[0]) % 3 == queue).collect();
            assert_eq!(*got, due);
        }
        assert!(ports.iter().all(|port| port.held() == 0));
        // Frames that were sorted are not lost when the guest stops steering.
        ports[2].inner.0 = frames(|_| 1);
        ports[2].rx_burst(&mut Arena::new());
        assert_eq!(ports[1].held(), 8);
        ports[1].steer(None);
        ports[2].inner.0.clear();
        assert_eq!(all(&mut ports)[1].len(), 8);
    }

    #[test]
    fn a_queue_that_no_one_empties_is_bounded_and_its_drops_counted() {
        let mut ports = Steered::all(vec![Source::default(), Source::default()]);
        ports[0].steer(Some(Arc::new(ByFirst)));
        let mut sent = 0;
        while ports[0].drops().iter().all(|drop| drop.frames == 0) {
            ports[0].inner.0.extend((0..8).map(|_| vec![1; 9000]));
            sent += 8;
            assert_eq!(ports[0].rx_burst(&mut Arena::new()), 0);
        }
        let held = ports[1].held();
        assert!(held * 9000 <= QUEUE_BYTES && held * 9000 > QUEUE_BYTES / 2);
        let dropped: u64 = ports[1].drops().iter().map(|drop| drop.frames).sum();
        assert_eq!(held as u64 + dropped, sent);
    }
}

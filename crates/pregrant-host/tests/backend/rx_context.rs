//! In whose turn frames go from one queue of a worker to another.

use pregrant::port::{Arena, PortOwner, QueueWaker};
use pregrant::units::EvtchnPort;
use pregrant::xenbus::{Class, DeviceId};
use pregrant::{DomId, PeerFault, PlatformError};
use pregrant_host::drivers::RxContext;
use pregrant_host::drivers::device_class::{RingFault, ServedQueue};
use pregrant_host::drivers::worker_pool::waker::Waker;
use pregrant_host::drivers::worker_queues::WorkerQueues;
use pregrant_loopback::{Broker, DomainSpec, Hooks, Loopback};
use pregrant_test_machine::machine::{self, Test};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub const TESTS: &[Test] =
    &[("frames_for_another_queue_go_on_in_the_context_that_was_chosen", frames_go_on_in_a_context)];

/// Rings another queue's doorbell in each of its turns.
struct Sender {
    to: Arc<OnceLock<Arc<dyn QueueWaker>>>,
}

/// The receiving queue. `calls`: how often it had a turn, and how often it got a batch in another
/// queue's turn; `fails`: its ring is broken in that case.
struct Receiver {
    waker: Arc<OnceLock<Arc<dyn QueueWaker>>>,
    calls: Arc<[AtomicU64; 2]>,
    fails: bool,
}

macro_rules! of_no_device {
    () => {
        fn number(&self) -> usize {
            0
        }
        fn arm(&mut self, _: &Loopback) -> Result<bool, RingFault> {
            Ok(false)
        }
        fn is_pending(&mut self) -> bool {
            false
        }
        fn channels(&self, _: &Loopback) -> Vec<EvtchnPort> {
            Vec::new()
        }
        fn adopt(&mut self, _: &Loopback) -> Result<(), PlatformError> {
            Ok(())
        }
    };
}

impl ServedQueue<Loopback> for Sender {
    fn poll(&mut self, _: &Loopback, _: &mut Arena) -> Result<bool, RingFault> {
        self.to.get().unwrap().ring();
        Ok(true)
    }
    of_no_device!();
}

impl ServedQueue<Loopback> for Receiver {
    fn poll(&mut self, _: &Loopback, _: &mut Arena) -> Result<bool, RingFault> {
        self.calls[0].fetch_add(1, Ordering::Relaxed);
        Ok(false)
    }
    fn deliver(&mut self, _: &Loopback) -> Result<bool, RingFault> {
        self.calls[1].fetch_add(1, Ordering::Relaxed);
        let fault = PeerFault::ReqProdOverrun { req_prod: 9, req_cons: 0, size: 4 };
        if self.fails { Err(RingFault { key: "rx-ring-ref".into(), fault }) } else { Ok(false) }
    }
    fn owned_by(&mut self, owner: &PortOwner) {
        assert!(self.waker.set(Arc::clone(&owner.waker)).is_ok());
    }
    of_no_device!();
}

/// In the sender's context the receiver gets a batch at once, and a turn of its own in the next
/// round. In the receiver's context it waits until the worker checks its doorbells. A broken ring
/// closes its own device.
fn frames_go_on_in_a_context() {
    let broker = Broker::start(None, Hooks::default()).unwrap();
    broker.create_domain(DomainSpec::driver(machine::BACK)).unwrap();
    let p = broker.attach(machine::BACK).unwrap();
    for (context, fails) in [(RxContext::Worker, false), (RxContext::Same, false), (RxContext::Same, true)] {
        let mut load = WorkerQueues::new(Waker::inline()).delivering(context);
        let [sender, receiver] = [5, 6].map(|front| DeviceId {
            class: Class::VIF,
            front: DomId(front),
            back: machine::BACK,
            handle: 0,
        });
        let (waker, calls) = (Arc::default(), Arc::<[AtomicU64; 2]>::default());
        let queue = Receiver { waker: Arc::clone(&waker), calls: Arc::clone(&calls), fails };
        load.take(&p, receiver, Box::new(queue), &Arc::default());
        load.round(&p);
        assert!(!load.arm(&p));
        load.take(&p, sender, Box::new(Sender { to: waker }), &Arc::default());
        let before = calls[0].load(Ordering::Relaxed);
        load.round(&p);
        let seen = || (calls[0].load(Ordering::Relaxed) - before, calls[1].load(Ordering::Relaxed));
        assert_eq!(seen(), (0, u64::from(context == RxContext::Same)), "{context}");
        let gone: Vec<_> = load.take_returned().iter().map(|returned| returned.id).collect();
        assert_eq!(gone, if fails { vec![receiver] } else { vec![] });
        if !fails {
            load.take_doorbells();
            load.round(&p);
            assert_eq!(seen().0, 1, "it has turns of its own");
        }
    }
}

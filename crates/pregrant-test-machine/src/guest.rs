//! Well-behaved guests, each with one vif, that exchange numbered frames.
//!
//! ```text
//!   Guest: Frontend on a domain of the machine --frames with numbers--> the back's switch --> another Guest
//!   Traffic: two of them in a thread, which exchange frames as long as a test goes on
//! ```

use crate::machine::{self, Back, Machine, Store, until};
use pregrant::net::front::FrontConfig;
use pregrant::net::front::Granting;
use pregrant::net::headers::MacAddr;
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::port::{Arena, Offload};
use pregrant::xenbus::{DeviceId, XenbusState};
use pregrant_host::drivers::Frontend;
use pregrant_host::ports::sequence::{self, Head};
use pregrant_loopback::Loopback;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Returns a front's configuration without staging: one queue, one event channel, ordinary grants.
pub fn ordinary() -> FrontConfig {
    FrontConfig {
        queues: 1,
        staging: Buffers::NONE,
        granting: Granting::PerFrame,
        split_channels: false,
        ..FrontConfig::default()
    }
}

/// Returns a front's configuration with staging buffers of these data lengths for TX and RX.
pub fn staging(tx: Option<u32>, rx: Option<u32>) -> FrontConfig {
    let len = |n: Option<u32>| n.map(|n| DataLen::new(n).unwrap());
    FrontConfig { staging: Buffers::of(len(tx), len(rx)), split_channels: true, ..ordinary() }
}

/// A guest with one vif.
pub struct Guest {
    pub front: Frontend<Loopback, Link>,
    mac: MacAddr,
    into: Arena,
}

type Link = pregrant_host::UnixTransport;

impl Guest {
    /// Attaches to the domain of a vif that the toolstack has made. With `reconnect` the front
    /// connects again after it was closed.
    pub fn attach(machine: &Machine, id: DeviceId, config: FrontConfig, reconnect: bool) -> Self {
        let (platform, xs) = machine.attach(id.front);
        Self::over(platform, xs, id, config, reconnect)
    }

    /// Like [`attach`](Self::attach), with an existing attachment.
    pub fn over(platform: Loopback, xs: Store, id: DeviceId, config: FrontConfig, reconnect: bool) -> Self {
        let front = Frontend::new(platform, xs, id.handle, config, reconnect).unwrap();
        Self { front, mac: machine::mac(id.front.0, id.handle), into: Arena::new() }
    }

    pub fn connected(machine: &Machine, id: DeviceId, config: FrontConfig) -> Self {
        let mut guest = Self::attach(machine, id, config, false);
        guest.connect();
        guest
    }

    /// Waits until the vif is live, and until it has announced its pages to the back if it does so.
    pub fn connect(&mut self) {
        while !self.front.connect(Duration::from_millis(100)).unwrap() {}
        while self.front.vif().is_announcing() {
            self.front.control(Duration::from_millis(1)).unwrap();
        }
    }

    /// The guest's MAC address at the switch.
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Makes the guest use this MAC address from now on, even if another guest has it.
    pub fn act_as(&mut self, mac: MacAddr) {
        self.mac = mac;
    }

    pub fn id(&self) -> DeviceId {
        self.front.device().id()
    }

    /// Sends frame `seq` of `len` bytes to `to` on queue `i`.
    pub fn send(&mut self, i: usize, to: MacAddr, len: usize, seq: u64) {
        let mut out = Arena::new();
        Head::new(to, self.mac).fill(out.room(len, Offload::default()).unwrap(), seq);
        while self.front.send(i, &out.burst()).unwrap() == 0 {
            self.front.reclaim(i, 1).unwrap();
        }
    }

    /// Receives the frames that have arrived on any queue. Checks every byte of them, and returns
    /// their numbers and lengths.
    pub fn take(&mut self) -> Vec<(u64, usize)> {
        let mut got = Vec::new();
        for i in 0..self.front.vif().nr_queues() {
            self.into.clear();
            self.front.recv(i, &mut self.into, 1).unwrap();
            self.front.reclaim(i, 1).unwrap();
            for (frame, _) in self.into.burst().iter() {
                // A frame that a switch floods is not for everybody.
                if frame[..6] == self.mac.0 {
                    got.push((sequence::check(frame).unwrap(), frame.len()));
                }
            }
        }
        got
    }

    /// Waits for the next frame.
    pub fn next_frame(&mut self) -> (u64, usize) {
        let mut got = Vec::new();
        until(|| {
            got = self.take();
            !got.is_empty()
        });
        assert_eq!(got.len(), 1, "more than was sent: {got:?}");
        got[0]
    }

    /// Closes the vif in good order, and checks that every page and event channel is released.
    pub fn close(mut self) {
        while !self.front.close(Duration::from_millis(100)).unwrap() {}
        assert_eq!(self.front.vif().state(), XenbusState::Closed);
    }
}

/// Sends frames of each length from `a` to `b` and back, on every queue of the sender.
pub fn exchange(a: &mut Guest, b: &mut Guest, lengths: &[usize]) {
    let mut seq = 0;
    for &len in lengths {
        for turn in 0..8 {
            let (from, to): (&mut Guest, &mut Guest) = if turn % 2 == 0 { (a, b) } else { (b, a) };
            let queue = turn / 2 % from.front.vif().nr_queues();
            from.send(queue, to.mac(), len, seq);
            assert_eq!(to.next_frame(), (seq, len));
            seq += 1;
        }
    }
}

/// Two guests that exchange frames in a thread of their own, as long as this value exists.
pub struct Traffic {
    round_trips: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    ids: [DeviceId; 2],
}

impl Traffic {
    /// Starts the guests, domains 11 and 12. They use staging buffers, so that the machine's counts
    /// do not change while they exchange frames.
    pub fn start(machine: &mut Machine) -> Self {
        let ids = [11, 12].map(|domid| {
            machine.guest_domain(domid);
            machine.make_vif(domid, 0)
        });
        let connections = ids.map(|id| (machine.broker.connect().unwrap(), id));
        let (round_trips, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (round_trips, stop) = (Arc::clone(&round_trips), Arc::clone(&stop));
            std::thread::spawn(move || {
                let [mut a, mut b] = connections.map(|(connection, id)| {
                    let platform = Loopback::attach_fd(connection, id.front).unwrap();
                    let fd = platform.take_store_fd().unwrap();
                    let xs = Store::new(Link::new(fd).unwrap());
                    let config =
                        FrontConfig { granting: Granting::Standing, ..staging(Some(256), Some(256)) };
                    let mut guest = Guest::over(platform, xs, id, config, false);
                    guest.connect();
                    guest
                });
                while !stop.load(Ordering::Relaxed) {
                    exchange(&mut a, &mut b, &[64, 256]);
                    round_trips.fetch_add(1, Ordering::Relaxed);
                }
                a.close();
                b.close();
            })
        };
        let traffic = Self { round_trips, stop, thread: Some(thread), ids };
        traffic.flows();
        traffic
    }

    /// Waits until more frames have arrived in both directions.
    pub fn flows(&self) {
        let before = self.round_trips.load(Ordering::Relaxed);
        until(|| {
            assert!(!self.thread.as_ref().unwrap().is_finished(), "the good guests' thread ended: see above");
            self.round_trips.load(Ordering::Relaxed) >= before + 3
        });
    }

    /// Closes both vifs in good order.
    pub fn stop(mut self, machine: &mut Machine) {
        self.end();
        for id in self.ids {
            machine.remove_vif(id);
        }
    }

    /// Checks that neither of the two vifs has failed.
    pub fn assert_unharmed(&self, back: &Back) {
        for id in self.ids {
            let report = back.report(id).unwrap();
            assert_eq!((report.device.failed, report.refused.len()), (None, 0));
            for (_, tx, _, rx) in report.queues {
                assert_eq!((tx.errors, tx.dropped, rx.errors, rx.dropped), (0, 0, 0, 0));
            }
        }
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            assert!(std::thread::panicking(), "the good guests' thread panicked: see above");
        }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.end();
    }
}

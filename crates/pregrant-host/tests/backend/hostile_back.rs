//! The cases that the rig plays on real Xen against the kernel module (`cargo xtask rig 82`),
//! played on the loopback against our front. Both are the same core, so the results must be equal.

#[path = "../../examples/hostile_back/cases.rs"]
mod cases;

use pregrant_test_machine::guest::{Guest, staging};
use pregrant_test_machine::machine::{BACK, Machine, Store, Test};

use pregrant::PeerFault;
use pregrant::net::front::{FrontConfig, FrontQueue};
use pregrant::net::headers::MacAddr;
use pregrant::port::{Arena, LentSink, Offload, Piece, Sink, Token};
use pregrant::xenbus::DeviceId;
use pregrant_host::UnixTransport;
use pregrant_host::drivers::{Frontend, FrontendError};
use pregrant_loopback::Loopback;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

pub const TESTS: &[Test] = &[("each_case_has_its_end", each_case_has_its_end)];

fn each_case_has_its_end() {
    let mut machine = Machine::start();
    let (platform, mut xs) = machine.attach(BACK);
    let mut lines = Vec::new();
    for case in cases::all() {
        machine.guest_domain(5);
        let id = machine.make_vif(5, 0);
        let (stream, stop) = (machine.broker.connect().unwrap(), AtomicBool::new(false));
        let in_place = AtomicUsize::new(0);
        let line = std::thread::scope(|scope| {
            let guest = scope.spawn(|| send_until(stream, id, &stop, &in_place));
            let line = case.play(&platform, &mut xs, id, |_| ());
            stop.store(true, Ordering::Relaxed);
            let ended = guest.join().unwrap();
            line.unwrap_or_else(|e| panic!("{e}; the front: {ended:?}"))
        });
        assert!(in_place.into_inner() > 0 || !case.name.contains("pool"), "{line}: no frame in its pages");
        lines.push(line);
        machine.remove_vif(id);
    }
    drop((platform, xs));
    let golden: Vec<&str> = cases::GOLDEN.lines().collect();
    assert!(lines == golden, "these lines are not as they should be:\n{}", lines.join("\n"));
    machine.end();
}

/// Frames that the guest has where they are: the last few, as a stack does.
struct Held<'a> {
    tokens: VecDeque<Token>,
    in_place: &'a AtomicUsize,
}

impl Held<'_> {
    const MOST: usize = 8;

    /// Receives what is there, returns earlier frames, and lets the pool grow if frames had to be
    /// copied. Memory is short in each 512th `turn`.
    fn turn(&mut self, front: &mut Front, turn: u32) -> Result<(), PeerFault> {
        let (p, vif) = front.driver();
        let Some(queue) = vif.hand_out_queues().pop() else { return Ok(()) };
        let (tx, mut rx) = queue.into_halves();
        let short = rx.front().pages().short();
        let taken = rx.take_lent(self, 1);
        let is_short = rx.front().pages().short() > short;
        rx.post_taken(p);
        vif.take_back(vec![FrontQueue::of_halves(tx, rx).ok().unwrap()]);
        if is_short {
            let _ = vif.grow_rx(p, 0, 64); // else all is copied
        }
        if turn.is_multiple_of(512) {
            vif.shrink_rx(p, usize::MAX);
        }
        let old = self.tokens.len().saturating_sub(Self::MOST);
        vif.release(p, self.tokens.drain(..old)).unwrap();
        taken.map(drop)
    }
}

impl Sink for Held<'_> {
    fn takes(&self) -> usize {
        64
    }
    fn take<'a>(&mut self, _: usize, _: Offload, _: impl Iterator<Item = Piece<'a>>) -> bool {
        true
    }
}

impl LentSink for Held<'_> {
    fn wants(&self, len: usize, _: usize) -> bool {
        len > 2048
    }
    fn take_lent<'a>(
        &mut self,
        _: usize,
        _: Offload,
        _: [Piece<'a>; 2],
        _: impl Iterator<Item = Piece<'a>>,
    ) -> bool {
        true
    }
    fn lent(&mut self, token: Token) {
        self.tokens.push_back(token);
        self.in_place.fetch_add(1, Ordering::Relaxed);
    }
}

type Front = Frontend<Loopback, UnixTransport>;

/// A guest that sends all the time, until its front is through with the back. Counts frames that it
/// had where they are.
fn send_until(
    stream: OwnedFd,
    id: DeviceId,
    stop: &AtomicBool,
    in_place: &AtomicUsize,
) -> Result<(), FrontendError> {
    let platform = Loopback::attach_fd(stream, id.front).unwrap();
    let xs = Store::new(UnixTransport::new(platform.take_store_fd().unwrap()).unwrap());
    let staged = staging(Some(256), Some(256));
    let config = FrontConfig { gref_mapping: true, more_rx_pages: 512, ..staged };
    let mut guest = Guest::over(platform, xs, id, config, true);
    let (mut held, mut turns) = (Held { tokens: VecDeque::new(), in_place }, 0);
    let mut into = Arena::new();
    let mut out = Arena::new();
    assert!(out.push(&[MacAddr([2, 0, 0, 0, 0, 9]).0, [2; 6]].concat().repeat(5), Offload::default()));
    // One in several slots, which is what pieces of the kernel module's frames are to a back.
    assert!(out.push(&[MacAddr([2, 0, 0, 0, 0, 9]).0, [2; 6]].concat().repeat(800), Offload::default()));
    let mut turn = || -> Result<(), FrontendError> {
        let front = &mut guest.front;
        front.control(Duration::from_millis(1))?;
        if front.vif().is_live() {
            let _ = front.send(0, &out.burst()); // no grant to be had
            turns += 1;
            if held.turn(front, turns).is_err() {
                // It is said again, and closes the vif.
                into.clear();
                front.recv(0, &mut into, 1)?;
            }
            front.reclaim(0, 1)?;
        }
        Ok(())
    };
    let ended = loop {
        match turn() {
            Ok(()) if stop.load(Ordering::Relaxed) => break Ok(()),
            Ok(()) => {}
            // It stays until the back has seen its state.
            Err(e) => break Err(e),
        }
    };
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (p, vif) = guest.front.driver();
    vif.release(p, held.tokens).unwrap();
    guest.front.close(Duration::from_secs(60))?;
    ended
}

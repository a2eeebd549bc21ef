//! The cases that the rig plays on real Xen against the kernel module (`cargo xtask rig 82`), on
//! the loopback: what our front makes of each. Both are the same core, so the lines are the same.

#[path = "../../examples/hostile_back/cases.rs"]
mod cases;

use crate::machine::guest::{Guest, staging};
use crate::machine::{BACK, Machine, Store, Test};

use pregrant::net::headers::MacAddr;
use pregrant::port::{Arena, Offload};
use pregrant::xenbus::DeviceId;
use pregrant_host::drivers::FrontendError;
use pregrant_host::loopback::Loopback;
use pregrant_host::xenstored::UnixTransport;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
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
        let line = std::thread::scope(|scope| {
            let guest = scope.spawn(|| send_until(stream, id, &stop));
            let line = case.play(&platform, &mut xs, id);
            stop.store(true, Ordering::Relaxed);
            let ended = guest.join().unwrap();
            line.unwrap_or_else(|e| panic!("{e}; the front: {ended:?}"))
        });
        lines.push(line);
        machine.remove_vif(id);
    }
    drop((platform, xs));
    let golden: Vec<&str> = cases::GOLDEN.lines().collect();
    assert!(lines == golden, "these lines are not as they should be:\n{}", lines.join("\n"));
    machine.end();
}

/// A guest that sends all the time, until its front is through with the back.
fn send_until(stream: OwnedFd, id: DeviceId, stop: &AtomicBool) -> Result<(), FrontendError> {
    let platform = Loopback::attach_fd(stream, id.front).unwrap();
    let xs = Store::new(UnixTransport::new(platform.take_store_fd().unwrap()).unwrap());
    let mut guest = Guest::over(platform, xs, id, staging(Some(256), Some(256)), true);
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
            into.clear();
            front.recv(0, &mut into, 1)?;
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
    guest.front.close(Duration::from_secs(60))?;
    ended
}

//! The functions by which a kernel calls a back, over the test's platform
//! (`crate::back` has the driver's own).
//!
//! ```text
//!   process context          pregrant_selftest_back_new, _step, _control, _turn, _close
//!   softirqs disabled, NAPI  pregrant_selftest_back_poll_tx, _poll_rx, _poll_arm
//! ```
//! `cargo xtask linux` counts the calls that panic of what these lead to, and bounds the frames of
//! stack: those of the second line, which run for each frame of a guest, more tightly.

use super::Counterpart;
use super::directory::MapBus;
use super::domains::Domain;
use alloc::boxed::Box;
use pregrant::net::back::{BackQueue, BackVif, Polled, VifConfig};
use pregrant::net::features::BackFeatures;
use pregrant::port::Arena;
use pregrant::{DomId, PeerFault};

pub type Back = BackVif<Domain>;
pub type Queue = BackQueue<Domain>;

#[unsafe(no_mangle)]
pub fn pregrant_selftest_back_new(of: DomId, features: BackFeatures) -> Box<Back> {
    Box::new(BackVif::new(of, 0, VifConfig { features, ..VifConfig::default() }))
}

/// Makes the back's next steps. False: one of them failed.
#[unsafe(no_mangle)]
pub fn pregrant_selftest_back_step(back: &mut Back, host: &Domain, bus: &mut MapBus) -> bool {
    back.step(host, bus, &mut |_, _| None).is_ok()
}

/// Executes some control requests. `Idle`: there are none, and the next one causes an event.
#[unsafe(no_mangle)]
pub fn pregrant_selftest_back_control(back: &mut Back, host: &Domain) -> Result<Polled, PeerFault> {
    match back.poll_ctrl(host)? {
        Polled::Idle if back.final_check_ctrl(host)? => Ok(Polled::More),
        polled => Ok(polled),
    }
}

/// Applies what control changed.
#[unsafe(no_mangle)]
pub fn pregrant_selftest_back_turn(
    queue: &mut Queue,
    host: &Domain,
    port: &mut Counterpart,
) -> Result<bool, PeerFault> {
    queue.turn(host, port)
}

/// Closes the back's end. False: its state cannot be written.
#[unsafe(no_mangle)]
pub fn pregrant_selftest_back_close(
    back: &mut Back,
    host: &Domain,
    bus: &mut MapBus,
    why: Option<&str>,
) -> bool {
    back.close(host, bus, why).is_ok()
}

#[unsafe(no_mangle)]
pub fn pregrant_selftest_back_poll_tx(
    queue: &mut Queue,
    host: &Domain,
    port: &mut Counterpart,
    scratch: &mut Arena,
) -> Result<Polled, PeerFault> {
    queue.poll_tx(host, port, scratch)
}

#[unsafe(no_mangle)]
pub fn pregrant_selftest_back_poll_rx(
    queue: &mut Queue,
    host: &Domain,
    port: &mut Counterpart,
) -> Result<Polled, PeerFault> {
    queue.poll_rx(host, port)
}

/// Asks for an event of the queue's rings. True: there is work already.
#[unsafe(no_mangle)]
pub fn pregrant_selftest_back_poll_arm(queue: &mut Queue, host: &Domain) -> Result<bool, PeerFault> {
    queue.arm(host).map_err(|(_, fault)| fault)
}

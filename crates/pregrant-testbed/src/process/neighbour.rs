//! A guest that disturbs the others until it is killed. It shows what the owner of one vif can do
//! to another vif at the same backend.
//!
//! The guest yields on its own processor: it has the lowest priority, and yields after each act.
//! So the measured guest loses nothing on its processor: it loses time only at the backend.

use super::process_command::Nuisance;
use super::report::Report;
use super::{ProcessArgs, Result, send_report};
use pregrant::net::features::{ChannelKeys, FrontRequest, QueueKeys, of_front_connection};
use pregrant::platform::{Access, Events, GrantPool, Platform};
use pregrant::ring::{NetRx, NetTx, Notify, RingKind, RingMem, RingPages, Word};
use pregrant::wire::netif::{RxRequest, TXF_MORE_DATA, TxRequest};
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenbus::{Class, Device, XenbusState};
use pregrant::xenstore::Client;
use pregrant::{DomId, GrantRef, PAGE_SIZE};
use pregrant_host::MonotonicClock;
use pregrant_host::UnixTransport;
use pregrant_loopback::{Channel, Loopback, Region};
use std::time::Duration;

/// A value of req_prod that is larger than any ring allows.
const REQ_PROD_BEYOND_RING: u32 = 1000;

/// Plays a bad neighbour; returns only if that fails.
pub fn play(args: &ProcessArgs, nuisance: Nuisance, size: usize) -> Result<Report> {
    rustix::process::nice(19)?;
    let mut vif = nuisance.has_vif().then(|| RawVif::make(args)).transpose()?;
    if let Some(vif) = vif.as_mut().filter(|_| !matches!(nuisance, Nuisance::Broken | Nuisance::Flipping)) {
        vif.connect()?;
    }
    let ready = || send_report(&Report::Note(format!("domain {}: {}", args.domid, nuisance.name())));
    match (nuisance, vif) {
        (Nuisance::Greedy | Nuisance::GreedyLong, Some(vif)) => {
            ready()?;
            greedy(&vif, size)
        }
        (Nuisance::Broken, Some(vif)) => broken(vif, ready),
        (Nuisance::Flipping, Some(vif)) => flipping(vif, ready),
        (Nuisance::Storming, Some(vif)) => {
            ready()?;
            loop {
                vif.platform.events().notify(&vif.channel);
                std::thread::yield_now();
            }
        }
        (Nuisance::Stalled, Some(vif)) => {
            vif.post_one_rx_slot();
            ready()?;
            sleep_for_ever()
        }
        (Nuisance::Idle, Some(_)) => {
            ready()?;
            sleep_for_ever()
        }
        _ => {
            ready()?;
            loop {
                std::thread::yield_now();
            }
        }
    }
}

fn sleep_for_ever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Sends as fast as the ring accepts frames, at the lowest cost: each slot names the same page.
fn greedy(vif: &RawVif, size: usize) -> ! {
    let slots = size.div_ceil(PAGE_SIZE);
    let (mut req_prod, gref) = (0u32, vif.refs[2].0);
    loop {
        let answered = vif.tx.load(Word::RspProd);
        let free = vif.tx.size() - req_prod.wrapping_sub(answered);
        let old = req_prod;
        for _ in 0..free as usize / slots {
            for k in 0..slots {
                // The first slot has the bytes of the whole frame.
                let left = size - k * PAGE_SIZE;
                let here = if k == 0 { size } else { left.min(PAGE_SIZE) };
                let flags = if k + 1 < slots { TXF_MORE_DATA } else { 0 };
                let request = TxRequest { gref, offset: 0, flags, id: req_prod as u16, size: here as u16 };
                NetTx::write_req(&vif.tx, req_prod, &request);
                req_prod = req_prod.wrapping_add(1);
            }
        }
        vif.tx.store(Word::ReqProd, req_prod);
        vif.tx.full_fence();
        if Notify::test(old, req_prod, vif.tx.load(Word::ReqEvent)).wanted() {
            vif.platform.events().notify(&vif.channel);
        }
        std::thread::yield_now();
    }
}

/// Connects, breaks the protocol, is closed, and connects again.
fn broken(mut vif: RawVif, ready: impl Fn() -> Result<()>) -> Result<Report> {
    let mut reported = false;
    loop {
        vif.connect()?;
        vif.tx.store(Word::ReqProd, REQ_PROD_BEYOND_RING);
        vif.platform.events().notify(&vif.channel);
        vif.wait_back(&[XenbusState::Closed])?;
        if !reported {
            ready()?;
            reported = true;
        }
        vif.set_state(XenbusState::Closed)?;
        vif.set_state(XenbusState::Initialising)?;
    }
}

/// Changes the vif's xenbus state as fast as xenstore allows.
fn flipping(mut vif: RawVif, ready: impl Fn() -> Result<()>) -> Result<Report> {
    use XenbusState as S;
    ready()?;
    loop {
        for state in [S::Initialising, S::Connected, S::Closing, S::Closed] {
            vif.set_state(state)?;
            std::thread::yield_now();
        }
    }
}

/// Vif 0, connected without a driver.
struct RawVif {
    xs: Client<UnixTransport>,
    device: Device,
    tx: RingPages<NetTx, Region>,
    rx: RingPages<NetRx, Region>,
    refs: [GrantRef; 3],
    /// The granted page that all slots of the rings name.
    _page: Region,
    channel: Channel,
    port: pregrant::EvtchnPort,
    platform: Loopback,
}

impl RawVif {
    fn make(args: &ProcessArgs) -> Result<Self> {
        let (platform, mut xs) = super::attach(&args.broker, DomId(args.domid))?;
        let device = Device::front(&mut xs, Class::VIF, 0)?;
        device.watch_peer(&mut xs)?;
        let back: DomId = device.peer_domid();
        let mut refs = [GrantRef::NONE; 3];
        let mut page = |i: usize| platform.grants().alloc(back, Access::ReadWrite, &mut refs[i..=i]);
        let (tx, rx, free) = (page(0)?, page(1)?, page(2)?);
        let (channel, port) = platform.events().offer(back)?;
        let (tx, rx) = (RingPages::new(tx), RingPages::new(rx));
        Ok(Self { xs, device, tx, rx, refs, _page: free, channel, port, platform })
    }

    /// Connects with new rings, as an honest front does.
    fn connect(&mut self) -> Result<()> {
        self.wait_back(&[XenbusState::InitWait])?;
        self.tx.init();
        self.rx.init();
        let queue = QueueKeys::new(self.refs[0], self.refs[1], ChannelKeys::Single(self.port));
        let request = FrontRequest::new(vec![queue]);
        let mut bus = StoreBus { device: &self.device, xs: &mut self.xs };
        pregrant::xenbus::bus::DeviceBus::publish(&mut bus, &request.pairs(), of_front_connection)?;
        self.set_state(XenbusState::Connected)?;
        self.wait_back(&[XenbusState::Connected])
    }

    fn post_one_rx_slot(&self) {
        NetRx::write_req(&self.rx, 0, &RxRequest { id: 0, gref: self.refs[2].0 });
        self.rx.store(Word::ReqProd, 1);
        self.platform.events().notify(&self.channel);
    }

    fn set_state(&mut self, state: XenbusState) -> Result<()> {
        Ok(self.device.set_state(&mut self.xs, state)?)
    }

    fn wait_back(&mut self, wanted: &[XenbusState]) -> Result<()> {
        self.device.wait_peer(&mut self.xs, &MonotonicClock, None, |s| wanted.contains(&s))?;
        Ok(())
    }
}
